"""Files of the embedded index that were cut, emptied or changed: set aside once, and made again."""

import asyncio
import os
from collections.abc import Callable, Generator
from pathlib import Path

import orjson
import pytest

from reposync.errors import IndexUnavailable, VectorIndexError
from reposync.vectors.engine.collections import AGAIN_SECONDS, DAMAGED, KEPT_SECONDS
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import CollectionMissing
from tests.fixtures.engine import Engine
from tests.fixtures.folders import quick_folder
from tests.fixtures.points import SPARSE_ALONE, file, scope
from tests.fixtures.stored_points import stored_points
from tests.integration.vectors.conftest import index_in

pytestmark = pytest.mark.full

Damage = Callable[[Path], None]


@pytest.fixture
def state_dir() -> Generator[Path, None, None]:
    with quick_folder() as folder:
        yield folder
        Engine(folder).stop()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def changed(path: Path) -> None:
    """Still a catalogue, with another name of the folder in it."""
    catalogue = orjson.loads(path.read_bytes())
    for entry in catalogue["collections"].values():
        entry["folder"] += "0"
    path.write_bytes(orjson.dumps(catalogue))


async def stored(state_dir: Path, collection: str = "code") -> str:
    """The identity of a collection with points in it, whose engine has ended."""
    async with index_in(state_dir, collection) as index:
        identity = await index.ensure(SPARSE_ALONE)
        await index.replace_files(scope(), [file(f"{n}.py", f"text {n}", spec=SPARSE_ALONE) for n in range(20)])
    await asyncio.to_thread(Engine(state_dir).stop)
    return identity


async def read(index: QdrantIndex) -> int:
    return len(await stored_points(index, scope().version_id))


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (changed, "catalogue.json"),
        (cut, "edge_config.json"),
        (Path.unlink, "segment.json"),
        (emptied, "payload_storage/bitmask.dat"),
        (emptied, "is_null/status.dat"),  # a panic while it is opened
        (emptied, "payload_storage/page_0.dat"),  # an error while it is read
    ],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
async def test_a_damaged_index_is_set_aside_and_made_again(state_dir: Path, damage: Damage, name: str) -> None:
    before = await stored(state_dir)
    folder = state_dir / "index"
    damage(next(path for path in sorted(folder.rglob("*")) if path.as_posix().endswith(f"/{name}")))

    async with index_in(state_dir) as index:
        with pytest.raises(CollectionMissing, match=r"damaged \(.*set aside in .*A sync makes the collection"):
            await read(index)
        assert await index.ensure(SPARSE_ALONE) != before
        await index.replace_files(scope(), [file("a.py", "text", spec=SPARSE_ALONE)])
        why = await index.lost()
        assert why is not None and str(folder / DAMAGED) in why
    await asyncio.to_thread(Engine(state_dir).stop)

    async with index_in(state_dir) as index:
        assert await read(index) == 1, "what was made again is opened as any other"
    assert any((folder / DAMAGED).glob("collection-*"))


async def test_the_collections_beside_a_damaged_one_stay(state_dir: Path) -> None:
    await stored(state_dir, "other")
    await stored(state_dir)
    catalogue = orjson.loads((state_dir / "index" / "catalogue.json").read_bytes())
    cut(state_dir / "index" / catalogue["collections"]["code"]["folder"] / "edge_config.json")
    async with index_in(state_dir, "other") as other, index_in(state_dir) as code:
        assert await read(other) == 20
        with pytest.raises(CollectionMissing):
            await read(code)


async def test_damage_that_comes_back_within_a_day_is_an_error_and_after_a_week_its_files_go(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reposync.vectors.connection.ATTEMPTS", 1)
    folder = state_dir / "index"

    async def count() -> int:
        await asyncio.to_thread(Engine(state_dir).stop)
        async with index_in(state_dir) as index:
            return await index.count()

    def age(seconds: float) -> None:
        os.utime(folder / DAMAGED, (0, (folder / DAMAGED).stat().st_mtime - seconds))

    await stored(state_dir)
    cut(folder / "catalogue.json")
    await stored(state_dir)
    for again in (next(folder.glob("collection-*/edge_config.json")), folder / "catalogue.json"):
        cut(again)
        with pytest.raises(VectorIndexError, match=f"damaged again within a day.*Remove the folder {folder} and sync"):
            await count()
    assert len(list(folder.glob("collection-*"))) == 1, "nothing more is set aside"

    age(AGAIN_SECONDS)
    with pytest.raises(CollectionMissing, match="set aside"):
        await count()
    await stored(state_dir)
    age(KEPT_SECONDS)
    assert await count() == 20
    assert not (folder / DAMAGED).exists()


async def test_a_folder_that_cannot_be_read_is_not_damaged(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reposync.vectors.connection.ATTEMPTS", 1)
    await stored(state_dir)
    catalogue = state_dir / "index" / "catalogue.json"
    aside = catalogue.rename(catalogue.with_name("aside"))
    catalogue.mkdir()  # as a wrong mount makes it: file modes do not stop tests that run as root
    async with index_in(state_dir) as index:
        with pytest.raises(IndexUnavailable, match="ended with status 1 while starting"):
            await index.count()
        catalogue.rmdir()
        aside.rename(catalogue)
        assert await index.count() == 20
    assert not (state_dir / "index" / DAMAGED).exists()

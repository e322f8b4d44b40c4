"""Files of the embedded index that were cut, emptied or changed: set aside once, and made again."""

import asyncio
import os
from collections.abc import Callable, Generator
from pathlib import Path

import orjson
import pytest

from reposync.vectors.engine.collections import DAMAGED
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import CollectionMissing
from tests.fixtures.engine import Engine
from tests.fixtures.folders import quick_folder
from tests.fixtures.points import SPARSE_ALONE, file, scope
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
    return len([point async for page in index.points(scope().repository_id) for point in page])


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

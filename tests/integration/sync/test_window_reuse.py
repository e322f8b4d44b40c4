"""A changed file embeds the windows that changed, not its chunks; the vectors are those of a sync from nothing."""

from typing import Any

import numpy as np
import pytest

from reposync.content.chunking import chunk_text
from reposync.content.model import content_hash
from reposync.embedding.windows import readable_windows
from tests.fixtures.repositories import Content
from tests.fixtures.world import World
from tests.integration.sync.test_index_versions import handed_back_after_a_file

pytestmark = pytest.mark.full

WINDOW = 200


def lines(count: int, **changed: str) -> bytes:
    return "".join(changed.get(f"n{n}", f"value_{n} = compute({n}, {n * n})") + "\n" for n in range(count)).encode()


async def vectors(world: World) -> dict[str, Any]:
    """Of each point by its id; equal only if they are equal bit for bit."""
    return {key: point["vector"]["dense"] for key, point in (await world.points()).items()}


async def vectors_of_a_sync_from_nothing(world: World) -> dict[str, Any]:
    await world.drop_collection()
    await world.completed()
    return await vectors(world)


@pytest.fixture
def windowed(closed_world: World) -> World:
    closed_world.configure(size=2000, overlap=400)
    closed_world.edit_registry("batch: 32", f"batch: 32, window: {WINDOW}")
    return closed_world


@pytest.mark.parametrize(
    "commit",
    [
        {"a.py": lines(200, n100="answer = 42")},
        {"a.py": None, "new/place/a.py": lines(200, n100="answer = 42")},
    ],
    ids=["changed", "moved and changed"],
)
async def test_a_changed_line_embeds_its_windows_alone(windowed: World, commit: dict[str | bytes, Content | None]):
    world = windowed
    world.repository.commit({"a.py": lines(200), "b.py": lines(20)})
    async with world.opened():
        await world.completed()
        world.repository.commit(commit)
        world.embeddings.forget()
        run = await world.completed()
        embedded = list(world.embeddings.inputs)
        assert run.chunks_embedded >= 1
        assert 1 <= len(embedded) <= 6, "a chunk has eleven"
        assert any("answer = 42" in each for each in embedded)
        assert await vectors(world) == await vectors_of_a_sync_from_nothing(world)


async def test_an_interrupted_run_ends_with_the_vectors_of_a_sync_from_nothing(windowed: World):
    world = windowed
    # More than one batch, so that a part of it is stored before the run is handed back.
    world.repository.commit({f"f{n}.py": lines(40, n3=f"name = {n}") for n in range(300)})
    async with world.opened():
        await world.completed()
        world.repository.commit({f"f{n}.py": lines(40, n3=f"name = {n}", n30=f"again = {n}") for n in range(300)})
        assert (await handed_back_after_a_file(world)).files_processed < 300
        await world.completed()
        assert await vectors(world) == await vectors_of_a_sync_from_nothing(world)


async def test_the_local_model_gives_the_same_vectors_whether_windows_are_reused_or_not(closed_world: World):
    world = closed_world
    world.configure(size=2000, overlap=400)
    registry = world.folder / "repositories.yaml"
    of_server = next(line for line in registry.read_text().splitlines() if "test/words" in line)
    world.edit_registry(of_server, "embedding: {provider: local}")
    hangul = "".join(f"{n}: 한국어 문장입니다 정말로\n" for n in range(60)).encode()
    world.repository.commit({"a.py": lines(80), "korean.txt": hangul})
    async with world.opened():
        await world.completed()
        world.repository.commit({"a.py": lines(80, n40="answer = 42"), "korean.txt": hangul + b"the end\n"})
        await world.completed()
        assert await vectors(world) == await vectors_of_a_sync_from_nothing(world)


async def test_points_that_a_different_program_wrote_or_changed_lend_no_vectors(windowed: World):
    world = windowed
    before, after = lines(60), lines(60, n10="answer = 42")
    world.repository.commit({"a.py": before, "b.py": before, "c.py": before})
    async with world.opened():
        await world.completed()
        points = await world.points()
        wrong = np.full((1, 64), 0.125).tolist()
        chunks = chunk_text(after.decode(), "python", 2000, 400)
        split = [window for chunk in chunks for window in readable_windows(chunk.text, WINDOW)]
        text = next(window for window in split if "answer = 42" in window)
        changes = []
        for number, (identity, point) in enumerate(points.items()):
            payload = point["payload"]
            match number % 3:
                case 0:  # its text is of the next commit, its vector is not
                    payload["page_content"] = after.decode()[: len(payload["page_content"])]
                case 1:  # too few windows
                    point["vector"]["dense"] = wrong
                case 2:  # one more point of the file, complete, with a hash that fits
                    identity = "00000000-0000-4000-8000-000000000001"
                    payload["page_content"] = text
                    payload["metadata"]["content_hash"] = content_hash(text)
                    point["vector"]["dense"] = wrong
            changes.append({"id": identity, "vector": point["vector"], "payload": payload})
        changes.append({"id": 7, "vector": {"dense": wrong}, "payload": changes[0]["payload"] | {"page_content": None}})
        async with world.qdrant() as client:
            answer = await client.put(f"/collections/{world.collection}/points?wait=true", json={"points": changes})
            answer.raise_for_status()
        world.repository.commit(dict.fromkeys(("a.py", "b.py", "c.py"), after))
        await world.completed()
        assert await vectors(world) == await vectors_of_a_sync_from_nothing(world)

"""A Qdrant server that dies, hangs and comes back under a run."""

import asyncio
from collections.abc import AsyncGenerator, Generator

import pytest

from reposync.errors import IndexUnavailable
from reposync.vectors.index import QdrantIndex, open_index
from reposync.vectors.port import IndexSettings
from tests.fixtures.folders import quick_folder
from tests.fixtures.points import SPEC, file, scope
from tests.fixtures.qdrant_nodes import QdrantNode, qdrant_program
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.qdrant_targets import ENGINE, SERVER

Server = QdrantServer | QdrantNode


@pytest.fixture(params=[ENGINE, *([SERVER] if qdrant_program() else [])])
def server(request: pytest.FixtureRequest) -> Generator[Server, None, None]:
    if (program := qdrant_program()) and request.param == SERVER:
        with QdrantNode(program) as node:
            yield node
        return
    with quick_folder() as folder, QdrantServer(folder / "qdrant") as server:
        yield server


@pytest.fixture
async def index(server: Server) -> AsyncGenerator[QdrantIndex, None]:
    index = opened(server)
    await index.ensure(SPEC)
    yield index
    await index.close()


def opened(server: Server, *, attempts: int = 8, timeout_seconds: float = 30.0) -> QdrantIndex:
    return open_index(
        IndexSettings(
            collection="code",
            state_dir=server.folder,
            url=server.url,
            attempts=attempts,
            timeout_seconds=timeout_seconds,
            longest_wait_seconds=1.0,
        )
    )


async def test_a_run_goes_on_where_the_server_was_killed_and_came_back(server: Server, index: QdrantIndex) -> None:
    await index.replace_files(scope(), [file("a.py", "one")])
    server.kill()
    writing = asyncio.create_task(index.replace_files(scope(), [file("b.py", "two")]))
    await asyncio.to_thread(server.start)
    await writing
    assert await index.count() == 2


async def test_a_server_that_hangs_is_unavailable_after_the_time_out(server: Server, index: QdrantIndex) -> None:
    patient = opened(server, attempts=1, timeout_seconds=1)
    await patient.count()
    server.pause()
    with pytest.raises(IndexUnavailable, match="no answer within the time-out"):
        await patient.count()
    server.resume()
    assert await index.count() == 0
    await patient.close()


async def test_a_write_can_be_cancelled_while_the_server_hangs(server: Server, index: QdrantIndex) -> None:
    server.pause()
    files = [file(f"{number}.py", "text") for number in range(1_000)]
    writing = asyncio.create_task(index.replace_files(scope(), files))
    done, _ = await asyncio.wait([writing], timeout=0.3)
    assert not done
    writing.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await writing
    server.resume()

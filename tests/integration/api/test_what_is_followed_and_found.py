"""Events, waiting, search and locks are as the API describes them, under requests that nobody would write by hand."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import Phase, given, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from reposync.api.app import create_app
from reposync.api.server import serve_http
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.examples import SLOW_EXAMPLES
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository
from tests.fixtures.world import World
from tests.integration.api.conftest import Daemon
from tests.integration.sync.conftest import qdrant  # noqa: F401

MINE = r"^/api/v1/(repositories/\{name\}/wait|runs/\{run_id\}/events|search|locks(/\{repository\})?)$"
QUIET = settings(max_examples=SLOW_EXAMPLES, phases=[Phase.explicit, Phase.generate])
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@dataclass(frozen=True)
class Api:
    url: str
    run_id: str
    commit: str


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, qdrant: QdrantServer) -> Iterator[Api]:  # noqa: F811
    """A server in a thread of its own over a repository that was synced once."""
    folder = tmp_path_factory.mktemp("api")
    found: list[Api] = []
    up, leave = threading.Event(), threading.Event()

    async def serve(embeddings: EmbeddingServer) -> None:
        world = World(folder, GitRepository.create(folder / "p.git"), embeddings, qdrant.url, "fuzzed")
        world.configure()
        head = world.repository.commit({"a.py": b"def first():\n    return 1\n"})
        async with world.opened():
            run = await world.completed()
            parts = replace(Daemon().parts, application=lambda: world.app)
            async with serve_http(create_app(parts), "127.0.0.1", 0) as address:
                found.append(Api(address.url, run.id, head))
                up.set()
                await asyncio.to_thread(leave.wait)

    with EmbeddingServer() as embeddings, contextlib.ExitStack() as stack:
        thread = threading.Thread(target=lambda: asyncio.run(serve(embeddings)))
        thread.start()
        stack.callback(thread.join)
        stack.callback(leave.set)
        assert up.wait(60)
        yield found[0]


def test_no_request_breaks_a_route_and_every_answer_is_as_described(api: Api):
    described: Any = schemathesis.openapi.from_url(f"{api.url}/openapi.json").include(path_regex=MINE)
    known = {"name": "project", "run_id": api.run_id, "repository": "project"}
    turns = itertools.count()
    statuses: set[int] = set()

    def ask(case: schemathesis.Case) -> None:
        # Half of the requests are about something that there is.
        if next(turns) % 2:
            for key in known.keys() & case.path_parameters.keys():
                case.path_parameters[key] = known[key]
            if "commit" in (case.query or {}):
                case.query["commit"] = api.commit
        if isinstance((case.query or {}).get("timeout"), int | float):
            case.query["timeout"] = min(case.query["timeout"], 0.01)
        answer = case.call()
        # That a commit is not searchable yet is an answer.
        assert answer.status_code < 500 or (answer.status_code, answer.json()["error"]["code"]) == (
            504,
            "NOT_SEARCHABLE_YET",
        )
        case.validate_response(answer, checks=CHECKS)
        statuses.add(answer.status_code)

    operations = [each.ok() for each in described.get_all_operations()]
    for operation in operations:
        QUIET(given(operation.as_strategy())(ask))()

    assert len(operations) == 5
    assert {200, 404, 422} <= statuses


def test_every_route_names_its_errors_in_our_envelope(api: Api):
    paths = httpx.get(f"{api.url}/openapi.json").json()["paths"]
    mine = {
        path: operation
        for path, operations in paths.items()
        for operation in operations.values()
        if path.startswith(("/api/v1/search", "/api/v1/locks")) or path.endswith(("/wait", "/events"))
    }

    assert len(mine) == 5
    for path, operation in mine.items():
        failures = {code: each for code, each in operation["responses"].items() if int(code) >= 400}
        assert {"401", "403", "422", "500", "503"} <= set(failures), path
        for failure in failures.values():
            content = failure["content"]["application/json"]
            assert content["schema"] == {"$ref": "#/components/schemas/ErrorAnswer"}, path
        assert operation["summary"], path
    assert set(mine["/api/v1/runs/{run_id}/events"]["responses"]["200"]["content"]) == {"text/event-stream"}

"""The OpenAPI document: complete, and true for requests that nobody would write by hand."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from hypothesis import Phase, given, settings
from openapi_spec_validator import validate
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from reposync.api.app import create_app
from reposync.api.server import serve_http
from reposync.store.run import RunFigures, RunProblem
from reposync.store.status import RunStatus, RunTrigger
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.examples import SLOW_EXAMPLES
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository
from tests.fixtures.world import World
from tests.integration.api.serving import description, parts_of

API = "/api/v1"
TRIED = rf"^{API}/(?!webhooks)"
CHECKS = [status_code_conformance, content_type_conformance, response_headers_conformance, response_schema_conformance]
QUIET = settings(max_examples=SLOW_EXAMPLES, phases=[Phase.explicit, Phase.generate])


@dataclass(frozen=True)
class Api:
    url: str
    run_ids: list[str]
    commit: str


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, qdrant: QdrantServer) -> Iterator[Api]:
    """A server in a thread of its own, over a repository that was synced and has runs in every state."""
    folder = tmp_path_factory.mktemp("api")
    found: list[Api] = []
    up, leave = threading.Event(), threading.Event()

    async def serve(embeddings: EmbeddingServer) -> None:
        world = World(folder, GitRepository.create(folder / "p.git"), embeddings, qdrant.url, "fuzzed")
        # Addresses that Hypothesis makes up must not be resolved.
        world.configure(extra="http: {allow_local_sources: true}\n")
        head = world.repository.commit({"a.py": b"def first():\n    return 1\n"})
        async with world.opened():
            ids = [(await world.completed()).id]
            for status in RunStatus:
                run, _ = await world.app.runs.enqueue("project", RunTrigger.HTTP)
                ids.append(run.id)
                if status is RunStatus.QUEUED:
                    continue
                claimed = await world.app.runs.claim("worker", 600.0)
                assert claimed is not None
                await world.app.runs.add_problems(claimed, [RunProblem(f"{n}.bin", "binary", "NUL") for n in range(3)])
                if status is RunStatus.RETRYING:
                    await world.app.runs.retry_later(claimed, 600.0, "SOURCE_UNAVAILABLE", "no answer")
                else:
                    end = RunStatus.FAILED if status is RunStatus.RUNNING else status
                    await world.app.runs.finish(claimed, end, RunFigures(), "CODE", "why")
            async with serve_http(create_app(parts_of(world.app)), "127.0.0.1", 0) as address:
                found.append(Api(address.url, ids, head))
                up.set()
                await asyncio.to_thread(leave.wait)

    with EmbeddingServer() as embeddings, contextlib.ExitStack() as stack:
        thread = threading.Thread(target=lambda: asyncio.run(serve(embeddings)))
        thread.start()
        stack.callback(thread.join)
        stack.callback(leave.set)
        assert up.wait(60)
        yield found[0]


def test_no_request_breaks_a_route_and_every_response_is_as_described(api: Api) -> None:
    described: Any = schemathesis.openapi.from_url(f"{api.url}/openapi.json").include(path_regex=TRIED)
    known = {"name": ["project", "no/such"], "run_id": api.run_ids, "repository": ["project"]}
    turns = itertools.count()
    statuses: set[int] = set()

    def send(case: schemathesis.Case) -> None:
        # Two thirds of the requests are about something that exists.
        if (turn := next(turns)) % 3:
            for key in known.keys() & case.path_parameters.keys():
                case.path_parameters[key] = known[key][turn % len(known[key])]
            if "commit" in (case.query or {}):
                case.query["commit"] = api.commit
        for key in ("wait", "timeout"):
            if isinstance((case.query or {}).get(key), int | float):
                case.query[key] = min(case.query[key], 0.01)
        answer = case.call()
        is_not_yet = answer.status_code == 504 and answer.json()["error"]["code"] == "NOT_SEARCHABLE_YET"
        assert answer.status_code < 500 or is_not_yet
        case.validate_response(answer, checks=CHECKS)
        statuses.add(answer.status_code)

    operations = [each.ok() for each in described.get_all_operations()]
    for operation in operations:
        # A stream of events is open until its run ends.
        if not operation.path.endswith("/events"):
            QUIET(given(operation.as_strategy())(send))()

    assert len(operations) == 25
    assert {200, 202, 404, 422} <= statuses


def test_the_document_is_valid_in_the_version_of_openapi_that_it_declares() -> None:
    validate(description())

    assert description()["openapi"] == "3.1.0"
    paths = description()["paths"]
    operations = [each["operationId"] for operations in paths.values() for each in operations.values()]
    assert len(operations) == len(set(operations)) > 20


def test_every_route_is_described_with_the_form_of_its_errors() -> None:
    for operations in description()["paths"].values():
        for operation in operations.values():
            assert operation["summary"]
            for status in ("4XX", "5XX"):
                content = operation["responses"][status]["content"]["application/json"]
                assert content["schema"] == {"$ref": "#/components/schemas/ErrorAnswer"}
    events = description()["paths"][f"{API}/runs/{{run_id}}/events"]["get"]["responses"]
    assert set(events["200"]["content"]) == {"text/event-stream"}


def test_the_definition_of_a_repository_is_described_by_the_model_of_the_registry_file() -> None:
    body = description()["paths"][f"{API}/repositories"]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]

    assert schema["additionalProperties"] is False
    assert {"name", "gitlab", "project", "git", "path", "branch", "schedule", "chunk", "include"} <= set(
        schema["properties"]
    )
    assert not {"username", "password"} & set(schema["properties"])

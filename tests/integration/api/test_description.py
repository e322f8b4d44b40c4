"""The API's description of itself: complete, and true under requests that nobody would write by hand."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
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
from reposync.store.addresses import sqlite_url
from reposync.store.run import RunFigures, RunProblem
from reposync.store.status import RunStatus, RunTrigger
from tests.fixtures.examples import SLOW_EXAMPLES
from tests.integration.api.rest import API, opened, parts_of

_OF_REPOSITORY = r"(/sync|/index(/(rollback|pause|resume))?)?"
_OF_RUN = r"(/(problems|cancel|approve|retry))?"
MINE = rf"^{API}/(repositories(/\{{name\}}{_OF_REPOSITORY})?|runs(/\{{run_id\}}{_OF_RUN})?)$"
REGISTRY = """\
gitlab: [{name: main, url: https://gitlab.example.com}]
repositories: [{name: payments, git: https://git.example.com/payments.git}]
# Whatever is made up as an address must not be looked up.
http: {allow_local_sources: true}
"""


@dataclass(frozen=True)
class Api:
    url: str
    names: list[str]
    run_ids: list[str]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server in a thread of its own, with repositories and runs in every state."""
    folder = tmp_path_factory.mktemp("api")
    found: list[Api] = []
    up, leave = threading.Event(), threading.Event()

    async def serve() -> None:
        async with opened(folder, sqlite_url(folder / "reposync.db"), REGISTRY) as app:
            ids = []
            for status in RunStatus:
                run, _ = await app.runs.enqueue("payments", RunTrigger.HTTP)
                ids.append(run.id)
                if status is RunStatus.QUEUED:
                    continue
                claimed = await app.runs.claim("worker", 600.0)
                assert claimed is not None
                await app.runs.add_problems(claimed, [RunProblem(f"{n}.bin", "binary", "NUL") for n in range(3)])
                if status is RunStatus.RETRYING:
                    await app.runs.retry_later(claimed, 600.0, "SOURCE_UNAVAILABLE", "no answer")
                elif status is not RunStatus.RUNNING:
                    await app.runs.finish(claimed, status, RunFigures(), "CODE", "why")
                else:
                    await app.runs.finish(claimed, RunStatus.FAILED, RunFigures(), "CODE", "why")
            async with serve_http(create_app(parts_of(app)), "127.0.0.1", 0) as address:
                found.append(Api(address.url, ["payments", "no/such"], ids))
                up.set()
                await asyncio.to_thread(leave.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    with contextlib.ExitStack() as stack:
        stack.callback(thread.join)
        stack.callback(leave.set)
        assert up.wait(60)
        yield found[0]


@pytest.fixture(scope="module")
def described(api: Api) -> Any:
    return schemathesis.openapi.from_url(f"{api.url}/openapi.json").include(path_regex=MINE)


CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
QUIET = settings(max_examples=SLOW_EXAMPLES, phases=[Phase.explicit, Phase.generate])


def test_no_request_breaks_a_route_and_every_answer_is_as_described(described: Any, api: Api) -> None:
    known = {"name": api.names, "run_id": api.run_ids}
    turns = itertools.count()
    statuses: set[int] = set()

    def ask(case: schemathesis.Case) -> None:
        # Two thirds of the requests are about something that there is.
        turn = next(turns)
        for key in known.keys() & case.path_parameters.keys():
            if turn % 3:
                case.path_parameters[key] = known[key][turn % len(known[key])]
        if isinstance((case.query or {}).get("wait"), int | float):
            case.query["wait"] = min(case.query["wait"], 0.01)
        answer = case.call()
        assert answer.status_code < 500
        case.validate_response(answer, checks=CHECKS)
        statuses.add(answer.status_code)

    operations = [each.ok() for each in described.get_all_operations()]
    for operation in operations:
        QUIET(given(operation.as_strategy())(ask))()

    assert len(operations) == 16
    assert {200, 202, 404, 422} <= statuses


def test_the_document_is_valid_in_the_version_of_openapi_that_it_declares(api: Api) -> None:
    document = httpx.get(f"{api.url}/openapi.json").json()

    validate(document)

    assert document["openapi"] == "3.1.0"
    operations = [each["operationId"] for operations in document["paths"].values() for each in operations.values()]
    assert len(operations) == len(set(operations)) > 20


def test_every_route_names_its_errors_in_our_envelope_with_examples(api: Api) -> None:
    paths = httpx.get(f"{api.url}/openapi.json").json()["paths"]
    routes = {
        (method, path): operation
        for path, operations in paths.items()
        for method, operation in operations.items()
        if path.startswith((f"{API}/repositories", f"{API}/runs")) and not path.endswith(("/wait", "/events"))
    }

    assert len(routes) == 16
    for where, operation in routes.items():
        failures = {code: each for code, each in operation["responses"].items() if int(code) >= 400}
        assert {"401", "403", "413", "414", "422", "500", "503"} <= set(failures), where
        for code, failure in failures.items():
            content = failure["content"]["application/json"]
            assert content["schema"] == {"$ref": "#/components/schemas/ErrorAnswer"}, (where, code)
            for name, example in content.get("examples", {}).items():
                assert example["value"]["error"]["code"] == name
        assert operation["summary"], where
    assert "404" in routes["get", f"{API}/runs/{{run_id}}"]["responses"]
    assert set(routes["post", f"{API}/repositories/{{name}}/sync"]["responses"]) >= {"200", "202", "404", "409"}


def test_the_description_of_a_definition_is_the_registry_files(api: Api) -> None:
    document = httpx.get(f"{api.url}/openapi.json").json()
    body = document["paths"][f"{API}/repositories"]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]

    assert schema["additionalProperties"] is False
    assert {"name", "gitlab", "project", "git", "path", "branch", "schedule", "chunk", "include"} <= set(
        schema["properties"]
    )
    assert not {"username", "password"} & set(schema["properties"])
    assert "$ref" not in str(schema) and "${" not in str(schema["properties"]["name"])

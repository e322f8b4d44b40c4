"""The OpenAPI document: complete, and true for requests that nobody would write by hand."""

from __future__ import annotations

import itertools
import json
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

from reposync.config.fields import VARIABLE
from reposync.operations import repositories
from reposync.store.status import RunStatus
from tests.fixtures.examples import SLOW_EXAMPLES
from tests.fixtures.showcase import REAL, Showcase
from tests.integration.api.serving import description

API = "/api/v1"
SHOWCASE = {"runs": 3}
TRIED = rf"^{API}/(?!webhooks)"
CHECKS = [status_code_conformance, content_type_conformance, response_headers_conformance, response_schema_conformance]
QUIET = settings(max_examples=SLOW_EXAMPLES, phases=[Phase.explicit, Phase.generate])


async def allow(*_: object, **__: object) -> None:
    """Addresses that Hypothesis makes up must not be resolved."""


def test_no_request_breaks_a_route_and_every_response_is_as_described(
    showcase: Showcase, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repositories, "check_source", allow)
    runs = [run.id for run in showcase.call(showcase.app.history.runs(limit=50))]
    known = {"name": [REAL, "no/such"], "run_id": runs, "repository": [REAL]}
    commit = showcase.run_of(REAL, RunStatus.COMPLETED).commit_after
    turns = itertools.count()
    statuses: set[int] = set()

    def send(case: schemathesis.Case) -> None:
        # Two thirds of the requests are about something that exists.
        if (turn := next(turns)) % 3:
            for key in known.keys() & case.path_parameters.keys():
                case.path_parameters[key] = known[key][turn % len(known[key])]
            if "commit" in (case.query or {}):
                case.query["commit"] = commit
        if case.path == f"{API}/grep":  # the other repositories of a showcase have no points
            case.query["repository"] = case.query.get("repository") or [REAL]
        if case.method == "DELETE" and case.path == f"{API}/repositories/{{name}}":
            case.query = {**(case.query or {}), "wait": (case.query or {}).get("wait", 0)}
        if case.path.endswith("/verify"):  # of a repository whose sync never ends
            case.query = {**(case.query or {}), "timeout": (case.query or {}).get("timeout", 0)}
        for key in ("wait", "timeout"):
            if isinstance((case.query or {}).get(key), int | float):
                case.query[key] = min(case.query[key], 0.01)
        answer = case.call()
        is_not_yet = answer.status_code == 504 and answer.json()["error"]["code"] == "NOT_SEARCHABLE_YET"
        assert answer.status_code < 500 or is_not_yet
        case.validate_response(answer, checks=CHECKS)
        statuses.add(answer.status_code)

    described: Any = schemathesis.openapi.from_url(f"{url}/openapi.json").include(path_regex=TRIED)
    operations = [each.ok() for each in described.get_all_operations()]
    for operation in operations:
        # A stream of events is open until its run ends; others ask servers that do not exist.
        asks = operation.path.endswith("/evaluations") and operation.method == "post"
        if not asks and not operation.path.endswith(("/events", "/plan", "/discover", "/adopt")):
            QUIET(given(operation.as_strategy())(send))()

    assert len(operations) == 49
    assert {200, 202, 404, 422} <= statuses


def body_of(method: str, path: str) -> dict[str, Any]:
    """Its schema."""
    body = description()["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
    found: dict[str, Any] = description()["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    return found


def test_the_document_promises_no_variables_and_names_every_header_that_matters() -> None:
    for method, path in (("post", "/api/v1/repositories"), ("patch", "/api/v1/repositories/{name}")):
        body = body_of(method, path)
        assert "folder of this file" not in json.dumps(body)
        assert "string" not in json.dumps(body["properties"]["max_file_bytes"]), "a variable of the registry file"
        assert json.dumps(VARIABLE)[1:-1] not in json.dumps(body), "a variable of the registry file"
    for path, methods in description()["paths"].items():
        for operation in methods.values():
            names = [each["name"] for each in operation.get("parameters", [])]
            assert ("If-None-Match" in names) == ("304" in operation["responses"]), path


def test_the_document_is_valid_in_the_version_of_openapi_that_it_declares() -> None:
    validate(description())

    assert description()["openapi"] == "3.1.0"
    paths = description()["paths"]
    assert description()["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    assert paths[f"{API}/locks"]["get"]["security"] == [{"HTTPBearer": []}]
    assert "security" not in paths["/healthz"]["get"]
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
    schema = body_of("post", f"{API}/repositories")

    assert schema["additionalProperties"] is False
    assert {"name", "gitlab", "project", "git", "path", "branch", "schedule", "chunk", "include"} <= set(
        schema["properties"]
    )
    assert not {"username", "password"} & set(schema["properties"])

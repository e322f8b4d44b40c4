"""Every error that a route can raise stands in the API's description, with an example: read from the docstrings of what
the route calls, which name what they raise. (Errors that tests meet are looked at as well, see `documented`.)"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
from fastapi.routing import APIRoute

import reposync
from reposync.errors import RepoSyncError
from tests.integration.api.documented import api_routes, description

_RAISES = re.compile(r"\bRaises\s+(.*?)(?:\.\s|\.$|\Z)", re.DOTALL)
# Of these, and of everything above them, each module knows what it calls by name; the rest is other people's.
_LAYERS = (
    "reposync.api",
    "reposync.app",
    "reposync.catalog",
    "reposync.runs",
    "reposync.search",
    "reposync.store",
    "reposync.config",
)


def _all_errors() -> dict[str, type[RepoSyncError]]:
    for module in pkgutil.walk_packages(reposync.__path__, "reposync."):
        if module.name.startswith(_LAYERS) and "migrations" not in module.name:
            importlib.import_module(module.name)
    found: dict[str, type[RepoSyncError]] = {}
    left: list[type[RepoSyncError]] = [RepoSyncError]
    while left:
        kind = left.pop()
        found[kind.__name__] = kind
        left += kind.__subclasses__()
    return found


def _owners() -> dict[str, type]:
    """What routes call their helpers, and what these are."""
    from reposync.app.application import Application
    from reposync.search.commit_wait import SearchableCommits
    from reposync.search.searching import Searching
    from reposync.store.repositories import Repositories
    from reposync.store.runs import Runs

    return {
        "app": Application,
        "runs": Runs,
        "repositories": Repositories,
        "commits": SearchableCommits,
        "searching": Searching,
    }


def _called(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """What stands in its body as a call, as far as a name tells: functions of its module and those that it imports,
    functions inside which it was made, and methods of what routes are handed."""
    source = textwrap.dedent(inspect.getsource(function))
    names, owners = inspect.getclosurevars(function), _owners()
    known = {**names.globals, **names.nonlocals}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id=name) if isinstance(known.get(name), FunctionType):
                yield known[name]
            case ast.Attribute(attr=name, value=value):
                asked = "app" if ast.unparse(value).endswith("application()") else ast.unparse(value).rpartition(".")[2]
                if inspect.isfunction(method := getattr(owners.get(asked), name, None)):
                    yield method


def _raised(endpoint: Callable[..., Any], errors: dict[str, type[RepoSyncError]]) -> set[str]:
    """Names of errors in the docstrings of what it calls; of what has no docstring, of what that calls."""
    found = set[str]()
    left, seen = [endpoint], set[Callable[..., Any]]()
    while left:
        function = left.pop()
        if function in seen or not str(getattr(function, "__module__", "")).startswith(_LAYERS):
            continue
        seen.add(function)
        words = " ".join(_RAISES.findall(inspect.getdoc(function) or ""))
        named = set(re.findall(r"\b[A-Z][A-Za-z]+\b", words)) & errors.keys()
        found |= named
        if function is endpoint or not named:
            left += _called(function)
    return found


@pytest.mark.parametrize("route", api_routes(), ids=lambda route: f"{min(route.methods)} {route.path_format}")
def test_what_a_route_can_raise_is_described_with_an_example(route: APIRoute) -> None:
    if not route.include_in_schema:
        pytest.skip("for the pages alone")
    errors, (method,) = _all_errors(), route.methods
    responses = description()["paths"][route.path_format][method.lower()]["responses"]

    for name in sorted(_raised(route.endpoint, errors)):
        kind = errors[name]
        examples = (
            responses.get(str(kind.status), {}).get("content", {}).get("application/json", {}).get("examples", {})
        )
        assert kind.code in examples, f"{kind.status} {kind.code} ({name})"
        assert examples[kind.code]["value"]["error"].keys() == {"code", "message", "details"}


def test_every_error_that_is_described_has_an_example() -> None:
    for path, operations in description()["paths"].items():
        if not path.startswith("/api/"):
            continue
        for method, operation in operations.items():
            for status, described in operation["responses"].items():
                if int(status) >= 400:
                    content = described["content"]["application/json"]
                    assert content.get("examples") or content.get("example"), (method, path, status)


def test_the_errors_of_a_route_are_found_where_they_are_raised() -> None:
    """So that the test above can fail."""
    routes = {(min(each.methods), each.path_format): each.endpoint for each in api_routes()}
    errors = _all_errors()

    assert {"RunNotFound", "RunStateConflict", "RepositoryNotFound"} <= _raised(
        routes["POST", "/api/v1/runs/{run_id}/retry"], errors
    )
    assert {"RepositoryInactive", "IdempotencyKeyReused"} <= _raised(
        routes["POST", "/api/v1/repositories/{name}/sync"], errors
    )
    assert {"RepositoryChanged", "RepositoryReadOnly"} <= _raised(
        routes["PATCH", "/api/v1/repositories/{name}"], errors
    )

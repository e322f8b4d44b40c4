"""What can be done and asked, and by which front end: what one can do, the others can, or the table says why not."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from fastapi.routing import APIRoute

import reposync
from reposync import operations
from reposync.api.app import create_app
from reposync.cli.main import cli
from reposync.mcp.tools import TOOLS
from reposync.operations.core import NoArguments, Operation, Rule, operation
from reposync.operations.paths import PREFIX
from tests.integration.api.serving import parts_of


class Cells(NamedTuple):
    """The words of the command, and the tool. A text with spaces in place of a tool says why there is none."""

    command: str
    tool: str


PEOPLE = "a person decides it"
FOUND = "agents search and read"
TABLE = {
    "list_repositories": Cells("repos list", "list_repositories"),
    "get_repository": Cells("repos show", "list_repositories"),
    "register": Cells("repos add", PEOPLE),
    "put_repository": Cells("repos set", PEOPLE),
    "change": Cells("repos set", PEOPLE),
    "remove": Cells("repos remove", PEOPLE),
    "adopt": Cells("repos adopt", PEOPLE),
    "list_groups": Cells("groups list", "list_repositories"),
    "put_group": Cells("groups set", PEOPLE),
    "remove_group": Cells("groups remove", PEOPLE),
    "history": Cells("history", FOUND),
    "get_run": Cells("runs show", FOUND),
    "status": Cells("status", FOUND),
    "problems": Cells("runs show", FOUND),
    "changes": Cells("runs show", FOUND),
    "log_lines": Cells("runs show", FOUND),
    "cancel": Cells("runs cancel", PEOPLE),
    "approve": Cells("runs approve", PEOPLE),
    "retry": Cells("runs retry", "request_sync"),
    "retry_failed": Cells("sync", "request_sync"),
    "search": Cells("search", "search_code"),
    "search_text": Cells("search", "search_code"),
    "grep": Cells("grep", "grep_code"),
    "read": Cells("cat", "read_code"),
    "outline": Cells("cat", "read_code"),
    "evaluate": Cells("eval", PEOPLE),
    "evaluate_history": Cells("eval", PEOPLE),
    "evaluations": Cells("eval", PEOPLE),
    "found_secrets": Cells("secrets", PEOPLE),
    "repository_secrets": Cells("secrets", PEOPLE),
    "purge": Cells("secrets", PEOPLE),
    "access": Cells("access", "list_repositories"),
    "audit": Cells("audit", PEOPLE),
    "sync": Cells("sync", "request_sync"),
    "sync_target": Cells("sync", "request_sync"),
    "discover": Cells("sync", PEOPLE),
    "targets": Cells("sync", "list_repositories"),
    "plan": Cells("sync --plan", PEOPLE),
    "verify": Cells("verify", PEOPLE),
    "repair": Cells("verify --repair", PEOPLE),
    "leftovers": Cells("verify", PEOPLE),
    "remove_leftovers": Cells("verify --remove-unknown", PEOPLE),
    "wait": Cells("mcp", "wait_for_commit"),
    "indexes": Cells("index status", "list_repositories"),
    "repository_index": Cells("index status", "list_repositories"),
    "locks": Cells("locks list", PEOPLE),
    "release": Cells("locks release", PEOPLE),
    "workers": Cells("status", PEOPLE),
}
EXPENSIVE = {"plan", "targets", "verify", "leftovers", "found_secrets", "repository_secrets", "audit"}
"""They read a whole repository or index, or ask its source: not for everybody who may read."""
BY_ANOTHER = {"put_repository", "retry_failed", "outline", "sync", "wait", "workers"}
"""Their commands do it by a different operation, or leave it to the tools."""


def all_operations() -> Iterator[Operation[Any, Any]]:
    for module in pkgutil.iter_modules(operations.__path__):
        for value in vars(importlib.import_module(f"{operations.__name__}.{module.name}")).values():
            if isinstance(value, Operation):
                yield value


OPERATIONS = {operation.name: operation for operation in all_operations()}
ROUTES = {route.name: route for route in create_app(parts_of()).routes if isinstance(route, APIRoute)}
EACH = pytest.mark.parametrize("name", sorted(TABLE))


def test_the_table_has_every_operation() -> None:
    assert TABLE.keys() == OPERATIONS.keys()


@EACH
def test_each_has_a_route_of_its_own(name: str) -> None:
    operation, route = OPERATIONS[name], ROUTES[name]

    assert route.methods == {operation.method}
    assert route.path.replace(":path}", "}") == PREFIX + operation.path
    assert (operation.method == "GET") <= (operation.rule in (Rule.READ, Rule.READ_EVERYTHING) or name in EXPENSIVE)


@EACH
def test_each_has_a_command_that_performs_it(name: str) -> None:
    words = TABLE[name].command.split()
    command: click.Command | None = cli
    while isinstance(command, click.Group) and words:
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None and command.callback is not None

    options = [option for parameter in command.params for option in parameter.opts]
    assert set(words) <= set(options)
    module = inspect.getmodule(inspect.unwrap(command.callback))
    assert module is not None
    named = {node.attr for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Attribute)}
    assert name in BY_ANOTHER or name in named


@EACH
def test_each_has_a_tool_or_a_reason_why_not(name: str) -> None:
    tool = TABLE[name].tool
    assert " " in tool or tool in TOOLS


# Rules ---------------------------------------------------------------------------------------------------------------

WITHOUT_RULE = {"ask", "detail", "enqueue", "registered", "following"}
"""Steps of operations, which front ends do not call, and the context of a run that `following` finds by a rule."""


def test_nothing_can_be_made_an_operation_without_a_rule() -> None:
    with pytest.raises(TypeError, match="rule"):
        operation("GET", "/all", NoArguments, None)  # type: ignore[call-arg]


def test_everything_that_front_ends_call_has_a_rule() -> None:
    """A function of the application that reads as it is given would show everything to everybody."""
    for module in pkgutil.iter_modules(operations.__path__):
        for name, value in vars(importlib.import_module(f"{operations.__name__}.{module.name}")).items():
            if not inspect.isfunction(value) or value.__module__ != f"{operations.__name__}.{module.name}":
                continue
            takes_application = "app" in inspect.signature(value).parameters
            if takes_application and not name.startswith("_") and name not in WITHOUT_RULE:
                assert isinstance(getattr(value, "rule", None), Rule), f"{module.name}.{name}"


def test_front_ends_call_no_step_of_an_operation() -> None:
    for package in ("api", "mcp", "cli"):
        for path in (Path(reposync.__file__).parent / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("reposync.operations."):
                    assert not {each.name for each in node.names} & WITHOUT_RULE - {"following"}, path

"""What an error advises can be done as it is advised: as a command, as a request, and as the call of a tool."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import httpx
import pytest

import reposync
from reposync.api import advice as advice_over_http
from reposync.api.app import create_app
from reposync.cli.advice import advice as advice_at_a_terminal
from reposync.cli.advice import command_of
from reposync.cli.main import cli
from reposync.errors import UsageError
from reposync.mcp import advice as advice_for_agents
from reposync.mcp.tools import TOOLS
from reposync.next_steps import STEPS, NextStep, UpgradeDatabase, UseFixed, read_steps
from reposync.operations.core import Rule, read_arguments
from tests.integration.api.serving import parts_of

PACKAGE = Path(reposync.__file__).parent
TEXT, RUN = "platform/wait", "0190b1c2-0000-7000-8000-000000000000"
VALUES = {"str": [TEXT], "str | None": [None, TEXT], "bool": [False, True]}


def examples() -> Iterator[NextStep]:
    """Each step with every combination of values."""
    for kind in STEPS.values():
        values = [[RUN] if field.name == "run" else VALUES[str(field.type)] for field in fields(kind)]
        yield from (kind(*given) for given in itertools.product(*values))


EXAMPLES = pytest.mark.parametrize("step", list(examples()), ids=repr)


@EXAMPLES
def test_an_advised_command_is_one(step: NextStep) -> None:
    words = ["grep", "-F", "f("] if isinstance(step, UseFixed) else command_of(step)
    assert words is not None
    command: click.Command | None = cli
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None
    command.make_context(command.name, words)


@EXAMPLES
async def test_an_advised_request_is_understood(step: NextStep) -> None:
    request = advice_over_http.request_of(step)
    if isinstance(step, UseFixed):
        request = advice_over_http.Advised("GET", "/api/v1/grep?q=f(&fixed=true")
    if request is None:
        return
    transport = httpx.ASGITransport(create_app(parts_of()))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.request(request.method, request.path, json=request.body)
    # Its path and its arguments are right: it needs the database, and there is none.
    assert answer.json()["error"]["code"] == "STORE_UNAVAILABLE", answer.text


@EXAMPLES
@pytest.mark.parametrize("may_operate", [False, True])
def test_an_advised_tool_takes_the_arguments(step: NextStep, may_operate: bool) -> None:
    call = advice_for_agents.call_of(step, may_operate=may_operate)
    if isinstance(step, UseFixed):
        call = advice_for_agents.AdvisedCall("grep_code", {"q": "f(", "fixed": True})
    if call is not None:
        assert may_operate or TOOLS[call.tool].rule is Rule.READ
        read_arguments(TOOLS[call.tool].arguments, call.arguments)


@EXAMPLES
def test_programs_read_the_steps_of_an_error(step: NextStep) -> None:
    assert read_steps([step.document(), {"step": "OfANewerProgram"}]) == (step,)


def test_each_front_end_gives_the_advice_that_holds_there() -> None:
    error = UsageError("It failed.", remedy="Use a text.", next_steps=[UseFixed(), UpgradeDatabase()])

    lines = ["Use a text.", "With -F the pattern is a text.", "Next: reposync db upgrade"]
    assert advice_at_a_terminal(error) == lines
    assert "`fixed=true`" in advice_over_http.message(error)
    assert "The operator of this server" in advice_over_http.message(error)
    agents = advice_for_agents.message(error, may_operate=True)
    assert agents == "It failed. Use a text. With fixed=true the pattern is a text."


# Remedies -------------------------------------------------------------------------------------------------------------

ONE_FRONT_END = re.compile(r"(?<![\w-])--?[A-Za-z]|/api/|\b(GET|POST|PUT|PATCH|DELETE)\b|`reposync ")
# Their errors end a command or a run.
NOT_FOR_CLIENTS = ("api/server.py", "catalog/apply.py", "cli/", "runs/", "sources/", "store/sqlite.py", "sync/")


def remedies(module: str, tree: ast.AST) -> Iterator[tuple[str, int, str]]:
    """The literals of remedies."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "remedy":
            literals = (part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant))
            yield module, node.value.lineno, " ".join(text for text in literals if isinstance(text, str))


def test_a_remedy_names_no_command_option_or_route() -> None:
    modules = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    found = [
        remedy
        for name, path in modules.items()
        if not name.startswith(NOT_FOR_CLIENTS)
        for remedy in remedies(name, ast.parse(path.read_text()))
    ]
    assert len(found) > 40
    assert [remedy for remedy in found if ONE_FRONT_END.search(remedy[2])] == []

"""Agents read errors, too, and can follow their advice: a tool has no options, no routes and no shell."""

import ast
import re
from pathlib import Path

import pytest

import reposync
from reposync.errors import Remedy, UsageError
from reposync.mcp.tools import TOOLS

PACKAGE = Path(reposync.__file__).parent
UNUSABLE = re.compile(r"(?<![\w-])--?[A-Za-z]|/api/|\b(GET|POST|PUT|PATCH|DELETE)\b|`reposync ")
PARAMETERS = {name for arguments, _ in TOOLS.values() for name in arguments.model_fields}

# Their errors end a command or a run; what a source answers to `wait_for_commit` is quoted without its remedy.
NOT_FOR_AGENTS = ("api/server.py", "catalog/apply.py", "cli/", "runs/", "sources/", "store/sqlite.py", "sync/")


def text(node: ast.AST) -> str:
    """Its literals; `NAME` in place of each value."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.FormattedValue):
        return "NAME"
    return ("" if isinstance(node, ast.JoinedStr) else " ").join(map(text, ast.iter_child_nodes(node)))


def is_remedy(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Remedy"


def for_agents(module: str, tree: ast.AST) -> list[tuple[str, int, str]]:
    """The remedies of a module as agents read them: plain ones, also by way of a variable, and the form for tools."""
    found: list[tuple[str, int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and is_remedy(node):
            tools = [*node.args[2:], *(each.value for each in node.keywords if each.arg == "tool")]
            found += [(module, each.lineno, text(each)) for each in tools]
        elif isinstance(node, ast.keyword) and node.arg == "remedy" and not module.startswith(NOT_FOR_AGENTS):
            found += plain(module, node.value)
        elif isinstance(node, ast.Assign) and not module.startswith(NOT_FOR_AGENTS):
            names = [each.id.casefold() for each in node.targets if isinstance(each, ast.Name)]
            found += plain(module, node.value) if any("remedy" in each for each in names) else []
    return found


def plain(module: str, node: ast.expr) -> list[tuple[str, int, str]]:
    if isinstance(node, ast.IfExp):
        return plain(module, node.body) + plain(module, node.orelse)
    return [] if is_remedy(node) else [(module, node.lineno, text(node))]


REMEDIES = [
    each
    for path in sorted(PACKAGE.rglob("*.py"))
    for each in for_agents(path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text()))
]


def test_no_advice_for_agents_names_a_command_an_option_or_a_route():
    assert len(REMEDIES) > 40
    assert not [each for each in REMEDIES if UNUSABLE.search(each[2])]


def test_every_argument_in_advice_for_agents_is_one_of_a_tool():
    named = [(*place, name) for *place, advice in REMEDIES for name in re.findall(r"(\w+)=(?:true|false|\w+)", advice)]
    assert any(name == "fixed" for *_, name in named)
    assert {name for *_, name in named} <= PARAMETERS, named


@pytest.mark.parametrize(
    ("remedy", "read"),
    [
        (Remedy("`reposync sync`.", "`POST /sync`."), "It failed."),
        (Remedy("-F does.", "fixed=true does.", tool="fixed=true does."), "It failed. fixed=true does."),
        ("Give a name.", "It failed. Give a name."),
        (None, "It failed."),
    ],
)
def test_agents_read_the_advice_that_is_for_them_or_none(remedy: Remedy | str | None, read: str):
    error = UsageError("It failed.", remedy=remedy)
    error.redact(str.upper)
    assert error.for_agents == read.upper()

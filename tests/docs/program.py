"""What the program has, to be compared with what its documentation says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import click

from reposync.cli.main import COMMANDS, cli
from tests.docs.pages import ROOT

NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
SOURCES = (
    "reposync/**/*.py",
    "tests/**/*.py",
    "benchmarks/**/*.py",
    "helm/**/*",
    "Dockerfile",
    "compose.yaml",
    "Makefile",
)
# Literals that look like the name of a variable or of an error, and are neither, or are nobody's business.
# The names of its own errors, which no user sees.
OF_SQLITE = "SQLITE_"
NOT_FOR_READERS = {
    "CERTIFICATE_VERIFY_FAILED": "OpenSSL's word",
    "LC_ALL": "handed on to the engine's process",
    "LD_LIBRARY_PATH": "handed on to the engine's process",
    "MALLOC_ARENA_MAX": "set, not read",
    "ORT_DISABLE_TELEMETRY": "set, not read",
    "RUN_KEYS": "a name of Python's",
    "VIRTUAL_ENV": "handed on to the engine's process",
}


def complaint(words: Sequence[str], *, complete: bool) -> str | None:
    """What is wrong with `reposync ...`, as the program itself would say it; None also where it is not called.

    `complete`: nothing may be missing. In a container (`kubectl exec ... -- reposync history`) it is called by others.
    """
    calls = [
        at
        for at, word in enumerate(words)
        if word == "reposync" and (at == 0 or words[at - 1] == "--" or "".join(words[at + 1 : at + 2]) in COMMANDS)
    ]
    if not calls:
        return None
    words = words[calls[-1] :]
    command: click.Command = cli
    context = click.Context(cli, info_name="reposync")
    rest = list(words[1:])
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        if found is None:
            return f"there is no command {' '.join(words[: len(words) - len(rest) + 1])!r}"
        command, context = found, click.Context(found, parent=context, info_name=rest[0])
        rest = rest[1:]
    if isinstance(command, click.Group):
        rest = [word for word in rest if word not in ("-h", "--help", "--version")]
        return f"{' '.join(words)!r} does nothing" if complete or rest else None
    try:
        values, beyond, _ = command.make_parser(context).parse_args([word for word in rest if word != "--help"])
        if beyond:
            return f"{beyond[0]!r} is too much"
        for parameter in command.params:
            given = values.get(parameter.name or "")
            if isinstance(parameter.type, click.Choice | click.IntRange) and isinstance(given, str):
                parameter.type_cast_value(context, given)
            # What was not given is a mark of click's own.
            is_given = isinstance(given, str) or (isinstance(given, tuple | list) and bool(given))
            if complete and parameter.required and "--help" not in rest and not is_given:
                return f"{parameter.human_readable_name} is missing"
    except click.ClickException as error:
        return error.format_message()
    return None


@cache
def options() -> frozenset[str]:
    """Every option of every command."""

    def of(command: click.Command) -> Iterator[str]:
        yield from (name for each in command.params if isinstance(each, click.Option) for name in each.opts)
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                found = command.get_command(click.Context(command), name)
                assert found is not None
                yield from of(found)

    return frozenset(of(cli)) | {"--help", "-h", "--version"}


@cache
def names() -> dict[str, str]:
    """Environment variables and error codes in the program's text, and where each stands."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "reposync").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
                found.setdefault(node.value, f"{path.relative_to(ROOT)}:{node.lineno}")
    return {name: place for name, place in found.items() if not (name in NOT_FOR_READERS or name.startswith(OF_SQLITE))}


@cache
def text() -> str:
    """The text of the program, of its tests and of what ships it."""
    files = {path for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file()}
    ours = Path(__file__).resolve().parent
    return "\n".join(path.read_text(errors="replace") for path in sorted(files) if ours not in path.parents)

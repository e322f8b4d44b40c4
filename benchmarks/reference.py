"""The tables of docs/reference.md, from the program itself: commands, keys, routes, metrics. And what docs/errors.md
says about the meaning of each error code.

    python -m benchmarks.reference            # writes them anew, between their marks
    python -m benchmarks.reference --check    # writes nothing; exit code 1 where they are out of date

The text between `<!-- begin NAME -->` and `<!-- end NAME -->` is generated here, and the first two cells of an error
code; the rest of both pages is written by hand.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from prometheus_client.parser import text_string_to_metric_families

import reposync
from reposync.api.app import ApiParts, create_app
from reposync.api.auth import Access
from reposync.cli.main import cli
from reposync.config.schema import registry_schema
from reposync.content.model import Skip
from reposync.errors import RepoSyncError, error_classes
from reposync.telemetry.health import Health
from reposync.telemetry.metrics import COUNTERS, GAUGES, HISTOGRAMS, Metrics

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
ERRORS = PAGE.with_name("errors.md")
OF_A_PROCESS = ("process_", "python_")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    for page, fill in ((PAGE, filled), (ERRORS, filled_errors)):
        present, new = page.read_text(), fill(page.read_text())
        if options.check and new != present:
            sys.exit(f"docs/{page.name} is out of date: make reference")
        page.write_text(new)


def filled(page: str) -> str:
    """`page` with every table as the program has it now."""
    for name, make in TABLES.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        head, found, rest = page.partition(begin)
        if not found or end not in rest:
            raise SystemExit(f"{PAGE}: the marks of the table {name!r} are missing")
        page = head + begin + "\n" + "\n".join(make()) + "\n\n" + end + rest.partition(end)[2]
    return page


# Commands ----------------------------------------------------------------------------------------------------------


def commands(group: click.Command = cli, words: tuple[str, ...] = ("reposync",)) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with the words that call it."""
    if not isinstance(group, click.Group):
        yield " ".join(words), group
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None, name
        yield from commands(found, (*words, name))


def command_table() -> Iterator[str]:
    yield from _head("command", "", "options")
    for words, command in commands():
        arguments = [
            each.make_metavar(click.Context(command)) for each in command.params if isinstance(each, click.Argument)
        ]
        options = [
            _option(each, command)
            for each in command.params
            if isinstance(each, click.Option) and "--color" not in each.opts  # every command has it
        ]
        yield _row(_code(" ".join([words, *arguments])), _sentence(command.help or ""), "<br>".join(options))


def _option(option: click.Option, command: click.Command) -> str:
    metavar = "N" if isinstance(option.type, click.IntRange) else option.make_metavar(click.Context(command))
    value = "" if option.is_flag else f" {metavar}"
    default = f" ({option.default})" if option.show_default and option.default is not None else ""
    return f"{_code(option.opts[0] + value)} {option.help or ''}{default}".rstrip()


# The registry file -------------------------------------------------------------------------------------------------


def key_table() -> Iterator[str]:
    schema = json.loads(registry_schema())
    yield from _head("key", "", "", "default")
    for section, entry in schema["properties"].items():
        yield from _keys(schema, section, entry)


def _keys(schema: dict[str, Any], way: str, entry: dict[str, Any]) -> Iterator[str]:
    choices = [each for each in entry.get("anyOf", [entry]) if each.get("type") != "null"]
    for each in choices:
        inner = each.get("items", each)
        if "$ref" not in inner:
            continue
        section = schema["$defs"][inner["$ref"].rpartition("/")[2]]
        way += "[]" if "items" in each else ""
        for key, below in section["properties"].items():
            yield from _keys(schema, f"{way}.{key}", below)
        return
    about = entry.get("description") or _inherited(schema, way)
    # Every value may be written as "${VARIABLE}", and the page says so once.
    kinds = [_kind(each) for each in choices if each.get("pattern") != r"\$\{"]
    default = entry.get("default")
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    shown = "" if default is None else _code(json.dumps(default))
    yield _row(_code(way), about, " or ".join(dict.fromkeys(kinds)), shown)


def _inherited(schema: dict[str, Any], way: str) -> str:
    section, _, key = way.partition("[].")
    name = key.rpartition(".")[2]
    if section in ("repositories", "groups") and name in (
        *schema["$defs"]["Defaults"]["properties"],
        "size",
        "overlap",
    ):
        return f"In place of `defaults.{key}`."
    return ""


def _kind(entry: dict[str, Any]) -> str:
    if "enum" in entry:
        return ", ".join(map(_code, entry["enum"]))
    if "const" in entry:
        return _code(entry["const"])
    if entry.get("type") == "array":
        return f"list of {_kind(entry['items'])}"
    bounds = [
        f"{sign} {entry[name]:,.12g}"
        for name, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if name in entry
    ]
    name = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}[entry["type"]]
    return f"{'secret' if entry.get('format') == 'password' else name} {', '.join(bounds)}".strip()


# HTTP --------------------------------------------------------------------------------------------------------------


def description() -> dict[str, Any]:
    """The OpenAPI document that a running daemon answers with."""

    async def nothing() -> None: ...

    def unused() -> Any:
        raise AssertionError("describing the routes uses nothing of the application")

    metrics = Metrics(version=reposync.__version__)
    return create_app(ApiParts(Health(), metrics, nothing, reposync.__version__, unused, Access(()))).openapi()


def route_table() -> Iterator[str]:
    yield "Any route may also answer with an [error](errors.md)."
    yield ""
    yield from _head("route", "", "parameters", "answers")
    for path, methods in description()["paths"].items():
        for method, entry in methods.items():
            parameters = [each["name"] for each in entry.get("parameters", []) if each["in"] == "query"]
            yield _row(
                _code(f"{method.upper()} {path}"),
                entry.get("summary", ""),
                ", ".join(map(_code, parameters)),
                ", ".join(sorted(each for each in entry["responses"] if "X" not in each)),
            )


# Metrics -----------------------------------------------------------------------------------------------------------


def metric_table() -> Iterator[str]:
    yield from _head("metric", "labels", "", "")
    for name, labels, kind, text in metrics():
        yield _row(_code(name), ", ".join(map(_code, labels)), kind, text)


def metrics() -> Iterator[tuple[str, list[str], str, str]]:
    """Name, labels, kind and help of every metric of this program, counted once so that each has its labels."""
    found = Metrics(version=reposync.__version__)
    for name, (_, labels) in COUNTERS.items():
        found.count(name, *("any" for _ in labels))
    for name, (_, _, labels) in HISTOGRAMS.items():
        found.observe(name, 1.0, *("any" for _ in labels))
    for name, (_, labels) in GAUGES.items():
        found.show(name, {tuple("any" for _ in labels): 1})
    for family in text_string_to_metric_families(found.render()[0].decode()):
        if family.name.startswith(OF_A_PROCESS):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        yield name, sorted(labels), family.type, family.documentation


# Error codes -------------------------------------------------------------------------------------------------------


_ERROR_ROW = re.compile(r'^\| <a id="\w+"></a>`(?P<code>\w+)`.*? \| (?P<cause>.*) \| (?P<remedy>.*) \|$', re.MULTILINE)


def filled_errors(page: str) -> str:
    """`page` with a row for each code, in the table that it is in; what to do about it is written by hand. One that no
    table has is added to the last."""
    known = errors()

    def row(found: re.Match[str]) -> str:
        code = found["code"]
        return _error_row(code, known[code], found["remedy"]) if code in known else found[0]

    rest = [code for code in known if code not in remedies(page)]
    return _ERROR_ROW.sub(row, page) + "".join(f"{_error_row(code, known[code], '')}\n" for code in rest)


def remedies(page: str) -> dict[str, str]:
    """What to do, by code."""
    return {found["code"]: found["remedy"] for found in _ERROR_ROW.finditer(page)}


def _error_row(code: str, error: type[RepoSyncError], remedy: str) -> str:
    again = ", retried" if error.retryable else ""
    facts = f"{error.status}, {error.exit_code}{again}"
    return _row(f'<a id="{code.lower()}"></a>{_code(code)}<br>{facts}', error.__doc__ or "", remedy)


def errors() -> dict[str, type[RepoSyncError]]:
    """Every code that belongs to an error of its own, and that error."""
    for module in pkgutil.walk_packages(reposync.__path__, "reposync."):
        if not module.name.endswith("__main__") and ".migrations." not in module.name:
            importlib.import_module(module.name)
    return {code: error for code, error in error_classes().items() if "code" in vars(error)}


# Skipped files -----------------------------------------------------------------------------------------------------


def skip_list() -> Iterator[str]:
    yield textwrap.fill(", ".join(_code(each.value) for each in Skip), 120)


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "commands": command_table,
    "keys": key_table,
    "routes": route_table,
    "metrics": metric_table,
    "skips": skip_list,
}


def _head(*titles: str) -> Iterator[str]:
    yield _row(*titles)
    yield "|" + "---|" * len(titles)


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def _code(text: str) -> str:
    return f"`{text}`"


def _sentence(text: str) -> str:
    """The first one."""
    return re.split(r"(?<=\.)\s|\n\n", " ".join(text.split("\n\n")[0].split()))[0]


if __name__ == "__main__":
    main()

"""`reposync cat`: the indexed text of a file."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from typing import Any

import click

from reposync.cli.commands import prints, run_with_app, settings
from reposync.cli.output import Result
from reposync.cli.running_daemon import ask_daemon
from reposync.words import escape_unprintable, file_address

JSON_KEYS = (
    *("repository", "path", "commit", "language", "url", "start_line", "end_line", "total_lines", "outdated"),
    *("is_notebook", "text", "symbols"),
)
_LINES = re.compile(r"([1-9]\d{0,8})(-([1-9]\d{0,8})?)?")
_NOT_LINE_ENDS = re.compile(r"(?:(?!\r?\n)[^\t])+")


class _Lines(click.ParamType[tuple[int, int | None]]):
    name = "lines"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int | None]:
        match = _LINES.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is neither START-END, nor START- for all that follow, nor a line.", param, ctx)
        start = int(match[1])
        return start, int(match[3]) if match[3] else None if match[2] else start


@click.command()
@click.argument("repository")
@click.argument("path")
@click.option("--lines", metavar="START-END", type=_Lines(), help="Only these lines: 10-20, 10- or 10.")
@prints
def cat(repository: str, path: str, lines: tuple[int, int | None] | None) -> Result:
    """Print the file at PATH in REPOSITORY as it is indexed: of the commit that searches answer from.

    The text is exact, in UTF-8. On a terminal control characters are escaped.
    """
    from reposync.search.reading import read_file

    start, end = lines or (None, None)
    file = ask_daemon(settings(), f"/api/v1{file_address(repository, path)}", {"start": start, "end": end})
    if file is None:
        file = asdict(run_with_app(lambda app: read_file(app, repository, path, start, end), with_engine=True))
    text: str = file["text"]
    if sys.stdout.isatty():
        text = _NOT_LINE_ENDS.sub(lambda found: escape_unprintable(found[0]), text)
    hint = "These are the cells of the notebook." if file["is_notebook"] else None
    if file["outdated"]:
        hint = "This text is older than the commit: the newer version of the file could not be read."
    return Result({key: file[key] for key in JSON_KEYS}, [text.encode()], hint)

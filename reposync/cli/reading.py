"""`reposync grep` and `reposync cat`: lines of all indexed files, and the indexed text of one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from reposync.cli.commands import prints, run_with_app, settings
from reposync.cli.output import Result
from reposync.cli.running_daemon import ask_daemon
from reposync.words import escape_unprintable, file_address, visible

GREP_KEYS = ("items", "is_complete", "stopped", "files_searched")
FILE_KEYS = (
    *("repository", "path", "commit", "language", "url", "start_line", "end_line", "total_lines", "outdated"),
    *("is_notebook", "text", "symbols"),
)
_LINES = re.compile(r"([1-9]\d{0,8})(-([1-9]\d{0,8})?)?")


@click.command()
@click.argument("pattern")
@click.option(
    "--repository",
    "repositories",
    metavar="NAME",
    multiple=True,
    help="Only in this repository; repeat it for several.",
)
@click.option(
    "--path", "path_glob", metavar="GLOB", help="Only files that match this gitignore pattern: 'src/**/*.py'."
)
@click.option("--language", metavar="NAME", help="Only in this language: python, go, markdown ...")
@click.option("-F", "--fixed-strings", "fixed", is_flag=True, help="PATTERN is a text, not a regular expression.")
@click.option("-i", "--ignore-case", is_flag=True, help="Upper and lower case match each other.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Maximum number of lines.")
@prints
def grep(
    pattern: str, repositories: tuple[str, ...], path_glob: str | None, fixed: bool, ignore_case: bool, **filters: Any
) -> Result:
    """Print the lines of indexed files that match PATTERN, a regular expression in RE2's syntax.

    Every line is printed with its repository, path and number. The exit code is 0 also if nothing matches.
    """
    flags = {"fixed": fixed, "ignore_case": ignore_case}
    query = {"pattern": pattern, "repository": repositories, "path": path_glob, **filters}
    found = ask_daemon(settings(), "/api/v1/grep", query | {name: "true" for name in flags if flags[name]})
    if found is None:
        from reposync.search.grep import grep as search

        given: dict[str, Any] = {"repositories": repositories, "path_glob": path_glob, **filters, **flags}
        done = run_with_app(lambda app: search(app, pattern, **given), with_engine=True)
        found = {**asdict(done), "items": [asdict(each) for each in done.files], "is_complete": done.is_complete}
    hint = found["stopped"] or (None if found["items"] else "Nothing found.")
    return Result({key: found[key] for key in GREP_KEYS}, _lines(found["items"]), hint)


def _lines(files: list[dict[str, Any]]) -> Iterator[str]:
    """As ripgrep prints them. Coloured on a terminal only."""
    for file in files:
        place = f"{escape_unprintable(file['repository'])}:{escape_unprintable(file['path'])}"
        for match in file["matches"]:
            for number, text in enumerate(match["text"].split("\n"), match["line"]):
                shown = "\t".join(map(escape_unprintable, text.split("\t")))
                yield f"{click.style(f'{place}:{number}:', fg='cyan')} {shown}"


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
        text = visible(text)
    hint = "These are the cells of the notebook." if file["is_notebook"] else None
    if file["outdated"]:
        hint = "This text is older than the commit: the newer version of the file could not be read."
    return Result({key: file[key] for key in FILE_KEYS}, [text.encode()], hint)

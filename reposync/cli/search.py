"""`reposync search`, `grep` and `cat`."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from reposync import operations
from reposync.cli.completion import repository_names
from reposync.cli.output import Result, is_json
from reposync.cli.performing import Performer, performs
from reposync.cli.remote import server_option
from reposync.cli.results import Places, hit_lines, matching_lines
from reposync.errors import RepoSyncError
from reposync.words import escape_unprintable, visible

if TYPE_CHECKING:
    from reposync.search.pattern import Pattern

_LINES = re.compile(r"([1-9]\d{0,8})(-([1-9]\d{0,8})?)?")
MAX_RESULTS = 100
_LONG_CHARS = 600
_RESULTS = 5

repository_option = click.option(
    "--repository",
    metavar="NAME",
    multiple=True,
    shell_complete=repository_names,
    help="Only in this repository; repeat it for several.",
)
path_option = click.option(
    "--path", metavar="GLOB", help="Only files that match this gitignore pattern: 'src/**/*.py'."
)
context_option = click.option(
    "-C",
    "--context",
    metavar="N",
    type=click.IntRange(0, 100),
    default=0,
    show_default=True,
    help="Show N more lines above and below.",
)
language_option = click.option("--language", metavar="NAME", help="Only in this language: python, go, markdown ...")


@click.command()
@click.argument("query", nargs=-1)
@click.option(
    "--or", "others", metavar="QUERY", multiple=True, help="A further phrasing of QUERY, ranked together; repeatable."
)
@repository_option
@path_option
@language_option
@click.option("--symbol", metavar="NAME", help="Only chunks that define this name; also symbol:NAME in QUERY.")
@click.option(
    "--kind", metavar="KIND", help="Only chunks that define one of this kind: function, class ...; also kind:KIND."
)
@click.option("--like", metavar="PATH:LINE", help="In place of QUERY: code like that at this line of an indexed file.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_RESULTS),
    help="Maximum number of results; default: 5, of usages:NAME 200 lines.",
)
@context_option
@click.option("--explain", is_flag=True, help="Show what the score of each result is made of.")
@server_option
@performs
def search(
    perform: Performer,
    /,
    query: tuple[str, ...],
    others: tuple[str, ...],
    limit: int | None,
    explain: bool,
    context: int,
    **filters: Any,
) -> Result:
    """Search the indexed code for QUERY: words that describe the code, or identifiers in it.

    usages:NAME in place of words finds the lines that call a name, as `grep --kind call` does.

    Filters in QUERY or in a further phrasing (lang:go) count for all. QUERY may be a pasted traceback, compiler output
    or issue of up to 20,000 characters; `-` reads it from the standard input.
    """
    text = sys.stdin.read(operations.search.MAX_PASTE_CHARS + 1) if query == ("-",) else " ".join(query)
    asked = {"q": [*([text] if query else []), *others], **filters}
    if limit is not None or "usages:" not in text:
        asked["limit"] = limit = limit or _RESULTS
    # An address has at most 8,192 bytes, and a character takes up to 12 of them.
    is_long = sum(map(len, asked["q"])) > _LONG_CHARS
    found = perform(operations.search.search_text if is_long else operations.search.search, asked)
    if found.usages is not None:
        from reposync.search.pattern import Pattern

        return _lines(perform, found, found.usages, Pattern.of_name(found.words), context)
    more = (
        f"--limit {min(2 * limit, MAX_RESULTS)} shows more."
        if limit and len(found.items) == limit < MAX_RESULTS
        else None
    )
    places = Places(perform, (hit.repository for hit in found.items))
    lines = hit_lines(found, places, explain=explain, context=context)
    hints = [found.used and escape_unprintable(found.used), _missing(found.missing)]
    hints += [more] if sys.stdout.isatty() and not any(hints) else []
    return Result(found, lines, "\n".join(filter(None, hints)) or None)


@click.command()
@click.argument("pattern")
@repository_option
@path_option
@language_option
@click.option("-F", "--fixed-strings", "fixed", is_flag=True, help="PATTERN is a text, not a regular expression.")
@click.option("-i", "--ignore-case", is_flag=True, help="Upper and lower case match each other.")
@click.option(
    "--kind", type=click.Choice(["call"]), help="call: PATTERN is a name, and lines that call it are printed."
)
@click.option(
    "--limit", type=click.IntRange(1, 1_000), help="Maximum number of lines; default: 100, of --kind call 200."
)
@context_option
@server_option
@performs
def grep(perform: Performer, /, pattern: str, context: int, **filters: Any) -> Result:
    """Print the lines of indexed files that match PATTERN, a regular expression in RE2's syntax.

    Every line is printed with its repository, path and number; on a terminal below the name of its repository. The exit
    code is 0 also if nothing matches.
    """
    from reposync.search.pattern import Pattern
    from reposync.search.query import plain_name

    found = perform(operations.search.grep, {"q": pattern, **filters})
    if filters["kind"] is None:
        compiled = Pattern(pattern, fixed=filters["fixed"], ignore_case=filters["ignore_case"])
    else:
        compiled = Pattern.of_name(plain_name(pattern, "usages"))
    return _lines(perform, found, found, compiled, context)


def _lines(
    perform: Performer, document: Any, found: operations.search.MatchingFiles, pattern: Pattern, context: int
) -> Result:
    hint = found.stopped or _missing(found.missing) or (None if found.items else "Nothing found.")
    around = [_around(perform, file, context) if context and not is_json() else {} for file in found.items]
    places = Places(perform, (file.repository for file in found.items))
    return Result(document, matching_lines(found.items, pattern, places, around), hint)


def _missing(missing: operations.search.Missing | None) -> str | None:
    return None if missing is None or missing.reason == "no_match" else escape_unprintable(missing.message)


def _around(perform: Performer, file: operations.search.MatchingFile, context: int) -> dict[int, str]:
    """The lines of the file that are at most `context` lines from a match, by number; none if it has changed since."""
    shown = {at for match in file.matches for at in range(match.line - context, match.end_line + context + 1) if at > 0}
    span = {"start": min(shown), "end": max(shown)}
    try:
        found = perform(operations.search.read, span, name=file.repository, path=file.path)
    except RepoSyncError:
        return {}
    lines = found.text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    return {at: text for at, text in enumerate(lines, found.start_line) if at in shown}


class _Lines(click.ParamType[tuple[int, int | None]]):
    name = "lines"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int | None]:
        match = _LINES.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is neither START-END, nor START- for all that follow, nor a line.", param, ctx)
        start = int(match[1])
        return start, int(match[3]) if match[3] else None if match[2] else start


@click.command()
@click.argument("repository", shell_complete=repository_names)
@click.argument("path")
@click.option("--lines", metavar="START-END", type=_Lines(), help="Only these lines: 10-20, 10- or 10.")
@server_option
@performs
def cat(perform: Performer, repository: str, path: str, lines: tuple[int, int | None] | None) -> Result:
    """Print the file at PATH in REPOSITORY as it is indexed: of the commit that searches answer from.

    The text is exact, in UTF-8. On a terminal control characters are escaped.
    """
    start, end = lines or (None, None)
    file = perform(operations.search.read, {"start": start, "end": end}, name=repository, path=path)
    text = visible(file.text) if sys.stdout.isatty() else file.text
    hint = "These are the cells of the notebook." if file.is_notebook else None
    if file.outdated:
        hint = "This text is older than the commit: the newer version of the file could not be read."
    return Result(file, [text.encode()], hint)

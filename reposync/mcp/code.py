"""The tools that show code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reposync.mcp.calls import Caller, Outcome, without_nothing
from reposync.mcp.schemas import GrepCode, ReadCode, SearchCode
from reposync.words import escape_unprintable, visible

if TYPE_CHECKING:
    from reposync.search.answers import Answer

MOST_CHARS: Final = 40_000
"""Of a file in one answer: 11,000 tokens. Agents limit what they accept of a tool; Claude Code does at 25,000."""


async def search_code(caller: Caller, asked: SearchCode) -> Outcome:
    from reposync.search.answers import DEPTH, Indexed, answer
    from reposync.supervision import in_thread

    app = await caller.application()

    async def work() -> Answer:
        hits = await app.searching.search(
            asked.query,
            repository=asked.repositories,
            path_glob=asked.path or None,
            language=asked.language or None,
            like=asked.like or None,
            limit=DEPTH,
        )
        words = await app.searching.words(asked.query, repository=asked.repositories, like=asked.like or None)
        rows = await app.repositories.list({hit.repository for hit in hits}) if hits else []
        indexed = {row.name: Indexed(row.last_commit, row.last_sync_at) for row in rows}
        now = app.database.clock.now()
        # Milliseconds of computing, in which other requests are answered.
        return await in_thread(
            lambda: answer(hits, words, max_tokens=asked.max_tokens, max_files=asked.limit, indexed=indexed, now=now)
        )

    found = await caller.searches.search(work)
    return Outcome(found.text, found.structure)


async def grep_code(caller: Caller, asked: GrepCode) -> Outcome:
    from reposync.search.answers import delimited, new_boundary
    from reposync.search.grep import grep

    app = await caller.application()
    found = await caller.greps.search(
        lambda: grep(
            app,
            asked.pattern,
            repositories=asked.repositories,
            path_glob=asked.path or None,
            ignore_case=asked.ignore_case,
            limit=asked.limit,
        )
    )
    lines, files = [], []
    for file in found.files:
        repository, path = escape_unprintable(file.repository), escape_unprintable(file.path)
        outdated = " (older than the commit: could not be read)" if file.outdated else ""
        lines.append(f"{repository} {path} at {escape_unprintable(file.commit)[:12]}{outdated}")
        shown = [(each, visible(each.text).removesuffix("\n")) for each in file.matches]
        for match, text in shown:
            first, *others = text.split("\n")
            lines += [f" {match.line}: {first}", *(f"   {other}" for other in others)]
        url = file.matches[0].url
        known = without_nothing(
            commit=escape_unprintable(file.commit),
            # Once for all lines: models pay for each character.
            url=url and escape_unprintable(url.partition("#")[0]),
            outdated=file.outdated or None,
        )
        matches = [{"line": match.line, "text": text} for match, text in shown]
        files.append({"repository": repository, "path": path, **known, "matches": matches})
    lines = lines or ["No line matches."]
    lines += [f"There may be more: {found.stopped}"] if found.stopped else []
    return Outcome(delimited("\n".join(lines), new_boundary()), without_nothing(files=files, stopped=found.stopped))


async def read_code(caller: Caller, asked: ReadCode) -> Outcome:
    from reposync.search.answers import delimited, new_boundary
    from reposync.search.reading import read_file

    app = await caller.application()
    file = await read_file(app, asked.repository, asked.path, asked.start, asked.end)
    text, end = _beginning(file.text, file.start_line, file.end_line)
    shown = visible(text)
    path, lines = escape_unprintable(file.path), shown.removesuffix("\n").split("\n")
    about = f"{escape_unprintable(file.repository)} {path}:{file.start_line}-{end} of {file.total_lines:,} lines"
    parts = [
        f"{about} at {escape_unprintable(file.commit)[:12]}",
        "older than the commit: could not be read" if file.outdated else "",
        "text of the cells of a notebook" if file.is_notebook else "",
        f"read on with start={end + 1}" if end < file.end_line else "",
    ]
    width = len(str(end))
    # The lines of a notebook are not those of its text.
    numbers = (
        [""] * len(lines) if file.is_notebook else [f"{file.start_line + each:>{width}}" for each in range(len(lines))]
    )
    body = [", ".join(filter(None, parts)), *(f" {number} {line}" for number, line in zip(numbers, lines, strict=True))]
    return Outcome(
        delimited("\n".join(body), new_boundary()),
        without_nothing(
            repository=escape_unprintable(file.repository),
            path=path,
            commit=escape_unprintable(file.commit),
            start_line=file.start_line,
            end_line=end,
            total_lines=file.total_lines,
            url=file.url and escape_unprintable(file.url),
            outdated=file.outdated or None,
            text=shown,
        ),
    )


def _beginning(text: str, start: int, end: int) -> tuple[str, int]:
    """As many whole lines as fit, and the number of the last one; a part of the first one if it is longer."""
    if len(text) <= MOST_CHARS:
        return text, end
    cut = text.rfind("\n", 0, MOST_CHARS) + 1
    if not cut:
        return f"{text[:MOST_CHARS]}…\n", start
    return text[:cut], start + text.count("\n", 0, cut) - 1

"""What the tools do. Each answers with a text and with the same as a structure: Gemini CLI 0.61 gives its model the
text, Claude Code 2.1 and Codex 0.169 give theirs the structure.

Names, paths and contents are written by whoever may push to a repository. In texts they are between two lines with a
boundary that is drawn for each answer, and no line of a file begins like one of ours; control characters are visible
everywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from reposync.mcp.schemas import Arguments, GrepCode, ListRepositories, ReadCode, SearchCode, WaitForCommit
from reposync.words import ago, escape_unprintable, until, visible

# A client waits for this module when it starts the server: what works is imported with the first call.
if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.app.commit_wait import SearchableCommits
    from reposync.catalog.overview import Overview
    from reposync.search.answers import Answer

MAX_LISTED: Final = 50
_COMMIT_CHARS: Final = 12
MOST_CHARS: Final = 40_000
"""Of a file in one answer: 11,000 tokens. Agents limit what they accept of a tool; Claude Code does at 25,000."""

Limit = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Returns the result of what it is given, when its turn has come."""


@dataclass(frozen=True, slots=True)
class Caller:
    """`searches`, `greps`: limit how many there are at a time. `is_wanted`: whether somebody still waits. `client`:
    whose share of the waits it takes."""

    application: Callable[[], Awaitable[Application]]
    commits: SearchableCommits
    searches: Limit
    greps: Limit
    is_wanted: Callable[[], Awaitable[bool]]
    client: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The same as a text and as JSON."""

    text: str
    structure: Mapping[str, Any]


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

    found = await caller.searches(work)
    return Outcome(found.text, found.structure)


async def grep_code(caller: Caller, asked: GrepCode) -> Outcome:
    from reposync.search.answers import delimited, new_boundary
    from reposync.search.grep import grep

    app = await caller.application()
    found = await caller.greps(
        lambda: grep(
            app,
            asked.pattern,
            repositories=asked.repositories,
            path_glob=asked.path or None,
            fixed=asked.fixed,
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


async def list_repositories(caller: Caller, asked: ListRepositories) -> Outcome:
    from reposync.catalog.overview import overviews
    from reposync.search.answers import delimited, new_boundary

    app = await caller.application()
    part = asked.name.casefold()
    names = sorted(each.name for each in await app.repositories.states() if part in each.name.casefold())
    shown = await overviews(app.repositories, app.manifests, app.history, names[:MAX_LISTED]) if names else []
    now = app.database.clock.now()
    more = len(names) - len(shown)
    lines = [_repository_line(each, now) for each in shown] or ["No repository has such a name."]
    lines += [f"and {more:,} more: ask with a part of the name"] if more > 0 else []
    return Outcome(
        delimited("\n".join(lines), new_boundary()),
        {
            "repositories": [
                without_nothing(
                    name=escape_unprintable(each.name),
                    state=each.state,
                    last_commit=each.last_commit,
                    last_sync_at=time_text(each.last_sync_at),
                    age=each.last_sync_at and ago(each.last_sync_at, now),
                    next_sync_at=time_text(each.next_due_at),
                    problem=_problem(each),
                )
                for each in shown
            ],
            "more": max(0, more),
        },
    )


def _repository_line(each: Overview, now: datetime) -> str:
    holds = f"at {each.last_commit[:_COMMIT_CHARS]}, indexed {ago(each.last_sync_at, now)}" if each.last_commit else ""
    parts = [
        f"{escape_unprintable(each.name)} {holds or 'not indexed yet'}",
        each.state,
        f"next sync {until(each.next_due_at, now)}" if each.next_due_at else "",
        _problem(each) or "",
    ]
    return ", ".join(filter(None, parts))


def _problem(each: Overview) -> str | None:
    told = each.paused_reason or (each.last_error if each.last_status not in ("completed", "running") else None)
    return escape_unprintable(told) if told else None


async def wait_for_commit(caller: Caller, asked: WaitForCommit) -> Outcome:
    from reposync.search.answers import delimited, new_boundary

    await caller.application()
    commit = asked.sha.lower()
    state = await caller.commits.wait(
        asked.repository, commit, asked.timeout, is_wanted=caller.is_wanted, client=caller.client
    )
    why = None if state.relation else await caller.commits.explained(asked.repository, state)
    if state.relation is not None:
        held = (state.last_commit or "")[:_COMMIT_CHARS]
        text = f"Searchable: the index of {escape_unprintable(state.repository)} is at {held} ({state.relation})."
    else:
        text = escape_unprintable(why.text if why else "")
    return Outcome(
        # Why not may quote what another server says.
        delimited(text, new_boundary()) if why else text,
        without_nothing(
            searchable=state.relation is not None,
            relation=state.relation,
            last_commit=state.last_commit,
            last_sync_at=time_text(state.last_sync_at),
            reason=text if why else None,
        ),
    )


def without_nothing(**values: object) -> dict[str, Any]:
    """Those that are not None, as the results leave out what is not known."""
    return {key: value for key, value in values.items() if value is not None}


def time_text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


TOOLS: Final[Mapping[str, tuple[type[Arguments], Callable[[Caller, Any], Awaitable[Outcome]]]]] = {
    "search_code": (SearchCode, search_code),
    "grep_code": (GrepCode, grep_code),
    "read_code": (ReadCode, read_code),
    "list_repositories": (ListRepositories, list_repositories),
    "wait_for_commit": (WaitForCommit, wait_for_commit),
}

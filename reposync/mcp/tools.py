"""What the tools do. Each answers with a text and with the same as a structure: Gemini CLI 0.61 gives its model the
text, Claude Code 2.1 and Codex 0.169 give theirs the structure.

Names, paths and contents are written by whoever may push to a repository. In texts they are between two lines with a
boundary that is drawn for each answer, and no line of a file begins like one of ours; control characters are visible
everywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from reposync.errors import NotSearchableYet
from reposync.finding import count_masks
from reposync.mcp.schemas import (
    FOUND,
    MATCHES,
    READ,
    REPOSITORIES,
    REQUESTED,
    WAITED,
    GrepCode,
    ListRepositories,
    ReadCode,
    RequestSync,
    SearchCode,
    WaitForCommit,
)
from reposync.operations.core import Actor, Arguments, Rule
from reposync.operations.search import Grep, calls_asked_for, excerpts, grep, read
from reposync.operations.syncs import SyncOptions, sync, wait_while_wanted
from reposync.search.documents import Answer, delimited
from reposync.words import ago, escape_unprintable, until, visible

# A client waits for this module when it starts the server: what works is imported with the first call.
if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.operations.repositories import Overview

_COMMIT_CHARS: Final = 12
_LEAST_CALLS, _TOKENS_A_CALL = 10, 40
MOST_CHARS: Final = 40_000
"""The characters of a file in one answer: 11,000 tokens. Agents limit what they accept of a tool; Claude Code does at
25,000."""


@dataclass(frozen=True, slots=True)
class Caller:
    """`is_wanted`: whether somebody still waits for the answer."""

    application: Callable[[], Awaitable[Application]]
    actor: Actor
    is_wanted: Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Tool:
    """`words`: descriptions of arguments. `result`: the JSON schema of the structure of an answer. `rule`: who may
    call it; others do not see it."""

    title: str
    arguments: type[Arguments]
    words: Mapping[str, str]
    result: dict[str, Any]
    act: Callable[[Caller, Any], Awaitable[Answer]]
    rule: Rule = Rule.READ

    @property
    def description(self) -> str:
        return " ".join((self.arguments.__doc__ or "").split())


async def search_code(caller: Caller, asked: SearchCode) -> Answer:
    app = await caller.application()
    asked = asked.model_copy(update={"q": [*asked.q, *asked.queries]})
    if (calls := calls_asked_for(asked)) is not None:
        most = min(calls.most, max(_LEAST_CALLS, asked.max_tokens // _TOKENS_A_CALL))
        found = await grep_code(caller, GrepCode(**calls.model_dump(exclude={"limit"}), limit=most))
        return replace(found, structure={**found.structure, "further": [], "indexed": []})
    return await excerpts(app, caller.actor, asked, max_files=asked.limit, max_tokens=asked.max_tokens)


async def grep_code(caller: Caller, asked: Grep) -> Answer:
    found = await grep(await caller.application(), caller.actor, asked)
    lines, files = [], []
    for file in found.items:
        repository, path = escape_unprintable(file.repository), escape_unprintable(file.path)
        outdated = " (older than the commit: could not be read)" if file.outdated else ""
        lines.append(f"{repository} {path} at {escape_unprintable(file.commit)[:_COMMIT_CHARS]}{outdated}")
        shown = [(match, visible(match.text).removesuffix("\n")) for match in file.matches]
        for match, text in shown:
            first, *others = text.split("\n")
            lines += [
                f" {match.line}: {f'[{match.mark}] ' if match.mark else ''}{first}",
                *(f"   {other}" for other in others),
            ]
        url = file.matches[0].url
        known = without_nothing(
            commit=escape_unprintable(file.commit),
            # Once for all lines: models pay for each character.
            url=url and escape_unprintable(url.partition("#")[0]),
            outdated=file.outdated or None,
            masked=file.masked or None,
        )
        matches = [without_nothing(line=match.line, mark=match.mark, text=text) for match, text in shown]
        files.append({"repository": repository, "path": path, **known, "matches": matches})
    absent = found.missing and {"reason": found.missing.reason, "message": escape_unprintable(found.missing.message)}
    lines = lines or ["No line matches."]
    lines += [str(absent["message"])] if absent and absent["reason"] != "no_match" else []
    lines += [f"There may be more: {found.stopped}"] if found.stopped else []
    return Answer(delimited("\n".join(lines)), without_nothing(files=files, stopped=found.stopped, missing=absent))


async def read_code(caller: Caller, asked: ReadCode) -> Answer:
    app = await caller.application()
    file = await read(app, caller.actor, asked, name=asked.repository, path=asked.path)
    text, end = _beginning(file.text, file.start_line, file.end_line)
    shown = visible(text)
    path, lines = escape_unprintable(file.path), shown.removesuffix("\n").split("\n")
    about = f"{escape_unprintable(file.repository)} {path}:{file.start_line}-{end} of {file.total_lines:,} lines"
    parts = [
        f"{about} at {escape_unprintable(file.commit)[:_COMMIT_CHARS]}",
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
    return Answer(
        delimited("\n".join(body)),
        without_nothing(
            repository=escape_unprintable(file.repository),
            path=path,
            commit=escape_unprintable(file.commit),
            start_line=file.start_line,
            end_line=end,
            total_lines=file.total_lines,
            url=file.url and escape_unprintable(file.url),
            outdated=file.outdated or None,
            masked=count_masks(text) or None,
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


async def list_repositories(caller: Caller, asked: ListRepositories) -> Answer:
    from reposync.operations.repositories import RepositoryFilters
    from reposync.operations.repositories import list_repositories as list_them

    app = await caller.application()
    page = await list_them(app, caller.actor, RepositoryFilters(name=asked.name))
    now = app.now()
    lines = [_repository_line(repository, now) for repository in page.items] or ["No repository has such a name."]
    lines += ["There are more: ask with a part of the name."] if page.next_cursor else []
    repositories = [
        without_nothing(
            name=escape_unprintable(repository.name),
            state=repository.state,
            last_commit=repository.last_commit,
            last_sync_at=time_text(repository.last_sync_at),
            age=repository.last_sync_at and ago(repository.last_sync_at, now),
            next_sync_at=time_text(repository.next_due_at),
            problem=_problem(repository),
        )
        for repository in page.items
    ]
    return Answer(
        delimited("\n".join(lines)),
        {"repositories": repositories, "more": page.next_cursor is not None},
    )


def _repository_line(row: Overview, now: datetime) -> str:
    holds = f"at {row.last_commit[:_COMMIT_CHARS]}, indexed {ago(row.last_sync_at, now)}" if row.last_commit else ""
    parts = [
        f"{escape_unprintable(row.name)} {holds or 'not indexed yet'}",
        row.state,
        f"next sync {until(row.next_due_at, now)}" if row.next_due_at else "",
        _problem(row) or "",
    ]
    return ", ".join(filter(None, parts))


def _problem(row: Overview) -> str | None:
    problem = row.paused_reason or (row.last_error if row.last_status not in ("completed", "running") else None)
    return escape_unprintable(problem) if problem else None


async def wait_for_commit(caller: Caller, asked: WaitForCommit) -> Answer:
    app = await caller.application()
    try:
        state = await wait_while_wanted(app, caller.actor, asked, name=asked.repository, is_wanted=caller.is_wanted)
    except NotSearchableYet as error:
        # It may quote what another server says.
        why, held = (
            escape_unprintable(error.message),
            {key: error.details[key] for key in ("last_commit", "last_sync_at")},
        )
        return Answer(delimited(why), without_nothing(searchable=False, **held, reason=why))
    at = (state.last_commit or "")[:_COMMIT_CHARS]
    return Answer(
        f"Searchable: the index of {escape_unprintable(state.repository)} is at {at} ({state.relation}).",
        without_nothing(
            searchable=True,
            relation=state.relation,
            last_commit=state.last_commit,
            last_sync_at=time_text(state.last_sync_at),
        ),
    )


async def request_sync(caller: Caller, asked: RequestSync) -> Answer:
    app = await caller.application()
    run = await sync(app, caller.actor, SyncOptions(full=asked.full), name=asked.repository)
    text = f"Run {run.id} of {escape_unprintable(run.repository)} is {run.status}. `wait_for_commit` waits for it."
    return Answer(text, {"run": run.id, "status": run.status})


def without_nothing(**values: object) -> dict[str, Any]:
    """The values that are not None, as the results leave out what is not known."""
    return {key: value for key, value in values.items() if value is not None}


def time_text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


_FILTERS: Final = {
    "repository": "Exact names; default: all.",
    "path": "A gitignore pattern: src/**/*.py",
}
TOOLS: Final[Mapping[str, Tool]] = {
    "search_code": Tool(
        "Search code",
        SearchCode,
        {
            "q": "What the code does, identifiers, or a whole traceback.",
            "queries": "Up to 8 phrasings in one call, ranked together.",
            **_FILTERS,
            "kind": "function, class, ...",
            "like": "REPOSITORY:PATH:LINE, instead of q: similar code.",
            "limit": "Files with excerpts.",
        },
        FOUND,
        search_code,
    ),
    "grep_code": Tool(
        "Grep code",
        GrepCode,
        {
            "q": "RE2, within lines; text if fixed.",
            **_FILTERS,
            "kind": "call: lines that call the name q, imported first.",
            "limit": "Lines.",
        },
        MATCHES,
        grep_code,
    ),
    "read_code": Tool("Read code", ReadCode, {"start": "First line."}, READ, read_code),
    "list_repositories": Tool(
        "List repositories", ListRepositories, {"name": "A part of the name."}, REPOSITORIES, list_repositories
    ),
    "wait_for_commit": Tool(
        "Wait for commit",
        WaitForCommit,
        {"commit": "Or its first 7 digits or more.", "timeout": "Seconds."},
        WAITED,
        wait_for_commit,
    ),
    "request_sync": Tool(
        "Request sync", RequestSync, {"full": "Read every file again."}, REQUESTED, request_sync, Rule.MAINTAIN
    ),
}

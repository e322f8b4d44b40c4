"""What the tools do. Each answers with a text for the model, and with the same as a structure for programs.

Names, paths and contents are written by whoever may push to a repository. In texts they are between two lines with a
boundary that is drawn for each answer, and no line of a file begins like one of ours; control characters are visible
everywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from reposync.errors import UsageError
from reposync.mcp.schemas import (
    FOUND,
    REPOSITORIES,
    WAITED,
    Arguments,
    ListRepositories,
    SearchCode,
    WaitForCommit,
    read_arguments,
)
from reposync.words import ago, escape_unprintable, until

# A client waits for this module when it starts the server; what works is imported with the first call.
if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.app.commit_wait import SearchableCommits
    from reposync.catalog.overview import Overview
    from reposync.search.answers import Answer

MAX_LISTED: Final = 50
_COMMIT_CHARS: Final = 12

T = TypeVar("T")


class Limit(Protocol):
    """Of searches at a time."""

    async def search(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`."""


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom a tool is called. `is_wanted`: whether somebody still waits for the answer."""

    application: Callable[[], Awaitable[Application]]
    commits: SearchableCommits
    limit: Limit
    is_wanted: Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Outcome:
    text: str
    structure: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    title: str
    description: str
    arguments: type[Arguments]
    result: Mapping[str, Any]
    act: Callable[[Caller, Any], Awaitable[Outcome]]

    async def call(self, caller: Caller, given: Mapping[str, Any]) -> Outcome:
        """Raises UsageError for invalid arguments, and RepoSyncError."""
        return await self.act(caller, read_arguments(self.arguments, dict(given)))


async def _search(caller: Caller, asked: SearchCode) -> Outcome:
    from reposync.search.answers import DEPTH, Indexed, answer
    from reposync.search.query import read_query
    from reposync.supervision import in_thread

    app = await caller.application()
    words = read_query(asked.query, like=asked.like or None).words

    async def work() -> Answer:
        hits = await app.searching.search(
            asked.query,
            repository=asked.repositories,
            path_glob=asked.path or None,
            language=asked.language or None,
            like=asked.like or None,
            limit=DEPTH,
        )
        rows = await app.repositories.list({hit.repository for hit in hits}) if hits else []
        indexed = {row.name: Indexed(row.last_commit, row.last_sync_at) for row in rows}
        now = app.database.clock.now()
        # Milliseconds of computing, in which other requests are answered.
        return await in_thread(
            lambda: answer(hits, words, max_tokens=asked.max_tokens, max_files=asked.limit, indexed=indexed, now=now)
        )

    found = await caller.limit.search(work)
    now = app.database.clock.now()
    return Outcome(
        found.text,
        {
            "files": [
                {
                    "repository": escape_unprintable(file.repository),
                    "path": escape_unprintable(file.path),
                    "commit": escape_unprintable(file.commit),
                    **({"outdated": True} if file.outdated else {}),
                    "excerpts": [
                        _without_nothing(
                            start_line=each.start_line,
                            end_line=each.end_line,
                            inside=each.inside,
                            url=each.url and escape_unprintable(each.url),
                            text=each.text,
                        )
                        for each in file.excerpts
                    ],
                }
                for file in found.files
            ],
            "further": [
                {"repository": escape_unprintable(repository), "place": place} for repository, place in found.further
            ],
            "indexed": [
                _without_nothing(
                    repository=escape_unprintable(name),
                    commit=state.commit,
                    at=_time(state.synced_at),
                    age=state.synced_at and ago(state.synced_at, now),
                )
                for name, state in found.indexed.items()
            ],
        },
    )


async def _list_repositories(caller: Caller, asked: ListRepositories) -> Outcome:
    from reposync.catalog.overview import overviews
    from reposync.search.answers import delimited, new_boundary

    app = await caller.application()
    part = asked.name.casefold()
    names = sorted(each.name for each in await app.repositories.states() if part in each.name.casefold())
    shown = await overviews(app.repositories, app.manifests, app.runs, names[:MAX_LISTED]) if names else []
    now = app.database.clock.now()
    more = len(names) - len(shown)
    lines = [_repository_line(each, now) for each in shown] or ["No repository has such a name."]
    lines += [f"and {more:,} more: ask with a part of the name"] if more > 0 else []
    return Outcome(
        delimited("\n".join(lines), new_boundary()),
        {
            "repositories": [
                _without_nothing(
                    name=escape_unprintable(each.name),
                    state=each.state,
                    last_commit=each.last_commit,
                    last_sync_at=_time(each.last_sync_at),
                    age=each.last_sync_at and ago(each.last_sync_at, now),
                    next_sync_at=_time(each.next_due_at),
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


async def _wait_for_commit(caller: Caller, asked: WaitForCommit) -> Outcome:
    await caller.application()
    commit = asked.sha.lower()
    state = await caller.commits.wait(asked.repository, commit, asked.timeout, is_wanted=caller.is_wanted)
    why = None if state.relation else await caller.commits.explained(asked.repository, state)
    if state.relation is not None:
        held = (state.last_commit or "")[:_COMMIT_CHARS]
        text = f"Searchable: the index of {escape_unprintable(state.repository)} is at {held} ({state.relation})."
    else:
        text = escape_unprintable(why.text if why else "")
    return Outcome(
        text,
        _without_nothing(
            searchable=state.relation is not None,
            relation=state.relation,
            last_commit=state.last_commit,
            last_sync_at=_time(state.last_sync_at),
            reason=text if why else None,
        ),
    )


def _without_nothing(**values: object) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


TOOLS: Final[Sequence[Tool]] = (
    Tool(
        "search_code",
        "Search code",
        "Finds code in all indexed repositories by what it does or by identifiers. Answers with excerpts, grouped by "
        "file and best first, within max_tokens. `further` only names files.",
        SearchCode,
        FOUND,
        _search,
    ),
    Tool(
        "list_repositories",
        "List repositories",
        "The indexed repositories: commit and age of each index, next sync, problems.",
        ListRepositories,
        REPOSITORIES,
        _list_repositories,
    ),
    Tool(
        "wait_for_commit",
        "Wait for a commit",
        "Waits until the index holds a pushed commit or a descendant of it. It starts no sync.",
        WaitForCommit,
        WAITED,
        _wait_for_commit,
    ),
)


def tool_named(name: str) -> Tool:
    """Raises UsageError."""
    found = next((each for each in TOOLS if each.name == name), None)
    if found is None:
        raise UsageError(f"There is no tool {escape_unprintable(name[:100])!r}.")
    return found

"""The tools that say what is indexed."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from reposync.mcp.calls import Caller, Outcome, time_text, without_nothing
from reposync.mcp.schemas import ListRepositories, WaitForCommit
from reposync.words import ago, escape_unprintable, until

if TYPE_CHECKING:
    from reposync.catalog.overview import Overview

MAX_LISTED: Final = 50
_COMMIT_CHARS: Final = 12


async def list_repositories(caller: Caller, asked: ListRepositories) -> Outcome:
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
        without_nothing(
            searchable=state.relation is not None,
            relation=state.relation,
            last_commit=state.last_commit,
            last_sync_at=time_text(state.last_sync_at),
            reason=text if why else None,
        ),
    )

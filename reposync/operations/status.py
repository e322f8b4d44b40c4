"""Whether everything is current, and what runs, waits, failed or waits for a person: the first page in brief."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from reposync.app.standing import Standing, standing_of
from reposync.operations.core import Actor, Arguments, Rule, operation
from reposync.operations.runs import Run, RunStatus, shown
from reposync.store.status import WAITING

if TYPE_CHECKING:
    from reposync.app.application import Application

MOST_LISTED = 100


class StatusArguments(Arguments):
    limit: int = Field(10, ge=1, le=MOST_LISTED, description="How many of each kind are listed; all are counted.")


class RunGroup(BaseModel):
    """`count`: of repositories whose newest run has this status. `items`: the first of these runs, by repository."""

    count: int
    items: list[Run]


class NameGroup(BaseModel):
    """`count`: of repositories. `items`: the first names."""

    count: int
    items: list[str]


class Status(BaseModel):
    """How the repositories are that the client sees."""

    is_current: bool = Field(description="Something is registered, and each active repository is current.")
    now: datetime = Field(description="The moment that this is about, by the database's clock.")
    registered: int
    active: int
    paused: int
    inactive: int = Field(description="They have left the registry.")
    current: int = Field(
        description="Active repositories that are synced, not late, not behind a head that is known, completely "
        "indexed, and whose newest run neither failed nor is blocked."
    )
    workers: int = Field(description="Processes that execute runs at this moment.")
    blocked: RunGroup = Field(description="A person has to decide.")
    failed: RunGroup
    running: RunGroup
    waiting: RunGroup = Field(description="For a worker, or for the end of a pause.")
    incomplete: NameGroup = Field(
        description="The index lacks files that could not be read, or the first sync ended before all meaning was "
        "indexed."
    )
    new: NameGroup = Field(description="Never synced.")
    behind: NameGroup = Field(description="The head of the source is newer than the index, and no run brings it there.")
    late: NameGroup = Field(description="Not synced at the last two ticks of the schedule, and no run is under way.")


@operation("GET", "/status", StatusArguments, Status, rule=Rule.READ)
async def status(app: Application, actor: Actor, asked: StatusArguments) -> Status:
    """Whether everything is current, and what keeps it from that."""
    standing, limit = await standing_of(app), asked.limit
    states = [state.state for state in standing.states]
    active, current = standing.active, standing.current

    async def runs(*statuses: RunStatus) -> RunGroup:
        return await _runs(app, standing, standing.with_latest(*statuses), limit)

    return Status(
        is_current=bool(states) and current == active,
        now=standing.now,
        registered=len(states),
        active=len(active),
        paused=states.count("paused"),
        inactive=states.count("inactive"),
        current=len(current),
        workers=len(await app.workers.alive()),
        blocked=await runs(RunStatus.BLOCKED),
        failed=await runs(RunStatus.FAILED),
        running=await runs(RunStatus.RUNNING),
        waiting=await runs(*WAITING),
        incomplete=_names(standing.concerned("files", "words"), limit),
        new=_names(standing.new, limit),
        behind=_names(standing.concerned("behind"), limit),
        late=_names(standing.concerned("late"), limit),
    )


async def _runs(app: Application, standing: Standing, names: Collection[str], limit: int) -> RunGroup:
    """The newest run of each of the first `limit` repositories."""
    chosen = set(sorted(names)[:limit])
    latest = await app.history.latest([state.id for state in standing.states if state.name in chosen]) if chosen else {}
    runs = sorted(latest.values(), key=lambda run: run.repository)
    return RunGroup(count=len(names), items=[shown(app.history, run) for run in runs])


def _names(names: Collection[str], limit: int) -> NameGroup:
    return NameGroup(count=len(names), items=sorted(names)[:limit])

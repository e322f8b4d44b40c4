"""What pages show beside the documents of other operations: all repositories at a glance, and what is known of one."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from reposync.app.index_overview import CollectionChange, collection_changes
from reposync.catalog.overview import Overview, late_repositories, overviews
from reposync.config.schedule import Schedule, ScheduleError
from reposync.operations.core import Actor, Rule, ruled
from reposync.operations.fields import NamesArguments, page_of_names
from reposync.operations.runs import Run, RunStatus, shown
from reposync.store.index_queries import commit_page, version_summaries
from reposync.store.manifest import TreeEntry as TreeEntry
from reposync.store.repository import Repository
from reposync.store.run import RunCount as RunCount
from reposync.store.status import ACTIVE
from reposync.store.tables import SecretFinding
from reposync.sync.progress import MANY_HIDDEN

if TYPE_CHECKING:
    from reposync.app.application import Application

HOURS = 24
TICKS = 3
SHOWN_FINDINGS = 20
MAX_ENTRIES = 1_000
_BAD = frozenset({RunStatus.FAILED, RunStatus.BLOCKED})

# All repositories ----------------------------------------------------------------------------------------------------

Choice = Literal["all", "active", "paused", "inactive", "running", "behind", "attention"]


class Choices(NamesArguments):
    choice: Choice = "all"


@dataclass(frozen=True, slots=True)
class Day:
    """The last 24 hours, the queue and the workers. `hours`: runs by the hour in which they were queued. `queue`: runs
    by status; `oldest_seconds`: how long the oldest due one has waited. `late`, `behind`: repositories, each with the
    moment since which it is that."""

    now: datetime
    hours: Sequence[RunCount]
    queue: Mapping[str, int]
    oldest_seconds: float
    workers: int
    late: Mapping[str, datetime]
    behind: Mapping[str, datetime]


@dataclass(frozen=True, slots=True)
class AllRepositories:
    """`items` are those after the first `skipped` ones of the choice. `counts`: how many are in each choice. `failed`:
    how many have a last run that failed. `runs`: last runs that run or are blocked, by id. `commit_pages`: by id of the
    repository, see `RunDetail`. `changes`: of the embedding model, under way. `day`: None if nothing is registered."""

    items: Sequence[Overview]
    skipped: int
    next_cursor: str | None
    counts: Mapping[Choice, int]
    failed: int
    runs: Mapping[str, Run]
    commit_pages: Mapping[str, str | None]
    changes: Sequence[CollectionChange]
    day: Day | None


@ruled(Rule.READ)
async def all_repositories(app: Application, actor: Actor, asked: Choices) -> AllRepositories:
    """A page of the repositories of a choice, by name, with what they have in common."""
    states = await app.repositories.states()
    latest = await app.history.latest_statuses(_BAD | ACTIVE)
    versions = await version_summaries(app.database)
    lack_files = {version.repository for version in versions if version.is_live and version.lacks_files}
    by_words = {version.repository for version in versions if version.is_live and version.by_words}
    # Nothing continues their first sync.
    lack_meaning = {name for name in by_words if latest.get(name) not in ACTIVE}
    part = (asked.name or "").casefold()
    choices: dict[Choice, set[str]] = {
        "all": {state.name for state in states if part in state.name.casefold()},
        "active": {state.name for state in states if state.state == "active"},
        "paused": {state.name for state in states if state.state == "paused"},
        "inactive": {state.name for state in states if state.state == "inactive"},
        "running": {name for name, status in latest.items() if status is RunStatus.RUNNING},
        "behind": {state.name for state in states if state.is_active and state.behind_since is not None},
        "attention": {*lack_files, *lack_meaning, *(name for name, status in latest.items() if status in _BAD)},
    }
    chosen = sorted(choices["all"] & choices[asked.choice])
    names, next_cursor = page_of_names(chosen, asked)
    items = await overviews(app.repositories, app.manifests, app.history, names) if names else []
    of_interest = [item.last_run for item in items if item.last_run and item.last_status in ("running", "blocked")]
    runs = await app.history.by_ids(of_interest)
    return AllRepositories(
        items=items,
        skipped=chosen.index(names[0]) if names else len(chosen),
        next_cursor=next_cursor,
        counts={choice: len(choices["all"] & named) for choice, named in choices.items()},
        failed=sum(status is RunStatus.FAILED for status in latest.values()),
        runs={run.id: shown(app.history, run) for run in runs.values()},
        commit_pages={version.repository_id: version.commit_page for version in versions if version.is_live},
        changes=[change for change in collection_changes(app, versions) if change.is_under_way],
        day=await _last_day(app, states) if states else None,
    )


def first_hour(now: datetime) -> datetime:
    """The beginning of the last 24 hours."""
    return now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS - 1)


async def _last_day(app: Application, states: Collection[Repository]) -> Day:
    now, queue = app.now(), await app.history.queue()
    late = set(await late_repositories(list(states), now))
    return Day(
        now=now,
        hours=await app.history.by_hour(first_hour(now)),
        queue=queue.counts,
        oldest_seconds=queue.oldest_seconds,
        workers=len(await app.workers.alive()),
        late={state.name: state.last_sync_at for state in states if state.name in late and state.last_sync_at},
        behind={state.name: state.behind_since for state in states if state.is_active and state.behind_since},
    )


# One repository ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RepositoryFacts:
    """`registered`: where its definition comes from, in words; `definition`: with defaults. `ticks`: when it is due
    next. `entries`: of a folder of its index, folders first; `skipped`: how many files of the index are not indexed, by
    reason. `commit_page`: see `RunDetail`. `files`: that are indexed; `hidden_files`: that are masked or left out
    because of secrets; `findings`: the first ones, if the reader may see them."""

    files: int
    registered: str
    definition: Mapping[str, Any]
    ticks: Sequence[datetime]
    entries: Sequence[TreeEntry]
    has_more_entries: bool
    skipped: Mapping[str, int]
    commit_page: str | None
    hidden_files: int
    findings: Sequence[SecretFinding]

    @property
    def hides_many(self) -> bool:
        """Whether so many files are masked that a rule is likely to be wrong."""
        return self.hidden_files > self.files * MANY_HIDDEN


@ruled(Rule.READ)
async def repository_facts(app: Application, actor: Actor, *, name: str, folder: str) -> RepositoryFacts:
    """Raises RepositoryNotFound."""
    row = await app.repositories.get(name)
    version = row.live_version or row.id
    entries = await app.manifests.folder(version, folder, MAX_ENTRIES + 1)
    counts = await app.manifests.counts([version])
    return RepositoryFacts(
        files=counts[version].files if version in counts else 0,
        registered=row.origin_words,
        definition=row.resolved or row.definition or {},
        ticks=_ticks(row, app.now()),
        entries=entries[:MAX_ENTRIES],
        has_more_entries=len(entries) > MAX_ENTRIES,
        skipped=await app.manifests.skip_counts(version),
        commit_page=await commit_page(app.database, row.id),
        hidden_files=await app.findings.hidden_files(row.id),
        findings=await _findings(app, actor, row),
    )


async def _findings(app: Application, actor: Actor, row: Repository) -> Sequence[SecretFinding]:
    """The first ones, for those who may see where secrets are."""
    if row.id not in actor.maintains:
        return ()
    return [found for _, found in await app.findings.page(row.name, None, SHOWN_FINDINGS)]


def _ticks(row: Repository, now: datetime) -> list[datetime]:
    """When it is due next, and the ticks of its schedule after that."""
    ticks = [] if row.next_due_at is None else [row.next_due_at]
    # A newer program may have schedules that this one cannot read.
    with contextlib.suppress(ScheduleError):
        if ticks and row.cron_expression is not None:
            schedule = Schedule.parse(row.cron_expression, row.timezone)
            while len(ticks) < TICKS:
                ticks.append(schedule.next_after(max(ticks[-1], now)))
    return ticks

"""What pages show beside the documents of other operations: all repositories at a glance, and what is known of one."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from reposync.app.index_overview import CollectionChange, collection_changes
from reposync.app.standing import Attention, Standing, standing_of
from reposync.catalog.overview import Overview, overviews
from reposync.config.schedule import Schedule, ScheduleError
from reposync.operations.core import Actor, Rule, ruled
from reposync.operations.fields import NamesArguments, cursor_after, key_before
from reposync.operations.runs import Run, RunStatus, shown
from reposync.store.index_queries import commit_page
from reposync.store.manifest import LanguageCount as LanguageCount
from reposync.store.manifest import TreeEntry as TreeEntry
from reposync.store.repository import Repository
from reposync.store.run import RunCount as RunCount
from reposync.store.run import RunMark as RunMark
from reposync.store.status import ACTIVE
from reposync.store.tables import SecretFinding
from reposync.supervision import together
from reposync.sync.progress import MANY_HIDDEN

if TYPE_CHECKING:
    from reposync.app.application import Application

HOURS = 24
TICKS = 3
SHOWN_FINDINGS = 20
MAX_ENTRIES = 1_000
_BAD = frozenset({RunStatus.FAILED, RunStatus.BLOCKED})

# All repositories ----------------------------------------------------------------------------------------------------

Choice = Literal["all", "attention", "running", "behind", "active", "paused", "inactive"]


class Choices(NamesArguments):
    choice: Choice = "all"


@dataclass(frozen=True, slots=True)
class Day:
    """The last 24 hours, the queue and the workers. `runs` that ended, `failed` of them. `queue`: runs by status;
    `oldest_seconds`: how long the oldest due one has waited. `current` of the `active` repositories are current
    as `Standing` says; `checked_at`: when one was synced last."""

    runs: int
    failed: int
    queue: Mapping[str, int]
    oldest_seconds: float
    workers: int
    active: int
    current: int
    checked_at: datetime | None

    @property
    def is_idle(self) -> bool:
        """Whether no run waits or runs."""
        return not any(self.queue.get(status) for status in ACTIVE)


@dataclass(frozen=True, slots=True)
class AllRepositories:
    """`items` are those after the first `skipped` ones of the choice. `counts`: how many are in each choice. `failed`:
    how many have a last run that failed. `attention`: what needs it, by name. `runs`: the last runs of `items` that
    run, failed or are blocked, by id; `strips`: their latest runs, the newest first, by id of the repository.
    `changes`: of the embedding model, under way. `day`: None if nothing is registered."""

    items: Sequence[Overview]
    skipped: int
    next_cursor: str | None
    counts: Mapping[Choice, int]
    failed: int
    attention: Mapping[str, Attention]
    runs: Mapping[str, Run]
    strips: Mapping[str, Sequence[RunMark]]
    changes: Sequence[CollectionChange]
    day: Day | None


@ruled(Rule.READ)
async def all_repositories(app: Application, actor: Actor, asked: Choices) -> AllRepositories:
    """A page of the repositories of a choice, with what they have in common: what needs attention first, then what
    runs, each by name."""
    standing = await standing_of(app)
    states, versions, attention = standing.states, standing.versions, standing.attention
    running = standing.with_latest(RunStatus.RUNNING)
    part = (asked.name or "").casefold()
    shown_names = {state.name for state in states if part in state.name.casefold()}
    choices: dict[Choice, Collection[str]] = {
        "all": shown_names,
        "attention": set(attention),
        "running": running,
        "behind": standing.behind,
        "active": standing.active,
        "paused": {state.name for state in states if state.state == "paused"},
        "inactive": {state.name for state in states if state.state == "inactive"},
    }
    named = {choice: shown_names.intersection(names) for choice, names in choices.items()}
    chosen = sorted((_rank(name, attention, running), name) for name in named[asked.choice])
    skipped, page, next_cursor = _page(chosen, asked)
    # The day is one long query, the items are many short ones.
    (items, runs, strips), day = await together(_items(app, page), _last_day(app, standing))
    items.sort(key=lambda item: (_rank(item.name, attention, running), item.name))
    return AllRepositories(
        items=items,
        skipped=skipped,
        next_cursor=next_cursor,
        counts={choice: len(names) for choice, names in named.items()},
        failed=len(standing.with_latest(RunStatus.FAILED)),
        attention=attention,
        runs=runs,
        strips=strips,
        changes=[change for change in collection_changes(app, versions) if change.is_under_way],
        day=day,
    )


async def _items(
    app: Application, names: Collection[str]
) -> tuple[list[Overview], dict[str, Run], Mapping[str, Sequence[RunMark]]]:
    """These repositories, and `runs` and `strips` of `AllRepositories`."""
    if not names:
        return [], {}, {}
    items = await overviews(app.repositories, app.manifests, app.history, names)
    of_interest = [item.last_run for item in items if item.last_run and item.last_status in _BAD | {RunStatus.RUNNING}]
    runs = await app.history.by_ids(of_interest)
    strips = await app.history.strips([item.id for item in items])
    return items, {run.id: shown(app.history, run) for run in runs.values()}, strips


def _rank(name: str, attention: Collection[str], running: Collection[str]) -> int:
    return 0 if name in attention else 1 if name in running else 2


def _page(chosen: Sequence[tuple[int, str]], asked: Choices) -> tuple[int, list[str], str | None]:
    """How many come before, the names, and the next cursor, which is a rank and a name: of those that changed their
    rank meanwhile, some are seen twice or not. Raises UsageError."""
    start = 0
    if asked.cursor is not None:
        rank, name = key_before(asked.cursor)[:1], key_before(asked.cursor)[1:]
        start = bisect_right(chosen, (int(rank) if rank in ("0", "1", "2") else 0, name))
    page = chosen[start : start + asked.limit]
    has_more = start + asked.limit < len(chosen)
    return start, [name for _, name in page], cursor_after("{}{}".format(*page[-1])) if has_more else None


def first_hour(now: datetime) -> datetime:
    """The beginning of the last 24 hours."""
    return now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS - 1)


async def _last_day(app: Application, standing: Standing) -> Day | None:
    if not standing.states:
        return None
    queue, hours = await app.history.queue(), await app.history.by_hour(first_hour(standing.now))
    ended = [count for count in hours if count.is_final]
    synced = [state.last_sync_at for state in standing.states if state.last_sync_at is not None]
    return Day(
        runs=sum(count.runs for count in ended),
        failed=sum(count.runs for count in ended if count.status == RunStatus.FAILED),
        queue=queue.counts,
        oldest_seconds=queue.oldest_seconds,
        workers=len(await app.workers.alive()),
        active=len(standing.active),
        current=len(standing.current),
        checked_at=max(synced, default=None),
    )


# One repository ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RepositoryFacts:
    """What the page of a repository shows beside its document and its index."""

    files: int
    """Indexed files."""
    registered: str
    """Where its definition comes from, in words."""
    definition: Mapping[str, Any]
    """The keys of its entry in the registry file, with defaults."""
    ticks: Sequence[datetime]
    """When it is due next."""
    entries: Sequence[TreeEntry]
    """A folder of its index, folders first."""
    has_more_entries: bool
    skipped: Mapping[str, int]
    """How many files are not indexed, by reason."""
    languages: Sequence[LanguageCount]
    """Languages of the indexed files, the largest first."""
    commit_title: str | None
    """The title of the commit that it was synced to last, if it is known."""
    commit_author: str | None
    commit_page: str | None
    """See `RunDetail`."""
    hidden_files: int
    """Files that are masked or left out because of secrets."""
    findings: Sequence[SecretFinding]
    """The first secrets, if the reader may see them."""
    strip: Sequence[RunMark]
    """Its latest runs."""

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
    breakdown = await app.manifests.breakdown(version)
    words = await app.history.commit_words(row.id, row.last_commit) if row.last_commit else None
    return RepositoryFacts(
        files=counts[version].files if version in counts else 0,
        registered=row.origin_words,
        definition=row.resolved or row.definition or {},
        ticks=_ticks(row, app.now()),
        entries=entries[:MAX_ENTRIES],
        has_more_entries=len(entries) > MAX_ENTRIES,
        skipped=breakdown.skipped,
        languages=breakdown.languages,
        commit_title=words and words[0],
        commit_author=words and words[1],
        commit_page=await commit_page(app.database, row.id),
        hidden_files=await app.findings.hidden_files(row.id),
        findings=await _findings(app, actor, row),
        strip=(await app.history.strips([row.id])).get(row.id, []),
    )


async def _findings(app: Application, actor: Actor, row: Repository) -> Sequence[SecretFinding]:
    """The first ones, for those who may see where secrets are."""
    if row.id not in actor.maintains:
        return ()
    return [found for _, found in await app.findings.page(row.id, None, SHOWN_FINDINGS)]


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


@ruled(Rule.READ)
async def oldest_sync(app: Application, actor: Actor, *, names: Collection[str]) -> datetime | None:
    """When the one of these repositories was last compared with its source that was so longest ago. None if one never
    was."""
    moments = [row.last_sync_at for row in await app.repositories.list(names)] if names else []
    return min((each for each in moments if each is not None), default=None) if all(moments) else None

"""Requesting syncs, and what belongs to them: plans, verification, groups, and waiting for a commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool
from pydantic_core import to_jsonable_python

from reposync.app.documents import CommitState as CommitState
from reposync.app.documents import Leftover as Leftover
from reposync.app.documents import Verdict as Verdict
from reposync.errors import (
    NEXT_RUN,
    ConflictError,
    NotSearchableYet,
    RepositoryNotFound,
    RepoSyncError,
    SourceNotAllowed,
    UsageError,
)
from reposync.next_steps import ApplyRegistry
from reposync.operations.core import Actor, Arguments, NoArguments, Rule, operation, ruled
from reposync.operations.runs import Run, ask, shown

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.catalog.targets import SyncTarget
    from reposync.store.repository import Repository

MAX_WAIT_SECONDS = 300.0
MAX_LIMITED_WAIT_SECONDS = 60.0
"""The longest wait of actors that see some repositories: what they may see is decided once, and counts for this
time."""


class SyncOptions(Arguments):
    """The body may be omitted."""

    full: StrictBool = Field(False, description="Read every file and check every point; known text is not embedded.")
    allow_mass_delete: StrictBool = Field(False, description="Let it delete more than half of the indexed files.")


@operation(
    "POST",
    "/repositories/{name}/sync",
    SyncOptions,
    Run,
    rule=Rule.MAINTAIN,
    executes=True,
    uses_index=True,
    is_audited=True,
)
async def sync(app: Application, actor: Actor, asked: SyncOptions, *, name: str, identity: str | None = None) -> Run:
    """Request a sync. Answers at once with the run that does it. A run that is already queued is returned, and no
    second one is queued; a running one is followed by a new one."""
    if asked.allow_mass_delete:
        # As an approval.
        actor.require(Rule.OPERATE)
    return await enqueue(app, actor, await _syncable(app, name, identity), asked)


async def _syncable(app: Application, name: str, identity: str | None = None) -> Repository:
    # With it comes half of the program; commands and agents that only describe a sync do without.
    from reposync.catalog.targets import syncable

    return await syncable(app.repositories, name, identity)


async def enqueue(app: Application, actor: Actor, row: Repository, asked: SyncOptions, *, repair: bool = False) -> Run:
    from reposync.store.run import IN_ADVANCE

    approval = IN_ADVANCE if asked.allow_mass_delete else None
    asking = ask(app, actor, full=asked.full, repair=repair, approval=approval)
    run, _ = await app.runs.enqueue(row.name, asking, row.id)
    return shown(app.history, run)


class Target(SyncOptions):
    target: str = Field(
        min_length=1, max_length=4_096, description="A registered name, an https URL, or a folder of this machine."
    )


@operation("POST", "/sync", Target, Run, rule=Rule.OPERATE, executes=True, uses_index=True, is_slow=True)
async def sync_target(app: Application, actor: Actor, asked: Target) -> Run:
    """Request a sync of a repository by its name, address or folder. What is not registered is registered for syncs on
    request, once its source answers; over HTTP, only names are taken."""
    if not actor.is_local and not await app.repositories.list([asked.target]):
        raise SourceNotAllowed(
            f"{asked.target!r} is not the name of a registered repository.", remedy="Register it before you sync it."
        )
    return await enqueue(app, actor, await registered(app, await app.catalog.find(asked.target)), asked)


async def registered(app: Application, target: SyncTarget) -> Repository:
    """Registers a new repository only if its source answers: a mistyped address leaves no row."""
    # Opened before the run begins, so that its duration does not include the imports.
    app.index(target.repository.collection)
    try:
        return await _syncable(app, target.name)
    except RepositoryNotFound:
        source = app.source(target)
        try:
            await source.head()
        except RepoSyncError as error:
            if error.remedy == NEXT_RUN:  # there is no next one
                error.remedy = "Nothing was registered. Check the address."
            raise
        finally:
            await source.close()
    return await app.repositories.register(target.row)


class Group(BaseModel):
    """What a listing of a group's projects changed: `renamed` and `kept_names` are pairs of names, `paused` of names
    and reasons. `problem`: why it changed nothing, or not all."""

    group: str
    problem: str | None = None
    renamed: list[tuple[str, str]] = []
    kept_names: list[tuple[str, str]] = []
    paused: list[tuple[str, str]] = []


class Names(BaseModel):
    """What `sync` without a name is about: registered repositories with a schedule, whose definition can be used here.
    `left_out`: the others, with the reason."""

    items: list[str]
    left_out: dict[str, str] = {}
    groups: list[Group] = []


class Discovery(Arguments):
    allow_mass_delete: StrictBool = Field(False, description="Believe a listing that lost more than half of a group.")


@operation("POST", "/discover", Discovery, Names, rule=Rule.OPERATE, is_slow=True)
async def discover(app: Application, actor: Actor, asked: Discovery) -> Names:
    """List the projects of the registered groups, register new ones, and name all repositories that are synced. A group
    that fails does not stop the others."""
    groups = await _discovered(app, approved=asked.allow_mass_delete)
    names = (await _scheduled(app)).model_copy(update={"groups": groups})
    if not names.items and not any(group.problem for group in groups):
        raise _nothing_registered(app)
    return names


async def _discovered(app: Application, *, approved: bool) -> list[Group]:
    from reposync.store.registry import ProjectGroups

    rows = await ProjectGroups(app.database).all()
    if not rows:
        return []
    from reposync.catalog.groups import Discovery as GroupDiscovery  # with it come the sources

    groups = []
    discovery = GroupDiscovery(app.database)
    for row in rows:
        if row.definition is None:  # a registry file of this version was not applied yet
            continue
        try:
            report = await discovery.discover(app.configuration.registry, row, approved=approved)
        except RepoSyncError as error:
            groups.append(Group(group=row.path, problem=str(error)))
        else:
            pairs = {key: list(getattr(report, key)) for key in ("renamed", "kept_names", "paused")}
            groups.append(Group(group=row.path, problem=report.problem, **pairs))
    return groups


class TargetWords(Arguments):
    target: list[Annotated[str, Field(min_length=1, max_length=4_096)]] = Field(
        [], max_length=1_000, description="As for a sync; repeat it for several."
    )


@operation("GET", "/targets", TargetWords, Names, rule=Rule.OPERATE)
async def targets(app: Application, actor: Actor, asked: TargetWords) -> Names:
    """The names of repositories, also of those that a sync would register, and without a target of all that are
    synced."""
    if not asked.target:
        names = await _scheduled(app)
        if not names.items:
            raise _nothing_registered(app)
        return names
    if not actor.is_local:
        return Names(items=[(await _syncable(app, name)).name for name in asked.target])
    return Names(items=list(dict.fromkeys([(await app.catalog.find(word)).name for word in asked.target])))


async def _scheduled(app: Application) -> Names:
    names, left_out = [], {}
    for row in await app.repositories.list():
        if not row.is_active or row.by_hand:
            continue
        try:
            app.catalog.of_row(row)
            names.append(row.name)
        except RepoSyncError as error:
            left_out[row.name] = str(error)
    return Names(items=names, left_out=left_out)


def _nothing_registered(app: Application) -> UsageError:
    text = "Nothing is registered, and no target was named."
    if app.catalog.unapplied is not None:
        return UsageError(f"{text} {app.catalog.unapplied} was not applied yet.", next_steps=[ApplyRegistry()])
    return UsageError(text, remedy="Name a git repository, or apply a registry file.")


class PlanOptions(Arguments):
    target: str = Field(min_length=1, max_length=4_096, description="As for a sync.")
    full: bool = False


class Plan(BaseModel):
    """What a sync would do. `chunks` would be stored or completed; `chunks_to_embed` of them, with
    `characters_to_embed`, would go to the embedding model, the others have vectors in the index. `blocked`: why the run
    would stop and wait for approval; null if it would not."""

    model_config = ConfigDict(from_attributes=True)

    repository: str
    commit: str
    commit_before: str | None
    files: int
    files_to_read: int
    files_to_store: int
    files_to_skip: int
    files_to_delete: int
    files_renamed: int
    files_unchanged: int
    chunks: int
    chunks_to_embed: int
    characters_to_embed: int
    index_notice: str | None
    blocked: str | None


@operation("GET", "/plan", PlanOptions, Plan, rule=Rule.OPERATE, uses_index=True, is_slow=True)
async def plan(app: Application, actor: Actor, asked: PlanOptions) -> Plan:
    """What a sync would do, without any write. It reads the files that it would sync."""
    from reposync.sync.progress import RunProgress

    if not actor.is_local:
        await _syncable(app, asked.target)
    target = await app.catalog.find(asked.target)
    return Plan.model_validate(await app.preview(target, full=asked.full, progress=RunProgress(), watch=lambda _: None))


# Verification --------------------------------------------------------------------------------------------------------


class VerifyOptions(Arguments):
    source: bool = Field(False, description="Also read the recorded commit again and compare its files.")
    limit: int = Field(20, ge=0, le=10_000, description="The maximum number of differences.")
    timeout: float = Field(
        60.0, ge=0, le=86_400.0, allow_inf_nan=False, description="Seconds to wait for a sync that is running."
    )


# It reads the whole index, and with `source` the repository: not for everybody who may read.
@operation(
    "GET", "/repositories/{name}/verify", VerifyOptions, Verdict, rule=Rule.MAINTAIN, uses_index=True, is_slow=True
)
async def verify(
    app: Application, actor: Actor, asked: VerifyOptions, *, name: str, identity: str | None = None
) -> Verdict:
    """Prove that the index holds precisely the indexed files of the recorded commit. Every point is read and compared
    with the manifest. If a sync is running, it waits for it, `timeout` seconds at most."""
    from reposync.app.verification import Verification

    verdict = await Verification(app, asked.source, asked.timeout).verify(name, identity)
    listed = verdict.differences[: asked.limit]
    return replace(verdict, differences=listed, differences_left_out=len(verdict.differences) - len(listed))


class RepairOptions(Arguments):
    full: StrictBool = Field(False, description="Read every file again, which repairs what only their content shows.")


@operation(
    "POST", "/repositories/{name}/repair", RepairOptions, Run, rule=Rule.MAINTAIN, executes=True, uses_index=True
)
async def repair(
    app: Application, actor: Actor, asked: RepairOptions, *, name: str, identity: str | None = None
) -> Run:
    """Request a run that compares every point with the manifest, and repairs differences."""
    row = await _syncable(app, name, identity)
    return await enqueue(app, actor, row, SyncOptions(full=asked.full), repair=True)


class Leftovers(BaseModel):
    items: list[Leftover]


@operation("GET", "/leftovers", NoArguments, Leftovers, rule=Rule.OPERATE, uses_index=True, is_slow=True)
async def leftovers(app: Application, actor: Actor, asked: NoArguments) -> Leftovers:
    """Points of no registered repository, by collection and name."""
    from reposync.app.verification import find_orphaned_points

    return Leftovers(items=await find_orphaned_points(app))


class RemovalOptions(Arguments):
    unknown: bool = Field(
        False,
        description="Also points of a repository that was never synced here. A different installation may use the same "
        "collection: make sure that none does.",
    )


class Removed(BaseModel):
    """`run`: as it ended; null if the repository is registered again, or a run of it is in progress."""

    run: Run | None


@operation(
    "DELETE", "/leftovers/{repository_id}", RemovalOptions, Removed, rule=Rule.OPERATE, uses_index=True, is_slow=True
)
async def remove_leftovers(app: Application, actor: Actor, asked: RemovalOptions, *, repository_id: str) -> Removed:
    """Remove the points of a repository that is not registered from all collections, in a run of their own."""
    from reposync.app.verification import find_orphaned_points, remove_orphaned_points

    left = next((left for left in await find_orphaned_points(app) if left.repository_id == repository_id), None)
    if left is None:
        raise RepositoryNotFound(f"No point belongs to an unregistered repository {repository_id!r}.")
    if not left.known and not asked.unknown:
        raise ConflictError(
            f"Repository {repository_id!r} was never synced here.",
            remedy="A different installation may use the same collection. Set `unknown` if none does.",
        )
    run = await remove_orphaned_points(app, repository_id, left.repository or repository_id)
    return Removed(run=None if run is None else shown(app.history, run))


# Waiting for a commit ------------------------------------------------------------------------------------------------


class WaitFor(Arguments):
    commit: str = Field(
        pattern="^[0-9a-fA-F]{7,64}$",
        description="Its name, or a unique prefix of at least 7 digits.",
        examples=["8843d7f"],
    )
    timeout: float = Field(
        30.0, ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False, description="Seconds; 0 returns the current state."
    )


async def _always() -> bool:
    return True


@operation("GET", "/repositories/{name}/wait", WaitFor, CommitState, rule=Rule.READ)
async def wait(app: Application, actor: Actor, asked: WaitFor, *, name: str) -> CommitState:
    """Wait until a commit can be searched. Answers as soon as the index holds exactly `commit`, or a descendant of it;
    a commit counts from the end of its sync. It triggers nothing: a sync does. Those who do not see all repositories
    wait for a minute at most. **Plain git servers cannot compare commits**: the indexed commit itself counts, and a run
    that began after the request (`relation` is then `later`)."""
    return await wait_while_wanted(app, actor, asked, name=name, is_wanted=_always)


@ruled(Rule.READ, audited="wait")
async def wait_while_wanted(
    app: Application, actor: Actor, asked: WaitFor, *, name: str, is_wanted: Callable[[], Awaitable[bool]]
) -> CommitState:
    """As `wait`, as long as somebody wants it."""
    seconds = asked.timeout if actor.visible.is_everything else min(asked.timeout, MAX_LIMITED_WAIT_SECONDS)
    found = await app.commits.wait(name, asked.commit.lower(), seconds, is_wanted=is_wanted, client=actor.credential)
    state = replace(found, commit=asked.commit)
    if state.relation is None:
        why = await app.commits.explained(name, state)
        details = {**asdict(state), "limit": why.limit, "run": why.run and why.run.document}
        raise NotSearchableYet(why.text, to_jsonable_python(details))
    return state

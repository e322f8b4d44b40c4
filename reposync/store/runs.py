"""The queue of runs: asking for them, executing them, and recording their progress and end. Reading: `RunHistory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, and_, bindparam, delete, exists, func, or_, select, update
from sqlalchemy.exc import IntegrityError

from reposync.errors import DefinitionChanged, RunCancelled, RunStateConflict
from reposync.next_steps import Sync
from reposync.store.attempts import claimable, fence, free_abandoned, held_by, lease_lost, take
from reposync.store.changes import MAX_CHANGES, change_rows
from reposync.store.columns import MAX_MESSAGE_CHARS, path_key, sanitize_text, truncate
from reposync.store.database import Connection, Database, Stored
from reposync.store.endings import Ending, Step, is_same_wait, step_of
from reposync.store.history import find_run, no_such_run
from reposync.store.repository import Repository
from reposync.store.repository_rows import change_repository, lock_repositories, lock_repository
from reposync.store.run import IN_ADVANCE, Ask, Run, RunChange, RunFigures, RunProblem
from reposync.store.run_state import (
    REPOSITORY_REMOVED,
    TRANSITIONS,
    Event,
    cancel,
    counts_of,
    joined,
    lock_unfinished,
    locked,
    move,
    new_run,
    queue_runs,
    total_counts,
)
from reposync.store.status import LOST, PRIORITIES, WAITING, FileChange, RunStatus, RunTrigger
from reposync.store.tables import CHANGES, PROBLEMS, REPOSITORIES, RUNS, is_active, is_over, new_head, status_is

MAX_DETAIL_CHARS = 1_000
MAX_TITLE_CHARS = 300


class Runs(Stored):
    """Methods that take a run raise LeaseLost once a different worker has it, and then have written nothing."""

    def __init__(
        self,
        database: Database,
        *,
        redact: Callable[[str], str] = str,
        on_lost: Callable[[Run], None] = lambda _: None,
    ) -> None:
        """`redact` removes secrets from every message that is stored: servers quote what they were sent. `on_lost` is
        called for each run whose latest attempt a claim here found without its worker."""
        super().__init__(database)
        self._redact = redact
        self._on_lost = on_lost

    # Asking ----------------------------------------------------------------------------------------------------------

    async def enqueue(self, repository: str, ask: Ask, identity: str | None = None) -> tuple[Run, bool]:
        """Ask for a run of the repository with this name, or with this `identity`, if given. Returns the run, and
        whether it is new. One that waits is joined; a removal pauses the repository and cancels its other runs. As part
        of a transaction: `queue_runs`. Raises RepositoryNotFound."""
        async with self._database.write() as connection:
            row = await lock_repository(connection, repository, identity)
            if ask.approval == IN_ADVANCE:
                ask = replace(ask, approval=await self._approval(connection, row.id))
            if ask.removal:
                await self._clear(connection, row)
            ((run, is_new),) = await queue_runs(connection, {row.id: row.name}, ask)
            return run, is_new

    async def _clear(self, connection: Connection, repository: Row[Any]) -> None:
        """For its removal: no tick comes in between, and what else was asked for is not done any more."""
        if repository.is_active:
            paused = {"is_active": False, "paused_reason": "It is being removed.", "next_due_at": None}
            await change_repository(connection, repository.id, paused | {"updated_at": self._database.moment()})
        for row in await lock_unfinished(connection, repository.id):
            # With `repair` it only removes the points of a repository that is not registered.
            is_joined = row.removal and not row.repair and row.status in WAITING
            if not is_joined:
                await cancel(connection, row, RunCancelled.code, "The repository is being removed.")

    async def _approval(self, connection: Connection, identity: str) -> dict[str, Any]:
        blocked = and_(RUNS.c.repository_id == identity, is_over(), status_is(RunStatus.BLOCKED))
        brake: dict[str, Any] | None = await connection.scalar(select(RUNS.c.brake).where(blocked))
        return brake if brake and brake.get("commit") else IN_ADVANCE

    async def enqueue_for_push(
        self, repository: Repository, commit: str, ask: Ask, *, is_head: bool = True
    ) -> tuple[Run, bool] | Repository:
        """A run of `repository`, whose branch is at `commit` since a push, and whether it is new. Or there is none: its
        row says that it is not active, or else the index holds that commit already.
        `is_head`: its branch is known to be the one that was pushed.

        One transaction, so that a pause comes before or after it. If the index holds the commit, the push is ignored
        only if no run is active: a run that began before the push may move the index to a different commit. Raises
        RepositoryNotFound.
        """
        columns = REPOSITORIES.c
        async with self._database.write() as connection:
            row = await lock_repository(connection, repository.name, repository.id)
            busy = select(exists().where(RUNS.c.repository_id == repository.id, is_active()))
            if is_head:
                moved = columns.head_commit.is_distinct_from(commit)
                seen = update(REPOSITORIES).where(columns.id == repository.id, moved)
                await connection.execute(seen.values(**new_head(commit, self._database.moment())))
            if not row.is_active or (row.last_commit == commit and not await connection.scalar(busy)):
                return Repository.of(row)
            ((run, is_new),) = await queue_runs(connection, {row.id: row.name}, ask)
            return run, is_new

    async def claim_orphan_removal(
        self, identity: str, name: str, worker: str, lease_seconds: float, *, asked_by: str = ""
    ) -> Run | None:
        """A new run that removes the points of a repository that is no longer registered. `worker` claims it in the
        same transaction, so that a new registration of the name cannot join it, and no sync of this id begins while it
        runs. None if the id is registered, or has an active run."""
        registered = select(REPOSITORIES.c.id).where(REPOSITORIES.c.id == identity)
        active = select(RUNS.c.id).where(RUNS.c.repository_id == identity, is_active()).limit(1)
        ask = Ask(RunTrigger.COMMAND, asked_by, removal=True, repair=True, max_attempts=1)
        try:
            async with self._database.write() as connection:
                for known in (registered, active):
                    if await connection.scalar(known) is not None:
                        return None
                run = new_run(identity, name, ask, await connection.now())
                await connection.execute(RUNS.insert().values(**run))
                return await take(connection, worker, lease_seconds, run["id"])
        except IntegrityError:
            return None  # it was registered, and a sync was requested, at the same time

    # Cancelling ------------------------------------------------------------------------------------------------------

    async def cancel(self, run_id: str, *, by: str = "") -> Run:
        """A waiting or blocked run ends at once; a running one at its next heartbeat, or when its lease ends; one that
        is over is unchanged. Raises RunNotFound."""
        async with self._database.write() as connection:
            row = await _locked(connection, run_id)
            why = f"Cancelled by {by}." if by else "Cancelled on request."
            return Run.of(await cancel(connection, row, RunCancelled.code, why, cancel_requested=True))

    async def interrupt(self, run_id: str) -> None:
        """The command that asked for the run ends. So does the run, unless somebody else asked for it too."""
        alone = RUNS.c.id == run_id, is_active(), func.json_array_length(RUNS.c.asked) == 1
        async with self._database.write() as connection:
            if (row := await connection.one_or_none(locked(connection, *alone))) is not None:
                await cancel(connection, row, RunCancelled.code, "The command that asked for it was interrupted.")

    # Approving and retrying ------------------------------------------------------------------------------------------

    async def approve(self, run_id: str, ask: Ask) -> Run:
        """Allow what a blocked run stopped at, and nothing else: it waits again, before scheduled runs. If that is
        unknown, because an earlier program blocked the run, it is only tried again. Raises RunNotFound,
        RunStateConflict if it is not blocked, RepositoryNotFound if the repository was removed."""
        return await self._send_back(run_id, Event.APPROVE, ask)

    async def retry(self, run_id: str, ask: Ask) -> Run:
        """Queue a failed or cancelled run again, to do the same, before scheduled runs. Raises RunNotFound,
        RunStateConflict if it is in a different state, RepositoryNotFound."""
        return await self._send_back(run_id, Event.RETRY, ask)

    async def _send_back(self, run_id: str, event: Event, ask: Ask) -> Run:
        async with self._database.write() as connection:
            seen = await find_run(connection, run_id)
            await lock_repository(connection, seen.repository, seen.repository_id)
            row = await _locked(connection, seen.id)
            _require_state(row, event)
            now = await connection.now()
            ask = replace(ask, approval=row.brake if event is Event.APPROVE else row.approval)
            again = joined(row, ask, [ask.entry(now)]) | {"max_attempts": row.attempt + ask.max_attempts}
            return Run.of(await move(connection, row, event, not_before=now, **again))

    # Executing -------------------------------------------------------------------------------------------------------

    async def claim(self, worker: str, lease_seconds: float, *, run_id: str | None = None) -> Run | None:
        """Claim the first run that can be executed (by priority, then age) for `lease_seconds`; None if there is none.
        With `run_id` only that run. Never two runs of one repository. A run whose lease ended is taken over first, or
        ended if it was to be cancelled or has no attempt left: waiting runs may depend on it."""
        which = () if run_id is None else (RUNS.c.id == run_id,)
        # Takes no lock: most polls find nothing.
        if not await self._database.scalar(claimable(self._database, *which)):
            return None
        try:
            async with self._database.write() as connection:
                lost = await free_abandoned(connection)
                back = (run.id for run in lost if run.status is RunStatus.RETRYING)
                claimed = await take(connection, worker, lease_seconds, run_id or next(back, None))
        except IntegrityError:  # a different worker was faster; the next poll finds what else there is
            return None
        for run in lost:
            self._on_lost(run)
        return claimed

    async def others_wait(self, run: Run) -> bool:
        """Whether a run of a different repository could be executed now, if a worker were free."""
        others = RUNS.c.repository_id != run.repository_id
        return bool(await self._database.scalar(claimable(self._database, others)))

    async def asked_again(self, run: Run) -> bool:
        """Whether a sync of its repository waits for its end that a person or a push asked for, or a tick since it
        began. One that yielded has the priority of a schedule until somebody joins it."""
        news = or_(RUNS.c.priority < PRIORITIES[RunTrigger.SCHEDULE], RUNS.c.scheduled_for > run.started_at)
        waits = is_active(), status_is(*WAITING), RUNS.c.not_before <= self._database.moment()
        query = select(exists().where(RUNS.c.repository_id == run.repository_id, *waits, news))
        return bool(await self._database.scalar(query))

    async def expire(self, run: Run) -> None:
        """End the lease of a run whose worker is known to be gone, unless a different attempt has it."""
        over = update(RUNS).where(held_by(run)).values(lease_until=self._database.moment(-1.0))
        async with self._database.write() as connection:
            await connection.execute(over)
            await connection.announce()

    async def heartbeat(
        self,
        run: Run,
        lease_seconds: float,
        progress: Mapping[str, Any] | None = None,
        figures: RunFigures | None = None,
    ) -> bool:
        """Extend the lease from now; whether a person wants the run to end. `figures`: of this attempt so far."""
        columns: dict[str, Any] = {} if progress is None else {"progress": dict(progress)}
        if figures is not None:
            counts = counts_of(figures)
            columns |= {"attempt_so_far": counts, **total_counts([*run.attempts, counts])}
            del columns["files_skipped"]  # attempts may meet the same ones: the listed ones are counted at the end
        query = update(RUNS).where(held_by(run)).values(lease_until=self._database.moment(lease_seconds), **columns)
        async with self._database.write() as connection:
            row = await connection.one_or_none(query.returning(RUNS.c.cancel_requested))
        if row is None:
            raise lease_lost(run)
        return bool(row.cancel_requested)

    async def explain_lost(self, run: Run, error_code: str, error_message: str) -> None:
        """Record why the attempt was lost, unless a reason is recorded already. For reasons that could not be written
        earlier because the database was unavailable."""
        reason = {"error_code": error_code, "error_message": sanitize_text(self._message(error_message))}
        async with self._database.write() as connection:
            row = await connection.one_or_none(locked(connection, RUNS.c.id == run.id))
            if row is None:
                return
            unexplained = (run.attempt, None)
            explained = [
                entry | reason if (entry["latest"], entry["error_code"]) == unexplained else entry
                for entry in row.attempts
            ]
            goes_on = (row.status, row.attempt) == (RunStatus.RUNNING, run.attempt)
            columns = {"attempt_so_far": reason | (row.attempt_so_far or {})} if goes_on else {"attempts": explained}
            await connection.execute(update(RUNS).where(RUNS.c.id == run.id).values(**columns))

    async def record_brake(self, run: Run, brake: Mapping[str, Any]) -> None:
        """Bind an approval that was given beforehand to the deletion that the run met."""
        query = update(RUNS).where(held_by(run)).values(brake=dict(brake), approval=dict(brake))
        if not await self._database.change(query):
            raise lease_lost(run)

    async def end(
        self,
        run: Run,
        ending: Ending,
        figures: RunFigures | None = None,
        progress: Mapping[str, Any] | None = None,
    ) -> Run:
        """Write the end of the attempt, the only place that does, and return the run after it. May be repeated: the
        first answer may have been lost. `figures`, `progress`: None if those of the last heartbeat count."""
        async with self._database.write() as connection:
            await lock_repositories(connection, REPOSITORIES.c.id == run.repository_id, [REPOSITORIES.c.id])
            row = await connection.one_or_none(locked(connection, held_by(run)))
            if row is None:
                return await self._ended_before(connection, run)
            step = step_of(row, ending, self._error(ending))
            if step.event in (Event.BLOCK, Event.COMPLETE):
                step = await self._settle_blocked(connection, row, step)
            columns = dict(step.columns) if progress is None else {**step.columns, "progress": dict(progress)}
            if step.delay_seconds is not None:
                columns["not_before"] = self._database.moment(step.delay_seconds)
                if step.event is Event.HAND_BACK and is_same_wait(row.error_code, ending.code, figures):
                    columns["waits_since"] = row.waits_since
            elif figures is not None:
                columns["commit_after"] = figures.commit_after
            if figures is not None and figures.commit_title is not None:
                columns["commit_title"] = self._message(figures.commit_title, MAX_TITLE_CHARS)
                columns["commit_author"] = self._message(figures.commit_author or "", MAX_TITLE_CHARS)
            return Run.of(await move(connection, row, step.event, outcome=step.outcome, figures=figures, **columns))

    async def add_problems(self, run: Run, problems: Sequence[RunProblem]) -> None:
        """One row for each file, which replaces an earlier one."""
        if not problems:
            return
        new = self._database.insert(PROBLEMS)
        upsert = new.on_conflict_do_update(
            index_elements=[PROBLEMS.c.run_id, PROBLEMS.c.path],
            set_={"reason": new.excluded.reason, "detail": new.excluded.detail},
        )
        rows = [
            {
                "run_id": run.id,
                "path": path_key(problem.path),
                "reason": problem.reason,
                "detail": self._message(problem.detail, MAX_DETAIL_CHARS),
            }
            for problem in problems
        ]
        await self._database.change(upsert, rows, fence(run))

    async def forget_problems(self, run: Run, reason: str) -> None:
        """Delete those of earlier attempts, which this one examines again."""
        earlier = delete(PROBLEMS).where(PROBLEMS.c.run_id == run.id, PROBLEMS.c.reason == reason)
        await self._database.change(earlier, guard=fence(run))

    async def room_for_changes(self, run: Run) -> int:
        """How many more files `record_changes` may list for the run."""
        mine = CHANGES.c.run_id == run.id, CHANGES.c.change != FileChange.AT_RISK
        return max(0, MAX_CHANGES - int(await self._database.scalar(select(func.count()).where(*mine)) or 0))

    async def record_changes(self, run: Run, changes: Sequence[RunChange]) -> None:
        """One row for each file, which replaces an earlier one. At most `room_for_changes`."""
        if changes:
            await self._database.change(*change_rows(self._database, run, changes), fence(run))

    async def record_risk(self, run: Run, paths: Sequence[str]) -> None:
        """List the files that the run would have removed, in place of those of an earlier attempt."""
        earlier = delete(CHANGES).where(CHANGES.c.run_id == run.id, CHANGES.c.change == FileChange.AT_RISK)
        await self._database.change(earlier, guard=fence(run))
        await self.record_changes(run, [RunChange(path, FileChange.AT_RISK) for path in paths[:MAX_CHANGES]])

    async def hide_problems(self, run: Run, shown: Mapping[str, str]) -> None:
        """Replace paths in the problems of all runs of the repository, and remove them from their changes."""
        if not shown:
            return
        mine = select(RUNS.c.id).where(RUNS.c.repository_id == run.repository_id)
        query = update(PROBLEMS).where(PROBLEMS.c.path == bindparam("key"), PROBLEMS.c.run_id.in_(mine))
        rows = [{"key": path_key(path), "shown": path_key(masked)} for path, masked in shown.items()]
        await self._database.change(query.values(path=bindparam("shown")), rows, fence(run))
        changes = delete(CHANGES).where(CHANGES.c.path == bindparam("key"), CHANGES.c.run_id.in_(mine))
        await self._database.change(changes, [{"key": row["key"]} for row in rows], fence(run))

    # -----------------------------------------------------------------------------------------------------------------

    def _message(self, text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
        return truncate(self._redact(text), limit)

    def _error(self, ending: Ending) -> dict[str, Any]:
        message = None if ending.message is None else self._message(ending.message)
        return {"error_code": ending.code, "error_message": message}

    async def _ended_before(self, connection: Connection, run: Run) -> Run:
        """The run as it is now, if an earlier call has ended this attempt. Raises LeaseLost."""
        row = await connection.one_or_none(select(RUNS).where(RUNS.c.id == run.id))
        if row is None:
            raise lease_lost(run)
        for entry in row.attempts:
            by_itself = entry["outcome"] != LOST and entry["error_code"] != REPOSITORY_REMOVED
            if by_itself and (entry["latest"], entry["worker"]) == (run.attempt, run.worker):
                return Run.of(row)
        raise lease_lost(run)

    async def _settle_blocked(self, connection: Connection, row: Row[Any], step: Step) -> Step:
        """A repository has one blocked run at most. If `row` is to be blocked as well, the earlier one waits for both.
        If it is completed, it did the work of the blocked one, which ends, or is queued again if it has to do more."""
        which = and_(RUNS.c.repository_id == row.repository_id, is_over(), status_is(RunStatus.BLOCKED))
        blocked = next(iter(await connection.rows(locked(connection, which))), None)
        if blocked is None:
            return step
        if step.event is Event.BLOCK:
            await move(connection, blocked, Event.BLOCK, **{**joined(blocked, row, row.asked), **step.columns})
            message = f"{step.columns['error_message'] or ''} Run {blocked.id} waits for a person."
            return Step(Event.STOP, {**step.columns, "error_message": truncate(message.strip())})
        if any(getattr(blocked, flag) and not getattr(row, flag) for flag in ("full", "repair", "removal")):
            await move(connection, blocked, Event.APPROVE, not_before=self._database.moment(), brake=None)
        else:
            error: dict[str, Any] = {
                "error_code": DefinitionChanged.code,
                "error_message": f"Run {row.id} was completed since.",
            }
            await move(connection, blocked, Event.STOP, **error)
        return step


async def _locked(connection: Connection, run_id: str) -> Row[Any]:
    found = await find_run(connection, run_id)
    row = await connection.one_or_none(locked(connection, RUNS.c.id == found.id))
    if row is None:  # purged in between
        raise no_such_run(run_id)
    return row


def _require_state(row: Row[Any], event: Event) -> None:
    """Raises RunStateConflict."""
    if (row.status, event) not in TRANSITIONS:
        is_approval = event is Event.APPROVE
        which = "blocked run can be approved" if is_approval else "failed or cancelled run can be tried again"
        raise RunStateConflict(
            f"Run {row.id} is {row.status}, and only a {which}.",
            next_steps=[Sync(row.repository, allow_mass_delete=is_approval)],
        )

"""Asking for runs, and cancelling, approving and retrying them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Row, and_, exists, func, select, update
from sqlalchemy.exc import IntegrityError

from reposync.errors import Remedy, RepoSyncError, RunCancelled, RunStateConflict
from reposync.store.attempts import take
from reposync.store.database import REGISTRATIONS, Connection
from reposync.store.history import KEY_SECONDS, RunHistory, no_such_run
from reposync.store.repositories import change_repository, lock_repository
from reposync.store.repository import Repository
from reposync.store.run import IN_ADVANCE, Ask, Run
from reposync.store.run_state import (
    TRANSITIONS,
    Event,
    cancel,
    joined,
    lock_unfinished,
    locked,
    move,
    new_run,
    queue_runs,
)
from reposync.store.status import WAITING, RunStatus, RunTrigger
from reposync.store.tables import IDEMPOTENCY_KEYS, REPOSITORIES, RUNS, is_active, is_over, new_head, status_is

_KEYED = uuid.UUID("3d7c0f52-8f0e-4bb4-9d0a-4c1f0f1c7a6e")


class IdempotencyKeyReused(RepoSyncError):
    """The key was sent before, with a different request."""

    code = "IDEMPOTENCY_KEY_REUSED"
    status = 422


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The `Idempotency-Key` of a request that may be sent again. `fingerprint`: of what is requested."""

    key: str
    fingerprint: str

    @classmethod
    def of(cls, asked_by: str, credential: str, key: str, fingerprint: str) -> RequestKey:
        """`asked_by` alone does not identify the client: a token's place in the list may be that of a different token
        later."""
        return cls(str(uuid.uuid5(_KEYED, f"{asked_by}\n{credential}\n{key}")), fingerprint)


class RunQueue(RunHistory):
    async def enqueue(self, repository: str, ask: Ask, *, key: RequestKey | None = None) -> tuple[Run, bool]:
        """Ask for a run of the repository with this name. Returns the run, and whether it is new. One that waits is
        joined; a removal pauses the repository and cancels its other runs. `key`: the run of an earlier request with it
        is returned. As part of a transaction: `queue_runs`. Raises RepositoryNotFound, IdempotencyKeyReused."""
        async with self._database.write() as connection:
            row = await lock_repository(connection, repository)
            if key is not None and (before := await self._repeated(connection, key)) is not None:
                return before, False
            if ask.approval == IN_ADVANCE:
                ask = replace(ask, approval=await self._approval(connection, row.id))
            if ask.removal:
                await self._clear(connection, row)
            ((run, is_new),) = await queue_runs(connection, {row.id: row.name}, ask)
            if key is not None:
                await self._remember(connection, key, run)
            return run, is_new

    async def _clear(self, connection: Connection, repository: Row[Any]) -> None:
        """For its removal: no tick comes in between, and what else was asked for is not done any more."""
        if repository.is_active:
            paused = {"is_active": False, "paused_reason": "It is being removed.", "next_due_at": None}
            await change_repository(connection, repository.id, paused | {"updated_at": self._database.moment()})
            await connection.announce(REGISTRATIONS)
        for row in await lock_unfinished(connection, repository.id):
            if not (row.removal and row.status in WAITING):
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

    # Idempotency -----------------------------------------------------------------------------------------------------

    async def repeated(self, key: RequestKey) -> Run | None:
        """The run of a request of the last 24 hours. Raises IdempotencyKeyReused if its fingerprint differs."""
        async with self._database.read() as connection:
            return await self._repeated(connection, key)

    async def _repeated(self, connection: Connection, key: RequestKey) -> Run | None:
        keys = IDEMPOTENCY_KEYS.c
        query = select(*RUNS.c, keys.fingerprint).join_from(IDEMPOTENCY_KEYS, RUNS, keys.run_id == RUNS.c.id)
        lately = keys.created_at >= self._database.moment(-KEY_SECONDS)
        row = await connection.one_or_none(query.where(keys.key == key.key, lately))
        if row is not None and row.fingerprint != key.fingerprint:
            raise _key_reused()
        return None if row is None else Run.of(row)

    async def _remember(self, connection: Connection, key: RequestKey, run: Run) -> None:
        new = self._database.insert(IDEMPOTENCY_KEYS).values(
            key=key.key, fingerprint=key.fingerprint, run_id=run.id, created_at=self._database.moment()
        )
        replaced = {name: new.excluded[name] for name in ("fingerprint", "run_id", "created_at")}
        is_old = IDEMPOTENCY_KEYS.c.created_at < self._database.moment(-KEY_SECONDS)
        if not await connection.change(new.on_conflict_do_update(index_elements=["key"], set_=replaced, where=is_old)):
            raise _key_reused()  # for a different repository, at the same time

    # Cancelling ------------------------------------------------------------------------------------------------------

    async def cancel(self, run_id: str, *, by: str = "") -> Run:
        """A waiting or blocked run ends at once; a running one at its next heartbeat, or when its lease ends; one that
        is over is unchanged. Raises RunNotFound."""
        async with self._database.write() as connection:
            row = await self._locked(connection, run_id)
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
        seen = await self.get(run_id)
        async with self._database.write() as connection:
            await lock_repository(connection, seen.repository, seen.repository_id)
            row = await self._locked(connection, seen.id)
            _require_state(row, event)
            now = await connection.now()
            ask = replace(ask, approval=row.brake if event is Event.APPROVE else row.approval)
            again = joined(row, ask, [ask.entry(now)]) | {"max_attempts": row.attempt + ask.max_attempts}
            return Run.of(await move(connection, row, event, not_before=now, **again))

    async def _locked(self, connection: Connection, run_id: str) -> Row[Any]:
        found = await self._found(connection, run_id)
        row = await connection.one_or_none(locked(connection, RUNS.c.id == found.id))
        if row is None:  # purged in between
            raise no_such_run(run_id)
        return row


def _key_reused() -> IdempotencyKeyReused:
    return IdempotencyKeyReused(
        "This Idempotency-Key was sent with a different request before.",
        remedy="Send a new key with each new request, and the same one only to repeat it.",
    )


def _require_state(row: Row[Any], event: Event) -> None:
    """Raises RunStateConflict."""
    which, option, body = "failed or cancelled run can be tried again", "", ""
    if event is Event.APPROVE:
        which, option = "blocked run can be approved", " --allow-mass-delete"
        body = ' with `{"allow_mass_delete": true}`'
    if (row.status, event) not in TRANSITIONS:
        http = f"`POST /api/v1/repositories/{row.repository}/sync`{body} starts a new one."
        raise RunStateConflict(
            f"Run {row.id} is {row.status}, and only a {which}.",
            remedy=Remedy(f"`reposync sync {row.repository}{option}` starts a new one.", http),
        )

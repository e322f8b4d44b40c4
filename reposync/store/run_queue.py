"""Requesting runs, and withdrawing, approving and retrying them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, TypedDict, Unpack

from sqlalchemy import Row, Select, and_, exists, select, update
from sqlalchemy.exc import IntegrityError

from reposync.errors import Remedy, RepoSyncError, RunStateConflict
from reposync.store.attempts import take
from reposync.store.database import QUEUE, REGISTRATIONS, Connection
from reposync.store.history import RunHistory, no_such_run
from reposync.store.repositories import change_repository, lock_repository
from reposync.store.repository import Repository
from reposync.store.run import IN_ADVANCE, Run, RunRequest
from reposync.store.run_state import (
    MAX_ATTEMPTS,
    Event,
    add_requests,
    add_run,
    apply_requests,
    is_approval_of,
    live_requests,
    lock_unfinished,
    locked,
    move,
    new_request,
    read_requests,
    with_now,
    withdraw,
)
from reposync.store.status import PRIORITIES, WAITING, RunStatus, RunTrigger
from reposync.store.tables import CLAIM_ORDER, REPOSITORIES, REQUESTS, RUNS, is_active, is_over, new_head, status_is

_KEYED = uuid.UUID("3d7c0f52-8f0e-4bb4-9d0a-4c1f0f1c7a6e")
KEY_SECONDS = 24 * 3600.0
"""How long an `Idempotency-Key` is kept."""


class IdempotencyKeyReused(RepoSyncError):
    """The key was sent before, with a different request."""

    code = "IDEMPOTENCY_KEY_REUSED"
    status = 422


class Asked(TypedDict, total=False):
    """Who sends a run back, and how many further attempts it has."""

    by: str
    trigger: RunTrigger
    max_attempts: int


def keyed_request(asked_by: str, credential: str, key: str) -> str:
    """The id of the request that a client sends with this `Idempotency-Key`. `asked_by` alone does not identify it: a
    token's place in the list may be that of a different token later."""
    return str(uuid.uuid5(_KEYED, f"{asked_by}\n{credential}\n{key}"))


class RunQueue(RunHistory):
    """`asked_by` and `by`: see `RunRequest`; by default the trigger's name."""

    async def enqueue(
        self,
        repository: str,
        trigger: RunTrigger,
        *,
        asked_by: str = "",
        request_id: str | None = None,
        full: bool = False,
        approved: bool = False,
        removal: bool = False,
        repair: bool = False,
        max_attempts: int = MAX_ATTEMPTS,
        fingerprint: str | None = None,
        within: Connection | None = None,
    ) -> tuple[Run, bool]:
        """Request a run of the repository with this name. Returns the run, and whether it is new (for ticks see
        `Ticks`).

        A run that waits already is returned instead; the request is added to it, unless the client has sent the same
        one, with the better priority and no further wait before a retry. A removal pauses the repository and withdraws
        all other requests for it. `approved`: a mass deletion is allowed, the one that the blocked run of the
        repository stopped at, or, if there is none, the first one that this run meets. `request_id`: a UUID with which
        the caller can withdraw the request. `fingerprint`: of what is requested by an `Idempotency-Key` (see
        `keyed_request`); the run of an earlier request is returned. `within`: as part of that transaction. Raises
        RepositoryNotFound, IdempotencyKeyReused.
        """
        async with self._database.write() if within is None else nullcontext(within) as connection:
            registered = await lock_repository(connection, repository)
            identity = registered.id
            now = self._database.moment()
            asked: dict[str, Any] = {"full": full, "repair": repair, "removal": removal, "max_attempts": max_attempts}
            approval = await self._approval(connection, identity) if approved else None
            request = new_request(trigger, now, asked_by=asked_by, id=request_id, approval=approval, **asked)
            if request_id is not None and fingerprint is not None:
                if before := await self._repeated(connection, request_id, fingerprint):
                    return before, False
                expired = update(REQUESTS).where(REQUESTS.c.id == request_id)
                await connection.execute(expired.values(id=str(uuid.uuid4()), fingerprint=None))
            row = await self._next(connection, identity)
            await connection.announce(QUEUE)
            if is_new := row is None:
                row = await add_run(connection, identity, repository, [request])
            known = [] if is_new or removal or request_id is not None else await live_requests(connection, row.id)
            if not any(each.wants_same(request) for each in known):
                of = {"run_id": row.id, "repository_id": identity, "fingerprint": fingerprint}
                try:
                    await add_requests(connection, [request], **of)
                except IntegrityError as error:  # the key was sent for a different repository at the same time
                    raise _key_reused() from error
            if removal and not repair:
                if registered.is_active:  # no tick comes in between
                    paused = {"is_active": False, "paused_reason": "It is being removed.", "updated_at": now}
                    paused["next_due_at"] = None
                    await change_repository(connection, identity, paused)
                    await connection.announce(REGISTRATIONS)
                by = f"the removal by {request.asked_by}"
                for each in await lock_unfinished(connection, identity):
                    await withdraw(connection, each, by, REQUESTS.c.id != request.id)
            if not is_new:
                at_once = {"not_before": now} if row.not_before > row.now else {}
                row = await apply_requests(connection, row, **at_once)
            return Run.of(row), is_new

    async def _approval(self, connection: Connection, identity: str) -> dict[str, Any]:
        blocked = and_(RUNS.c.repository_id == identity, is_over(), status_is(RunStatus.BLOCKED))
        brake: dict[str, Any] | None = await connection.scalar(select(RUNS.c.brake).where(blocked))
        return brake if brake and brake.get("commit") else IN_ADVANCE

    async def approvals(self, run: Run) -> list[dict[str, Any]]:
        """What persons allowed this run to do. Without them it does none of it, whatever its row says."""
        if not run.approved:
            return []
        requests = (await self.requests([run.id])).get(run.id, [])
        return [each.approval for each in requests if each.is_live and each.approval]

    async def _next(self, connection: Connection, identity: str) -> Row[Any] | None:
        """The waiting run of the repository that will be claimed first."""
        waiting = with_now(connection, RUNS.c.repository_id == identity, is_active(), status_is(*WAITING))
        return await connection.one_or_none(waiting.order_by(*CLAIM_ORDER).limit(1).with_for_update())

    async def enqueue_for_push(
        self, repository: Repository, commit: str, *, is_head: bool = True, asked_by: str = "", max_attempts: int
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
            return await self.enqueue(
                row.name, RunTrigger.WEBHOOK, asked_by=asked_by, max_attempts=max_attempts, within=connection
            )

    async def claim_orphan_removal(
        self, identity: str, name: str, worker: str, lease_seconds: float, *, asked_by: str = ""
    ) -> Run | None:
        """A new run that removes the points of a repository that is no longer registered. `worker` claims it in the
        same transaction, so that a new registration of the name cannot join it, and no sync of this id begins while it
        runs. None if the id is registered, or has an active run."""
        registered = select(REPOSITORIES.c.id).where(REPOSITORIES.c.id == identity)
        active = select(RUNS.c.id).where(RUNS.c.repository_id == identity, is_active()).limit(1)
        try:
            async with self._database.write() as connection:
                for known in (registered, active):
                    if await connection.scalar(known) is not None:
                        return None
                flags: dict[str, Any] = {"max_attempts": 1, "removal": True, "repair": True}
                request = new_request(RunTrigger.COMMAND, connection.moment(), asked_by=asked_by, **flags)
                run = await add_run(connection, identity, name, [request])
                await add_requests(connection, [request], run_id=run.id, repository_id=identity)
                return (await take(connection, worker, lease_seconds, run.id))[0]
        except IntegrityError:
            return None  # it was registered, and a sync was requested, at the same time

    async def repeated(self, request_id: str, fingerprint: str) -> Run | None:
        """The run of a request of the last 24 hours. Raises IdempotencyKeyReused if its fingerprint differs."""
        async with self._database.read() as connection:
            return await self._repeated(connection, request_id, fingerprint)

    async def _repeated(self, connection: Connection, request_id: str, fingerprint: str) -> Run | None:
        joined: Select[Any] = select(*RUNS.c, REQUESTS.c.fingerprint).join_from(
            REQUESTS, RUNS, REQUESTS.c.run_id == RUNS.c.id
        )
        lately = REQUESTS.c.asked_at >= self._database.moment(-KEY_SECONDS)
        row = await connection.one_or_none(joined.where(REQUESTS.c.id == request_id, lately))
        if row is not None and row.fingerprint != fingerprint:
            raise _key_reused()
        return None if row is None else Run.of(row)

    # Withdrawing -----------------------------------------------------------------------------------------------------

    async def withdraw(self, request_id: str, *, by: str) -> Run | None:
        """Withdraw one request. A run without live requests ends: a waiting or blocked one at once, a running one at
        its next heartbeat. Returns the run after that; None if there is no such live request."""
        mine = REQUESTS.c.id == request_id
        of = select(REQUESTS.c.run_id).where(mine, REQUESTS.c.withdrawn_at.is_(None))
        async with self._database.write() as connection:
            # The request may be transferred to a different run between the first look and the lock.
            while (run_id := await connection.scalar(of)) is not None:
                row = await connection.one_or_none(locked(connection, RUNS.c.id == run_id))
                if row is not None and await connection.scalar(of) == run_id:
                    return Run.of(await withdraw(connection, row, by, mine))
            return None

    async def request_cancel(self, run_id: str, *, by: str = "") -> Run:
        """Withdraw all current requests of the run. A waiting or blocked run ends at once; a running one at its next
        heartbeat, or when its lease ends; a finished one is unchanged. Raises RunNotFound."""
        async with self._database.write() as connection:
            row = await self._locked(connection, run_id)
            row = await withdraw(connection, row, by or "cancel", cancel_requested=True)
            return Run.of(row)

    # Approving and retrying ------------------------------------------------------------------------------------------

    async def approve(self, run_id: str, **asked: Unpack[Asked]) -> Run:
        """Allow what a blocked run stopped at, and nothing else: it waits again, before scheduled runs. If that is
        unknown, because an earlier program blocked the run, it is only tried again. Raises RunNotFound,
        RunStateConflict if it is not blocked, RepositoryNotFound if the repository was removed."""
        return await self._send_back(run_id, Event.APPROVE, **asked)

    async def retry(self, run_id: str, **asked: Unpack[Asked]) -> Run:
        """Queue a failed or cancelled run again, to do the same, before scheduled runs. Raises RunNotFound,
        RunStateConflict if it is in a different state, RepositoryNotFound."""
        return await self._send_back(run_id, Event.RETRY, **asked)

    async def _send_back(
        self,
        run_id: str,
        event: Event,
        *,
        by: str = "",
        trigger: RunTrigger = RunTrigger.COMMAND,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> Run:
        seen = await self.get(run_id)
        async with self._database.write() as connection:
            await lock_repository(connection, seen.repository, seen.repository_id)
            row = await self._locked(connection, seen.id)
            now = self._database.moment()
            request = new_request(
                trigger,
                now,
                asked_by=by,
                priority=PRIORITIES[RunTrigger.COMMAND],
                max_attempts=row.attempt - row.handed_back + max_attempts,
                **_repeated_flags(row, event, (await read_requests(connection, [row.id])).get(row.id, [])),
            )
            await add_requests(connection, [request], run_id=row.id, repository_id=row.repository_id)
            row = await move(connection, row, event, not_before=now)
            return Run.of(await apply_requests(connection, row))

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


def _repeated_flags(row: Row[Any], event: Event, requests: Sequence[RunRequest]) -> dict[str, Any]:
    """What a request asks for that approves the run, or repeats it. Raises RunStateConflict."""
    if event is Event.APPROVE and row.status == RunStatus.BLOCKED:
        return {"approval": row.brake or None}
    if event is Event.RETRY and row.status in (RunStatus.FAILED, RunStatus.CANCELLED):
        given = [each.approval for each in requests if row.approved and is_approval_of(each.approval, row.brake)]
        approval = given[-1] if given else None
        return {"full": row.full, "repair": row.repair, "removal": row.removal, "approval": approval}
    which, option, body = "failed or cancelled run can be tried again", "", ""
    if event is Event.APPROVE:
        which, option = "blocked run can be approved", " --allow-mass-delete"
        body = ' with `{"allow_mass_delete": true}`'
    http = f"`POST /api/v1/repositories/{row.repository}/sync`{body} starts a new one."
    raise RunStateConflict(
        f"Run {row.id} is {row.status}, and only a {which}.",
        remedy=Remedy(f"`reposync sync {row.repository}{option}` starts a new one.", http),
    )

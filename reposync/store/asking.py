"""Asking for runs, and taking that back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, ColumnElement, Row, Select, and_, bindparam, exists, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlmodel.sql.sqltypes import UTCDateTime

from reposync.errors import Remedy, RepoSyncError, RunStateConflict
from reposync.store.claims import CLAIM_ORDER
from reposync.store.columns import storable
from reposync.store.database import QUEUE
from reposync.store.history import RunHistory, no_such_run
from reposync.store.repositories import lock_repository, lock_repository_by_id
from reposync.store.requests import (
    MAX_ATTEMPTS,
    RunRequest,
    add_requests,
    follow_requests,
    live_requests,
    new_request,
    new_run,
    withdraw,
)
from reposync.store.run import Run, run_record
from reposync.store.status import PRIORITIES, WAITING, RunStatus, RunTrigger
from reposync.store.tables import IDEMPOTENCY_KEYS, REPOSITORIES, REQUESTS, RUNS, is_active, status_is
from reposync.store.transitions import Event, lock_unfinished, locked, move

KEY_SECONDS = 24 * 3600.0
"""How long an `Idempotency-Key` is known."""


class IdempotencyKeyReused(RepoSyncError):
    """The key was sent before, with another request."""

    code = "IDEMPOTENCY_KEY_REUSED"
    status = 422


@dataclass(frozen=True, slots=True)
class Answered:
    """`answer`: what was said to the first request with the key; `is_repeat`: this is not the first."""

    run_id: str
    answer: Mapping[str, Any]
    is_repeat: bool


def _own_key(key: str, credential: str) -> str:
    """What a key is kept under. `asked_by` is not enough: a token's place in the list becomes another one's."""
    return hashlib.sha256(f"{credential}\n{key}".encode()).hexdigest() if credential else key


def _covering(now: ColumnElement[datetime]) -> Select[Any]:
    """A waiting run that has a live request of the same client for the same, or for more."""
    waits = and_(RUNS.c.repository_id == REPOSITORIES.c.id, is_active(), status_is(*WAITING), RUNS.c.not_before <= now)
    same = exists().where(
        REQUESTS.c.run_id == RUNS.c.id,
        REQUESTS.c.withdrawn_at.is_(None),
        REQUESTS.c.asked_by == bindparam("asked_by"),
        REQUESTS.c.trigger == bindparam("trigger"),
        or_(REQUESTS.c.full, ~bindparam("full", type_=Boolean)),
    )
    # What left the registry is not synced any more; whoever asks is told so by who enqueues.
    stays = or_(REPOSITORIES.c.is_active, REPOSITORIES.c.paused_reason.is_not(None))
    named = and_(REPOSITORIES.c.name == bindparam("repository"), stays)
    return select(*RUNS.c).join_from(REPOSITORIES, RUNS, and_(waits, same)).where(named).order_by(*CLAIM_ORDER).limit(1)


# Made once: putting the statement together takes longer than executing it.
_BY_SERVERS_CLOCK = _covering(func.statement_timestamp(type_=UTCDateTime()))
_BY_OUR_CLOCK = _covering(bindparam("now", type_=UTCDateTime()))


class Asking(RunHistory):
    """Every method raises StoreUnavailable. `asked_by` and `by`: see `RunRequest`; empty for the trigger's name."""

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
        priority: int | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        within: AsyncConnection | None = None,
    ) -> tuple[Run, bool]:
        """Ask for a run of the repository of that name; the run, and whether it is a new one (for ticks see `Ticks`).

        One that waits already is returned instead, and does what this call asks for besides: full, approved, removal
        (of the repository, in place of a sync), repair, with the better priority, and no further wait before it is
        tried again. A removal takes everything back that others asked of the repository. `request_id`: a UUID by which
        the caller may withdraw the request. `within`: as a part of that transaction. Raises RepositoryNotFound.
        """
        async with self._database.write() if within is None else nullcontext(within) as connection:
            identity = await lock_repository(connection, repository)
            request = new_request(
                trigger,
                self._database.moment(),
                asked_by=asked_by,
                request_id=request_id,
                priority=priority,
                max_attempts=max_attempts,
                full=full,
                repair=repair,
                removal=removal,
                approval={} if approved else None,
            )
            run, is_new = await self._ask(connection, identity, repository, request)
            if removal and not repair:
                await self._withdraw_others(connection, identity, request)
                run = await self._read(connection, run.id)
            return run, is_new

    async def _ask(
        self, connection: AsyncConnection, identity: str, name: str, request: RunRequest, **columns: Any
    ) -> tuple[Run, bool]:
        """`columns`: of the request's row, besides. The caller has locked the repository."""
        row = await self._next(connection, identity)
        await self._database.announce(connection, QUEUE)
        now = self._database.moment()
        if row is None:
            new = insert(RUNS).values(**new_run(identity, name, now, [request])).returning(*RUNS.c)
            row = (await connection.execute(new)).one()
            await add_requests(connection, [request], run_id=row.id, repository_id=identity, **columns)
            return run_record(row), True
        live = await live_requests(connection, row)
        await add_requests(connection, [request], run_id=row.id, repository_id=identity, **columns)
        at_once = {"not_before": now} if row.not_before > row.now else {}
        return run_record(await follow_requests(connection, row, [*live, request], **at_once)), False

    async def _next(self, connection: AsyncConnection, identity: str) -> Row[Any] | None:
        """The waiting run of the repository that will be claimed first."""
        waiting: Select[Any] = (
            select(*RUNS.c, self._database.moment().label("now"))
            .where(RUNS.c.repository_id == identity, is_active(), status_is(*WAITING))
            .order_by(*CLAIM_ORDER)
            .limit(1)
            .with_for_update()
        )
        row: Row[Any] | None = (await connection.execute(waiting)).one_or_none()
        return row

    async def _withdraw_others(self, connection: AsyncConnection, identity: str, removal: RunRequest) -> None:
        """Nothing of the repository is synced any more."""
        for row in await lock_unfinished(connection, self._database, identity):
            live = await live_requests(connection, row)
            others = [each for each in live if each.id != removal.id]
            if others:
                await withdraw(connection, self._database, row, others, live, f"the removal by {removal.asked_by}")

    async def waiting_run(
        self, repository: str, trigger: RunTrigger, *, asked_by: str = "", full: bool = False
    ) -> Run | None:
        """Fast path: the queued run for which this client asked for the same already, without a write; None where there
        is none, or where the repository left the registry.

        It had not begun at a moment after this was called, so it will see whatever the caller saw in the source.
        """
        asked: dict[str, Any] = {"repository": storable(repository), "trigger": trigger, "full": full}
        asked["asked_by"] = asked_by or trigger
        query = _BY_SERVERS_CLOCK
        if not self._database.is_postgresql:
            query = _BY_OUR_CLOCK
            asked["now"] = self.now()
        async with self._database.read() as connection:
            row = (await connection.execute(query, asked)).one_or_none()
        return None if row is None else run_record(row)

    async def enqueue_once(
        self,
        key: str,
        fingerprint: str,
        repository: str,
        trigger: RunTrigger,
        *,
        asked_by: str = "",
        credential: str = "",
        answer: Callable[[Run], Mapping[str, Any]],
        full: bool = False,
        approved: bool = False,
        max_attempts: int,
    ) -> Answered:
        """`enqueue`, once for each key of this credential in 24 hours. `fingerprint`: what the key is for; `answer`:
        what to tell of the run, JSON, kept for those who ask again.

        Raises IdempotencyKeyReused, and RepositoryNotFound, which uses up no key.
        """
        how: dict[str, Any] = {"asked_by": asked_by, "full": full, "approval": {} if approved else None}
        own = _own_key(key, credential)
        try:
            async with self._database.write() as connection:
                identity = await lock_repository(connection, repository)
                request = new_request(trigger, self._database.moment(), max_attempts=max_attempts, **how)
                mine = and_(REQUESTS.c.asked_by == request.asked_by, REQUESTS.c.idempotency_key == own)
                if before := await self._before(connection, key, fingerprint, request.asked_by, credential):
                    return before
                over = {"idempotency_key": None, "fingerprint": None, "answer": None}
                await connection.execute(update(REQUESTS).where(mine).values(**over))
                kept = {"idempotency_key": own, "fingerprint": fingerprint}
                run, _ = await self._ask(connection, identity, repository, request, **kept)
                told = json.dumps(answer(run))
                await connection.execute(update(REQUESTS).where(REQUESTS.c.id == request.id).values(answer=told))
                return Answered(run.id, json.loads(told), False)
        except IntegrityError:  # sent for another repository at the same moment
            if before := await self.answered(key, fingerprint, asked_by=asked_by or trigger, credential=credential):
                return before
            raise

    async def answered(self, key: str, fingerprint: str, *, asked_by: str, credential: str = "") -> Answered | None:
        """What was answered to a request of this credential with this key; None if it is free. Raises
        IdempotencyKeyReused."""
        async with self._database.read() as connection:
            return await self._before(connection, key, fingerprint, asked_by, credential)

    async def _before(
        self, connection: AsyncConnection, key: str, fingerprint: str, asked_by: str, credential: str
    ) -> Answered | None:
        since = self._database.moment(-KEY_SECONDS)
        own = REQUESTS.c.idempotency_key == _own_key(key, credential)
        mine = and_(REQUESTS.c.asked_by == asked_by, own, REQUESTS.c.asked_at >= since)
        query = select(REQUESTS.c.run_id, REQUESTS.c.fingerprint, REQUESTS.c.answer).where(mine)
        row = (await connection.execute(query)).one_or_none()
        if row is None:
            old = IDEMPOTENCY_KEYS.c
            same = and_(old.key == key, old.fingerprint == fingerprint, old.created_at >= since)
            row = (await connection.execute(select(old.run_id, old.fingerprint, old.answer).where(same))).one_or_none()
        if row is None:
            return None
        if row.fingerprint != fingerprint:
            raise IdempotencyKeyReused(
                "This Idempotency-Key was sent with another request before.",
                remedy="Send a new key with each new request, and the same one only to repeat it.",
            )
        return Answered(row.run_id, json.loads(row.answer), True)

    # Taking it back --------------------------------------------------------------------------------------------------

    async def withdraw(self, request_id: str, *, by: str) -> Run | None:
        """Take one request back. A run that nobody asks for any more ends: one that waits or is blocked at once, a
        running one at its next heartbeat. The run as it is then; None where there is no such request any more."""
        of = select(REQUESTS.c.run_id).where(REQUESTS.c.id == request_id, REQUESTS.c.withdrawn_at.is_(None))
        async with self._database.write() as connection:
            # Another run may have got the request between the first look and the lock.
            while (run_id := await connection.scalar(of)) is not None:
                row = (await connection.execute(locked(self._database, RUNS.c.id == run_id))).one_or_none()
                if row is not None and await connection.scalar(of) == run_id:
                    return await self._withdraw(connection, row, by, lambda each: each.id == request_id)
            return None

    async def request_cancel(self, run_id: str, *, by: str = "") -> Run:
        """Take back everything that is asked of the run now. A waiting or blocked run ends at once; a running one is
        told at its next heartbeat, and ends by itself if its worker is gone; a finished one stays as it is. Raises
        RunNotFound."""
        async with self._database.write() as connection:
            row = await self._locked(connection, run_id)
            return await self._withdraw(connection, row, by, lambda each: True, cancel_requested=True)

    async def _withdraw(self, connection: AsyncConnection, row: Row[Any], by: str, which: Any, **ending: Any) -> Run:
        if row.status not in (*WAITING, RunStatus.RUNNING, RunStatus.BLOCKED):
            return run_record(row)
        live = await live_requests(connection, row)
        gone = [each for each in live if which(each)]
        return run_record(await withdraw(connection, self._database, row, gone, live, by or "cancel", **ending))

    # A person sends a run back into the queue ------------------------------------------------------------------------

    async def approve(
        self,
        run_id: str,
        *,
        by: str = "",
        trigger: RunTrigger = RunTrigger.COMMAND,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> Run:
        """A person allows what a blocked run stopped at: it waits again, with so many attempts more and before what the
        clock asks for. Raises RunNotFound, RunStateConflict where it is not blocked, RepositoryNotFound where the
        repository was removed."""
        seen = await self.get(run_id)
        async with self._database.write() as connection:
            await lock_repository_by_id(connection, seen.repository_id, seen.repository)
            row = await self._locked(connection, seen.id)
            if row.status != RunStatus.BLOCKED:
                raise RunStateConflict(
                    f"Run {row.id} is {row.status}, and only a blocked run can be approved.",
                    remedy=Remedy(
                        f"`reposync sync {row.repository} --allow-mass-delete` starts a new one.",
                        f'`POST /api/v1/repositories/{row.repository}/sync` with `{{"allow_mass_delete": true}}` '
                        "starts a new one.",
                    ),
                )
            request = self._again(row, trigger, by, max_attempts, approval=row.brake or {})
            return await self._send_back(connection, row, Event.APPROVE, request)

    async def retry(
        self,
        run_id: str,
        *,
        by: str = "",
        trigger: RunTrigger = RunTrigger.COMMAND,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> Run:
        """A person sends a run that failed or was cancelled back into the queue, to do what it was to do, with so many
        attempts more and before what the clock asks for. Raises RunNotFound, RunStateConflict where it is in no such
        state, RepositoryNotFound."""
        seen = await self.get(run_id)
        async with self._database.write() as connection:
            await lock_repository_by_id(connection, seen.repository_id, seen.repository)
            row = await self._locked(connection, seen.id)
            if row.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
                raise RunStateConflict(
                    f"Run {row.id} is {row.status}, and only a failed or cancelled run can be tried again.",
                    remedy=Remedy(
                        f"`reposync sync {row.repository}` starts a new one.",
                        f"`POST /api/v1/repositories/{row.repository}/sync` starts a new one.",
                    ),
                )
            asked = {"full": row.full, "repair": row.repair, "removal": row.removal}
            approval = (row.brake or {}) if row.approved else None
            request = self._again(row, trigger, by, max_attempts, approval=approval, **asked)
            return await self._send_back(connection, row, Event.RETRY, request)

    def _again(self, row: Row[Any], trigger: RunTrigger, by: str, max_attempts: int, **asked: Any) -> RunRequest:
        failed = row.attempt - row.handed_back
        return new_request(
            trigger,
            self._database.moment(),
            asked_by=by,
            priority=PRIORITIES[RunTrigger.COMMAND],
            max_attempts=failed + max_attempts,
            **asked,
        )

    async def _send_back(self, connection: AsyncConnection, row: Row[Any], event: Event, request: RunRequest) -> Run:
        live = await live_requests(connection, row)
        await add_requests(connection, [request], run_id=row.id, repository_id=row.repository_id)
        row = await move(connection, self._database, row, event, not_before=self._database.moment())
        return run_record(await follow_requests(connection, row, [*live, request]))

    # -----------------------------------------------------------------------------------------------------------------

    async def _locked(self, connection: AsyncConnection, run_id: str) -> Row[Any]:
        found = await self._found(connection, run_id)
        row: Row[Any] | None = (await connection.execute(locked(self._database, RUNS.c.id == found.id))).one_or_none()
        if row is None:  # purged in between
            raise no_such_run(run_id)
        return row

    async def _read(self, connection: AsyncConnection, run_id: str) -> Run:
        return run_record((await connection.execute(select(RUNS).where(RUNS.c.id == run_id))).one())

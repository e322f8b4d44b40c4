"""The one run of a repository that waits for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import DefinitionChanged
from reposync.store.database import Database
from reposync.store.requests import derive, follow_requests, live_requests, pass_on
from reposync.store.transitions import Event, move


async def stop_again(
    connection: AsyncConnection,
    database: Database,
    stopped: Row[Any],
    blocked: Sequence[Row[Any]],
    said: Mapping[str, Any],
) -> None:
    """`stopped`, which is about to end, met what a person has to decide. The first of the `blocked` runs of its
    repository stands for it from now on, and for the others: earlier programs blocked one each time."""
    first, *surplus = blocked
    for each in surplus:
        there = await live_requests(connection, first)
        await pass_on(connection, database, await live_requests(connection, each), first, there)
        await _supersede(connection, database, each, f"Run {first.id} waits for the same decision.")
    there = await live_requests(connection, first)
    await pass_on(connection, database, await live_requests(connection, stopped), first, there)
    took = (stopped.now - stopped.started_at).total_seconds()
    times = {"started_at": stopped.started_at, "duration_seconds": max(0.0, took)}
    row = await move(connection, database, first, Event.STOP_AGAIN, **{"brake": None, **said, **times})
    await follow_requests(connection, row, await live_requests(connection, row))


async def close_blocked(
    connection: AsyncConnection, database: Database, completed: Row[Any], blocked: Sequence[Row[Any]]
) -> None:
    """`completed` did what the blocked runs of its repository were to do, or less: those are queued again."""
    for each in blocked:
        live = await live_requests(connection, each)
        wanted = derive(live, brake=None, handed_back=0) if live else {}
        if any(wanted.get(flag) and not getattr(completed, flag) for flag in ("full", "repair", "removal")):
            row = await move(connection, database, each, Event.REQUEUE, not_before=database.moment())
            await follow_requests(connection, row, live)
        else:
            await _supersede(connection, database, each, f"Run {completed.id} was completed since.")


async def _supersede(connection: AsyncConnection, database: Database, row: Row[Any], message: str) -> None:
    said = {"error_code": DefinitionChanged.code, "error_message": message}
    await move(connection, database, row, Event.SUPERSEDE, **said)

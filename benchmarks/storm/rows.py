"""What the database of the daemons says, read past their own code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from benchmarks.storm.proofs import Attempt, TickTaken
from reposync.store.database import Database

# A run's row keeps the latest tick that it took, so another run, or the same tick once more, could hide behind it:
# this notes each one as it is taken, in the transaction that takes it.
JOURNAL = """
CREATE TABLE storm_ticks (
    number bigserial PRIMARY KEY, run_id text, repository text, tick timestamptz, joined boolean, status text,
    at timestamptz DEFAULT clock_timestamp()
);
CREATE FUNCTION storm_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.scheduled_for IS NOT NULL AND (TG_OP = 'INSERT' OR NEW.scheduled_for IS DISTINCT FROM OLD.scheduled_for) THEN
        INSERT INTO storm_ticks (run_id, repository, tick, joined, status)
        VALUES (NEW.id, NEW.repository, NEW.scheduled_for, TG_OP = 'UPDATE', NULL);
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION storm_miss() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO storm_ticks (repository, tick, joined, status)
    VALUES (NEW.name, (NEW.missed_ticks->0->>'scheduled_for')::timestamptz, false, 'missed');
    RETURN NULL;
END $$;
CREATE TRIGGER storm_misses AFTER UPDATE OF missed_ticks ON repositories
    FOR EACH ROW WHEN (OLD.missed_ticks::text <> NEW.missed_ticks::text) EXECUTE FUNCTION storm_miss();
CREATE TRIGGER storm_notes AFTER INSERT OR UPDATE OF scheduled_for ON sync_runs
    FOR EACH ROW EXECUTE FUNCTION storm_note();
"""


# An entry that stands for several hand-backs did nothing, and other attempts may have gone on between them.
ATTEMPTS = """
    json_to_recordset(attempts) AS a(
        attempt int, worker text, started_at timestamptz, ended_at timestamptz, outcome text, error_code text, times int
    )"""


@dataclass(frozen=True)
class Repository:
    id: str
    name: str
    last_commit: str | None
    last_sync_at: datetime | None


@dataclass(frozen=True)
class Records:
    """Everything at the end. `runs` counts by (trigger, status), `failures` by (what became of an attempt or
    a run, error code)."""

    repositories: list[Repository]
    attempts: list[Attempt]
    ticks: list[TickTaken]
    same_tick: int
    runs: Counter[tuple[str, str]]
    failures: Counter[tuple[str, str]]
    manifest: dict[str, dict[str, tuple[str, int]]]


async def prepare(url: str) -> None:
    """All tables, and the journal of ticks."""
    async with await Database.open(url) as database:
        await database.upgrade()
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(JOURNAL)
    finally:
        await connection.close()


async def repositories(connection: asyncpg.Connection) -> list[Repository]:
    rows = await connection.fetch("SELECT id, name, last_commit, last_sync_at FROM repositories ORDER BY name")
    return [Repository(**dict(row)) for row in rows]


async def read(url: str, process_of: Callable[[str], str]) -> Records:
    """`process_of`: whose a worker's name is."""
    connection = await asyncpg.connect(url)
    try:
        found = await repositories(connection)
        attempts = await connection.fetch(
            "SELECT repository, id AS run_id, a.attempt, a.worker, a.started_at, a.ended_at, a.outcome"
            f" FROM sync_runs, {ATTEMPTS} WHERE times = 1"
            " UNION ALL SELECT repository, id, attempt, worker, started_at, NULL, NULL"
            " FROM sync_runs WHERE status = 'running'"
        )
        ticks = await connection.fetch("SELECT repository, tick, joined, status, at FROM storm_ticks ORDER BY number")
        same_tick = await connection.fetchval(
            "SELECT count(*) FROM (SELECT 1 FROM sync_runs WHERE scheduled_for IS NOT NULL"
            " GROUP BY repository_id, scheduled_for HAVING count(*) > 1) AS same"
        )
        runs = await connection.fetch("SELECT trigger, status, count(*) FROM sync_runs GROUP BY 1, 2")
        failures = await connection.fetch(
            "SELECT a.outcome AS what, a.error_code, sum(times)::bigint AS count"
            f" FROM sync_runs, {ATTEMPTS} WHERE a.error_code IS NOT NULL OR outcome = 'lost' GROUP BY 1, 2"
            " UNION ALL SELECT 'run ' || status, error_code, count(*) FROM sync_runs"
            " WHERE status NOT IN ('completed', 'queued', 'running') GROUP BY 1, 2"
        )
        files = await connection.fetch(
            "SELECT r.name, coalesce(f.long_path, f.path) AS path, f.blob_sha, f.chunks"
            " FROM indexed_files f JOIN repositories r ON r.id = f.repository_id"
        )
    finally:
        await connection.close()
    manifest: dict[str, dict[str, tuple[str, int]]] = {each.name: {} for each in found}
    for row in files:
        manifest[row["name"]][row["path"]] = (row["blob_sha"], row["chunks"])
    return Records(
        found,
        [
            Attempt(
                row["repository"],
                row["run_id"],
                row["attempt"],
                process_of(row["worker"]),
                row["started_at"].timestamp(),
                row["ended_at"].timestamp() if row["ended_at"] else None,
                row["outcome"],
            )
            for row in attempts
        ],
        [
            TickTaken(
                row["repository"],
                row["tick"].timestamp(),
                row["at"].timestamp(),
                row["joined"],
                row["status"] == "missed",
            )
            for row in ticks
        ],
        same_tick,
        Counter({(row["trigger"], row["status"]): row["count"] for row in runs}),
        Counter({(row["what"], row["error_code"] or ""): row["count"] for row in failures}),
        manifest,
    )

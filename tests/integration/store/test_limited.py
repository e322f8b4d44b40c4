"""A limited database is one in which the other repositories, and everything of them, were never there."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import Table, delete, select, text

from reposync.errors import RepoSyncError
from reposync.finding import Finding
from reposync.store.audit import AuditLog
from reposync.store.credentials import Credentials, OAuthClients
from reposync.store.database import Database
from reposync.store.endings import Finish
from reposync.store.indexes import SCHEMA
from reposync.store.limiting import StatementRefused, limited_statement
from reposync.store.registry import ProjectGroups, RegistryDocuments
from reposync.store.run import QueueFigures, RunChange, RunCount, RunFigures, RunProblem
from reposync.store.tables import FILES, PROBLEMS, REPOSITORIES, RUNS, VERSIONS
from reposync.store.workers import StoredEndedSessions, Workers
from reposync.visible import EVERYTHING, NOTHING, Visible
from tests.integration.store.calls import CALLS, Installation, row_of
from tests.integration.store.conftest import COMMIT, Store

ONLY_FOR_ALL = {
    "AuditLog.page",
    "Credentials.end_own",
    "Credentials.find",
    "Credentials.grant",
    "Credentials.own",
    "OAuthClients.get",
    "ProjectGroups.all",
    "ProjectGroups.take",
    "RegistryDocuments.current",
    "SecretFindings.key",
    "StoredEndedSessions.has_ended",
    "index_queries.search_scope",
}
"""Reads of tables that hold more than repositories, and the recursive query of a search in everything."""
OF_NO_ROWS = {"Database.ping", "Database.schema", "Database.upgrade", "DatabaseClock.measure", "Ticks.take"}
"""And the ticks, which log an error and go on."""
MANY = frozenset(str(uuid.uuid4()) for _ in range(500))
"""Ids of repositories that do not exist: SQLite compares so many in a different way."""


async def installation(database: Database) -> Installation:
    """With rows of several repositories in every table."""
    it = await Installation.make(database)
    run = await it.store.running("neighbour", lease_seconds=1e6)
    _, live = await it.store.replaced(run)
    await it.store.manifests.record(run, live.id, [row_of("a.py"), row_of("hidden/c.py")])
    await it.store.runs.add_problems(run, [RunProblem("a.py", "failed", "It is secret.")])
    await it.store.runs.record_changes(run, [RunChange("a.py", "added")])
    await it.store.findings.record(run, COMMIT, {"a.py": [Finding(3, "gitlab-pat", "1" * 16, "mask")]})
    await it.store.findings.record(it.running, COMMIT, {"a.py": [Finding(3, "gitlab-pat", "0" * 16, "mask")]})
    await it.store.runs.end(run, Finish(), RunFigures())
    return it


def on(it: Installation, database: Database) -> Installation:
    return dataclasses.replace(
        it,
        store=Store(database),
        documents=RegistryDocuments(database),
        groups=ProjectGroups(database),
        workers=Workers(database),
        sessions=StoredEndedSessions(lambda: database),
        credentials=Credentials(database),
        clients=OAuthClients(database),
        audit=AuditLog(database),
    )


async def outcome(it: Installation, name: str) -> object:
    try:
        return await CALLS[name](it)
    except (RepoSyncError, StatementRefused) as error:
        return f"{type(error).__name__}: {error}"


def comparable(shown: object) -> object:
    """Without the order of what has none, and what the database's own clock adds."""
    if isinstance(shown, list) and all(isinstance(each, RunCount) for each in shown):
        return sorted(map(repr, shown))
    return dataclasses.replace(shown, oldest_seconds=0.0) if isinstance(shown, QueueFigures) else shown


async def rows(database: Database) -> Mapping[str, Any]:
    return {table.name: sorted(map(repr, await database.rows(select(table)))) for table in SCHEMA.sorted_tables}


async def forget(database: Database, visible: Visible) -> None:
    """Delete everything of the other repositories."""
    seen = sorted(visible.ids or ())
    versions = select(VERSIONS.c.id).where(VERSIONS.c.repository_id.in_(seen))
    runs = select(RUNS.c.id).where(RUNS.c.repository_id.in_(seen))
    async with database.write() as connection:
        await connection.execute(delete(FILES).where(FILES.c.version_id.not_in(versions)))
        await connection.execute(delete(PROBLEMS).where(PROBLEMS.c.run_id.not_in(runs)))
        await connection.execute(delete(RUNS).where(RUNS.c.repository_id.not_in(seen)))
        await connection.execute(delete(REPOSITORIES).where(REPOSITORIES.c.id.not_in(seen)))


@pytest.mark.parametrize("more", [frozenset[str](), MANY], ids=["few", "many"])
@pytest.mark.parametrize("names", [["payments"], ["neighbour", "other"], []], ids=["one", "several", "none"])
async def test_every_method_answers_as_if_the_other_repositories_did_not_exist(
    database: Database, names: list[str], more: frozenset[str]
):
    it = await installation(database)
    visible = Visible(frozenset(row.id for row in await it.store.repositories.list(names)) | more)
    limited, before = on(it, database.limited(visible)), await rows(database)

    shown = {name: await outcome(limited, name) for name in CALLS if name not in OF_NO_ROWS}
    refused = {name for name, each in shown.items() if str(each).startswith("StatementRefused")}

    assert await rows(database) == before, "a limited database was written to"
    await forget(database, visible)
    for name in sorted(shown.keys() - refused):
        assert comparable(await outcome(it, name)) == comparable(shown[name]), name
    writes = {name for name in refused if "is not written to" in str(shown[name])}
    assert refused - writes == ONLY_FOR_ALL


async def test_what_is_hidden_is_found_again_without_the_limit(database: Database):
    it = await installation(database)
    everything = database.limited(EVERYTHING)

    assert everything is database
    assert await it.store.repositories.names() == await Store(everything).repositories.names()
    assert await Store(database.limited(NOTHING)).repositories.names() == []


async def test_a_limit_of_a_limited_database_leaves_what_both_show(database: Database):
    it = await installation(database)
    both = database.limited(Visible(frozenset({it.row.id}))).limited(Visible(frozenset({it.row.id, it.other.id})))

    assert await Store(both).repositories.names() == ["payments"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE repositories SET epoch = 0",
        "WITH gone AS (DELETE FROM sync_runs RETURNING *) SELECT * FROM gone",
        "WITH RECURSIVE one AS (SELECT 1) SELECT * FROM one",
        "SELECT * FROM registry_documents",
        "PRAGMA table_list",
    ],
)
async def test_a_statement_that_cannot_be_limited_is_refused(database: Database, statement: str):
    with pytest.raises(StatementRefused):
        await database.limited(NOTHING).rows(text(statement))


async def test_words_of_a_statement_are_limited_too(database: Database):
    await installation(database)
    one = database.limited(Visible(frozenset({(await Store(database).repositories.get("payments")).id})))

    assert await one.scalars(text("SELECT name FROM repositories")) == ["payments"]
    assert await one.scalars(text("WITH named AS (SELECT name FROM repositories) SELECT name FROM named")) == [
        "payments"
    ]


@pytest.mark.parametrize("table", SCHEMA.sorted_tables, ids=lambda table: table.name)
async def test_every_table_is_limited_or_closed_unless_it_has_nothing_of_repositories(database: Database, table: Table):
    await installation(database)
    try:
        shown = await database.limited(NOTHING).rows(select(table))
    except StatementRefused:
        return
    assert shown == [] or table.name == "workers"


def test_the_text_of_a_statement_depends_on_its_tables_and_not_on_the_repositories():
    prefix, rest = limited_statement("SELECT name FROM repositories WHERE id = ?", "{column} IN (?1)", 2)
    assert prefix == "WITH repositories AS NOT MATERIALIZED (SELECT * FROM main.repositories WHERE id IN (?1)) "
    assert rest == "SELECT name FROM repositories WHERE id = ?"

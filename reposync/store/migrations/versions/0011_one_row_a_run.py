"""A run is one row, which lists who asked for it, and its attempts; one registry document instead of several files; a
group of GitLab projects is a row with its definition, whether it comes from that document or a request; and the moment
at which a repository, or the listing of a group, is due, with the ticks that a repository missed; and the people who
sign in at GitLab, with what stands for them, and what they did; and what commits say of files. Programs of 0.2 cannot
work beside it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

log = logging.getLogger(__name__)

_MOMENT = {"postgresql": "TIMESTAMP WITH TIME ZONE", "sqlite": "DATETIME"}
_UNUSED_TABLES = (
    *("run_requests", "run_attempts", "missed_ticks", "superseded_digests", "registry_files"),
    "idempotency_keys",  # requests are not repeated by key any more: one for a queued run joins it
)
_UNUSED = {
    "sync_runs": ("approved", "first_started_at", "earlier_seconds"),
    "project_groups": ("worker", "lease_until", "attempt", "checked_at", "projects", "error_code", "error_message"),
    "repositories": (
        *("index_hold", "attributes", "indexed_collection", "index_identity", "resolved_from"),
        *("content_fingerprint", "scheduled_since"),
    ),
}
_COUNTS = ("files_processed", "files_deleted", "files_skipped", "files_failed", "chunks_embedded", "chunks_reused")
_SECONDS = {
    "postgresql": "extract(epoch FROM ended_at - started_at)",
    "sqlite": "(julianday(ended_at) - julianday(started_at)) * 86400.0",
}
_TOMORROW = {
    "postgresql": "now() + interval '1 day'",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 day')",
}
_OF_HISTORY = {
    "ix_sync_runs_eventful_newest": "(queued_at DESC, id DESC) WHERE NOT idle",
    "ix_sync_runs_idle": "(repository, trigger, queued_at) WHERE idle",
    "ix_sync_runs_error_newest": "(error_code, queued_at DESC, id DESC) WHERE error_code IS NOT NULL",
    "ix_sync_runs_commit_after": "(commit_after) WHERE commit_after IS NOT NULL",
}
# SQLite prefers the index that was created last, if several fit.
_PREFERRED = {
    "ix_sync_runs_active": "(repository_id) WHERE status IN",
    "ix_sync_runs_active_newest": "(queued_at DESC, id DESC) WHERE status IN",
    "ix_sync_runs_over_newest": "(status, queued_at DESC, id DESC) WHERE status NOT IN",
}


def upgrade() -> None:
    is_sqlite = op.get_context().dialect.name == "sqlite"
    moment = _MOMENT[op.get_context().dialect.name]
    op.execute(f"ALTER TABLE repositories ADD COLUMN next_due_at {moment}")
    op.execute("ALTER TABLE sync_runs ADD COLUMN asked JSON DEFAULT '[]' NOT NULL")
    op.execute("ALTER TABLE sync_runs ADD COLUMN approval JSON")
    op.execute(f"ALTER TABLE sync_runs ADD COLUMN waits_since {moment}")
    op.execute("ALTER TABLE sync_runs ADD COLUMN attempts JSON DEFAULT '[]' NOT NULL")
    op.execute("ALTER TABLE sync_runs ADD COLUMN attempt_so_far JSON")
    op.execute("ALTER TABLE repositories ADD COLUMN missed_ticks JSON DEFAULT '[]' NOT NULL")
    op.execute(f"""
        CREATE TABLE registry_documents (
            id TEXT NOT NULL, digest TEXT NOT NULL, document JSON NOT NULL, superseded JSON NOT NULL,
            path TEXT NOT NULL, applied_by TEXT NOT NULL, applied_at {moment} NOT NULL,
            CONSTRAINT pk_registry_documents PRIMARY KEY (id))""")
    _make_changes(is_sqlite=is_sqlite)
    _make_log(moment, is_sqlite=is_sqlite)
    _make_evaluations(moment)
    op.execute(f"""
        CREATE TABLE commit_words (
            repository_id TEXT NOT NULL, read_at {moment} NOT NULL, words {"BLOB" if is_sqlite else "BYTEA"},
            CONSTRAINT pk_commit_words PRIMARY KEY (repository_id),
            CONSTRAINT fk_commit_words_repository_id FOREIGN KEY(repository_id)
                REFERENCES repositories (id) ON DELETE CASCADE)""")
    op.execute("ALTER TABLE index_versions ADD COLUMN meaning_pending BIGINT")
    op.execute("ALTER TABLE index_versions ADD COLUMN secret_rules TEXT")
    op.execute(f"""
        CREATE TABLE secret_findings (
            path TEXT NOT NULL, line INTEGER NOT NULL, rule TEXT NOT NULL, fingerprint TEXT NOT NULL,
            action TEXT NOT NULL, first_commit TEXT NOT NULL, first_seen_at {moment} NOT NULL,
            repository_id TEXT NOT NULL,
            CONSTRAINT pk_secret_findings PRIMARY KEY (path, line, rule, fingerprint, repository_id),
            CONSTRAINT fk_secret_findings_repository_id FOREIGN KEY(repository_id)
                REFERENCES repositories (id) ON DELETE CASCADE)""")
    op.execute("CREATE INDEX ix_secret_findings_repository_id ON secret_findings (repository_id, path)")
    op.execute("""
        CREATE TABLE fingerprint_keys (
            id TEXT NOT NULL, key TEXT NOT NULL, CONSTRAINT pk_fingerprint_keys PRIMARY KEY (id))""")
    _make_credentials(moment)
    _make_audit(moment)
    _keep_versions_of_words()
    op.execute(
        "CREATE INDEX ix_index_versions_pending ON index_versions (physical, id) WHERE meaning_pending IS NOT NULL"
    )
    _make_repositories_due()
    _list_requests(is_sqlite=is_sqlite)
    _list_attempts()
    _list_missed_ticks()
    _merge_registry_files(op.get_bind())
    op.execute("ALTER TABLE project_groups ADD COLUMN definition JSON")
    op.execute("ALTER TABLE project_groups ADD COLUMN origin TEXT DEFAULT 'config' NOT NULL")
    for table in _UNUSED_TABLES:
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP INDEX uq_sync_runs_tick")
    op.execute("DROP INDEX ix_repositories_unversioned")
    for table, columns in _UNUSED.items():
        for column in columns:
            op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    _move_groups(op.get_bind())
    op.execute("CREATE INDEX ix_repositories_next_due_at ON repositories (next_due_at)")
    op.execute("CREATE INDEX ix_sync_runs_repository_id ON sync_runs (repository_id, queued_at DESC, id DESC)")
    for name, definition in _OF_HISTORY.items():
        op.execute(f"CREATE INDEX {name} ON sync_runs {definition}")
    for name, definition in _PREFERRED.items() if is_sqlite else ():
        op.execute(f"DROP INDEX {name}")
        op.execute(f"CREATE INDEX {name} ON sync_runs {definition} ('queued', 'retrying', 'running')")
    _refuse_programs_of_0_2(op.get_bind())


def _make_changes(*, is_sqlite: bool) -> None:
    for column in ("files_added", "files_changed"):
        op.execute(f"ALTER TABLE sync_runs ADD COLUMN {column} INTEGER DEFAULT 0 NOT NULL")
    for column in ("commit_title", "commit_author"):
        op.execute(f"ALTER TABLE sync_runs ADD COLUMN {column} TEXT")
    op.execute(f"ALTER TABLE sync_runs ADD COLUMN idle BOOLEAN DEFAULT {'0' if is_sqlite else 'false'} NOT NULL")
    nothing = " AND ".join(f"{name} = 0" for name in ("files_processed", "files_deleted", "files_failed"))
    done = "status = 'completed' AND error_code IS NULL AND error_message IS NULL"
    op.execute(f"UPDATE sync_runs SET idle = {'1' if is_sqlite else 'true'} WHERE {done} AND {nothing}")  # noqa: S608
    op.execute(f"""
        CREATE TABLE run_changes (
            run_id TEXT NOT NULL, path TEXT NOT NULL, change TEXT NOT NULL,
            CONSTRAINT pk_run_changes PRIMARY KEY (run_id, path),
            CONSTRAINT fk_run_changes_run_id FOREIGN KEY(run_id)
                REFERENCES sync_runs (id) ON DELETE CASCADE){" WITHOUT ROWID" if is_sqlite else ""}""")


def _make_log(moment: str, *, is_sqlite: bool) -> None:
    op.execute(f"""
        CREATE TABLE run_log_lines (
            run_id TEXT NOT NULL, attempt INTEGER NOT NULL, number INTEGER NOT NULL, at {moment} NOT NULL,
            level TEXT NOT NULL, text TEXT NOT NULL,
            CONSTRAINT pk_run_log_lines PRIMARY KEY (run_id, attempt, number),
            CONSTRAINT fk_run_log_lines_run_id FOREIGN KEY(run_id)
                REFERENCES sync_runs (id) ON DELETE CASCADE){" WITHOUT ROWID" if is_sqlite else ""}""")


def _make_evaluations(moment: str) -> None:
    op.execute(f"""
        CREATE TABLE evaluations (
            id TEXT NOT NULL, at {moment} NOT NULL, commit_sha TEXT NOT NULL, states INTEGER NOT NULL, model TEXT,
            questions INTEGER NOT NULL, figures JSON NOT NULL, repository_id TEXT NOT NULL,
            CONSTRAINT pk_evaluations PRIMARY KEY (id),
            CONSTRAINT fk_evaluations_repository_id FOREIGN KEY(repository_id)
                REFERENCES repositories (id) ON DELETE CASCADE)""")
    op.execute("CREATE INDEX ix_evaluations_repository_id ON evaluations (repository_id, at DESC, id DESC)")


def _make_credentials(moment: str) -> None:
    op.execute(f"""
        CREATE TABLE connections (
            id TEXT NOT NULL, gitlab TEXT NOT NULL, user_id BIGINT NOT NULL, username TEXT NOT NULL,
            sealed TEXT NOT NULL, created_at {moment} NOT NULL, refreshed_at {moment} NOT NULL,
            refresh_claim TEXT, refresh_until {moment},
            CONSTRAINT pk_connections PRIMARY KEY (id))""")
    op.execute(f"""
        CREATE TABLE credentials (
            id TEXT NOT NULL, kind TEXT NOT NULL, connection_id TEXT NOT NULL, family TEXT NOT NULL,
            wrapped_key TEXT NOT NULL, name TEXT NOT NULL, client_id TEXT, details JSON NOT NULL,
            created_at {moment} NOT NULL, expires_at {moment} NOT NULL, last_used_at {moment}, used_at {moment},
            CONSTRAINT pk_credentials PRIMARY KEY (id),
            CONSTRAINT fk_credentials_connection_id FOREIGN KEY(connection_id)
                REFERENCES connections (id) ON DELETE CASCADE)""")
    op.execute(f"""
        CREATE TABLE oauth_clients (
            id TEXT NOT NULL, document JSON NOT NULL, address TEXT NOT NULL, created_at {moment} NOT NULL,
            used_at {moment},
            CONSTRAINT pk_oauth_clients PRIMARY KEY (id))""")
    for table, column in (
        ("connections", "user_id"),
        ("credentials", "connection_id"),
        ("credentials", "family"),
        ("credentials", "expires_at"),
        ("oauth_clients", "address"),
    ):
        op.execute(f"CREATE INDEX ix_{table}_{column} ON {table} ({column})")


def _make_audit(moment: str) -> None:
    op.execute(f"""
        CREATE TABLE audit_entries (
            id TEXT NOT NULL, at {moment} NOT NULL, actor TEXT NOT NULL, via TEXT NOT NULL, address TEXT NOT NULL,
            operation TEXT NOT NULL, repositories JSON NOT NULL, hits INTEGER, outcome TEXT NOT NULL, query TEXT,
            CONSTRAINT pk_audit_entries PRIMARY KEY (id))""")
    op.execute("CREATE INDEX ix_audit_entries_at ON audit_entries (at DESC, id DESC)")
    op.execute("CREATE INDEX ix_audit_entries_actor ON audit_entries (actor, at DESC, id DESC)")


def _keep_versions_of_words() -> None:
    """A live version that had words only gets its dense vectors itself now. Those of the version that was built beside
    it are found by the hash of their text, before it is removed."""
    is_sqlite = op.get_context().dialect.name == "sqlite"
    is_of_words = "json_extract(settings, '$.words_only')" if is_sqlite else "(settings->>'words_only')::boolean"
    beside = (
        "SELECT {} FROM index_versions other WHERE state = 'building' AND repository_id = index_versions.repository_id"
    )
    op.execute(f"""
        UPDATE index_versions SET
            meaning_pending = (
                SELECT COALESCE(SUM(chunks), 0) FROM indexed_files WHERE repository_id = index_versions.id),
            settings_key = ({beside.format("settings_key")}),
            settings = COALESCE(({beside.format("settings")}), settings)
        WHERE state = 'live' AND {is_of_words}""")  # noqa: S608
    op.execute("""
        UPDATE index_versions SET state = 'retired', retired_at = CURRENT_TIMESTAMP
        WHERE state = 'building' AND repository_id IN (
            SELECT repository_id FROM index_versions live WHERE state = 'live' AND meaning_pending IS NOT NULL)""")


def _make_repositories_due() -> None:
    """What is scheduled is due at once: the first turn of a scheduler sets the moment, and knows by `last_tick_at`
    which ticks are settled."""
    op.execute("""
        UPDATE repositories SET last_tick_at = scheduled_since
        WHERE last_tick_at IS NULL OR last_tick_at < scheduled_since""")
    op.execute("""
        UPDATE repositories SET next_due_at = created_at WHERE is_active AND cron_expression IS NOT NULL""")


def _list_missed_ticks() -> None:
    moments = {name: _moment(name) for name in ("scheduled_for", "noticed_at")}
    op.execute(f"""
        UPDATE repositories SET missed_ticks = COALESCE((
            SELECT {_objects(moments | {"late_seconds": "late_seconds"})} FROM (
                SELECT * FROM missed_ticks WHERE repository_id = repositories.id
                ORDER BY scheduled_for DESC LIMIT 20) listed), '[]')""")  # noqa: S608


def _list_attempts() -> None:
    """List the attempts that have ended. The duration of a run was that of the latest one; one that stands for several
    spans the pauses between them, and did nothing. A pause of years, for which 0.2.0 believed a server, is over."""
    dialect = op.get_context().dialect.name
    columns = ("attempt", "times", "worker", "outcome", "error_code", "error_message", *_COUNTS)
    pairs = {name: name for name in columns} | {"latest": "attempt"}
    pairs |= {name: _moment(name) for name in ("started_at", "ended_at")}
    op.execute(f"""
        UPDATE sync_runs SET
            attempts = COALESCE((
                SELECT {_objects(pairs)} FROM (
                    SELECT * FROM run_attempts WHERE run_id = sync_runs.id AND ended_at IS NOT NULL
                    ORDER BY attempt) listed), '[]'),
            duration_seconds = duration_seconds + COALESCE((
                SELECT sum({_SECONDS[dialect]}) FROM run_attempts
                WHERE run_id = sync_runs.id AND attempt < sync_runs.attempt AND times = 1), 0)""")  # noqa: S608
    op.execute(f"""
        UPDATE sync_runs SET not_before = queued_at
        WHERE status IN ('queued', 'retrying') AND not_before > {_TOMORROW[dialect]}""")  # noqa: S608


def _moment(column: str) -> str:
    return f"{column} || '+00:00'" if op.get_context().dialect.name == "sqlite" else column


def _objects(pairs: Mapping[str, str]) -> str:
    """A list of JSON objects, one a row, with these keys."""
    is_sqlite = op.get_context().dialect.name == "sqlite"
    entry = ", ".join(f"'{key}', {value}" for key, value in pairs.items())
    return f"json_group_array(json_object({entry}))" if is_sqlite else f"json_agg(json_build_object({entry}))"


def _list_requests(*, is_sqlite: bool) -> None:
    """Who asked for a run; of one that is not over, without requests that were withdrawn. An approval counts if it is
    in advance, or of what the run stopped at last; `{}`, which 0.2.0 wrote for either, approves nothing."""
    pairs = {"trigger": '"trigger"', "asked_by": "asked_by", "approval": "json(approval)" if is_sqlite else "approval"}
    pairs["asked_at"] = _moment("asked_at")
    for flag in ("full", "repair", "removal"):
        pairs[flag] = f"""json(iif("{flag}", 'true', 'false'))""" if is_sqlite else f'"{flag}"'
    op.execute(f"""
        UPDATE sync_runs SET asked = COALESCE((
            SELECT {_objects(pairs)} FROM (
                SELECT * FROM run_requests WHERE run_id = sync_runs.id AND (
                    withdrawn_at IS NULL OR sync_runs.status NOT IN ('queued', 'retrying', 'running', 'blocked'))
                ORDER BY asked_at, id) listed), '[]')""")  # noqa: S608
    op.execute("""
        UPDATE sync_runs SET approval = (
            SELECT approval FROM run_requests WHERE run_id = sync_runs.id AND withdrawn_at IS NULL
                AND CAST(approval AS TEXT) <> '{}' AND CAST(approval AS TEXT) IN (
                    '{"in_advance": true}', CAST(COALESCE(sync_runs.brake, run_requests.approval) AS TEXT))
            ORDER BY asked_at DESC, id DESC LIMIT 1)
        WHERE approved""")


def _merge_registry_files(connection: sa.Connection) -> None:
    """The content of a single file becomes the document. Several are merged as they were in force together: no
    repository becomes inactive. The digest is empty then, so that no file replaces it before a person applies one."""
    columns = "path, digest, document, applied_by, applied_at"
    query = sa.text(f"SELECT {columns} FROM registry_files ORDER BY created_at, path")  # noqa: S608
    files = connection.execute(query.columns(document=sa.JSON)).mappings().all()
    if not files:
        return
    digests = sa.text("SELECT digest FROM superseded_digests ORDER BY superseded_at, digest")
    superseded = list(connection.scalars(digests))
    row = {**files[0], "superseded": superseded}
    if len(files) > 1:
        paths = ", ".join(file["path"] for file in files)
        row |= {"digest": "", "path": paths, "applied_by": f"the upgrade, which merged {paths},"}
        row |= {"document": _merged([file["document"] for file in files])}
        row |= {"superseded": [*superseded, *(file["digest"] for file in files)]}
        log.warning("%s were merged into one registry document; write one file, and `reposync apply` it", paths)
    insert = sa.text(f"""
        INSERT INTO registry_documents (id, {columns}, superseded)
        VALUES ('registry', :path, :digest, :document, :applied_by, :applied_at, :superseded)""")  # noqa: S608
    typed = insert.bindparams(sa.bindparam("document", type_=sa.JSON), sa.bindparam("superseded", type_=sa.JSON))
    connection.execute(typed, row)


_GROUP = """
    INSERT INTO project_groups (key, due_at, definition)
    SELECT :key, applied_at, :definition FROM registry_documents WHERE true
    ON CONFLICT (key) DO UPDATE SET definition = excluded.definition"""


def _move_groups(connection: sa.Connection) -> None:
    """From the document into rows of their own."""
    document = connection.scalar(sa.text("SELECT document FROM registry_documents").columns(document=sa.JSON))
    if not document or "groups" not in document:
        return
    groups = document.pop("groups")
    urls = {server["name"]: server["url"] for server in document.get("gitlab", ())}
    for group in groups:
        row = sa.text(_GROUP).bindparams(sa.bindparam("definition", group, type_=sa.JSON))
        connection.execute(row, {"key": f"{urls[group['gitlab']]}/{group['group']}"})
    written = sa.text("UPDATE registry_documents SET document = :document")
    connection.execute(written.bindparams(sa.bindparam("document", document, type_=sa.JSON)))


def _merged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A section of an earlier one wins, as it did."""
    merged: dict[str, Any] = {}
    for document in documents:
        for section, value in document.items():
            if isinstance(value, list) and section in merged:
                known = {_key(entry) for entry in merged[section]}
                merged[section] = [*merged[section], *(entry for entry in value if _key(entry) not in known)]
            else:
                merged.setdefault(section, value)
    return merged


def _key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """A server's name; a group's server and path."""
    return entry.get("name"), entry.get("gitlab"), entry.get("group")


def _refuse_programs_of_0_2(connection: sa.Connection) -> None:
    """0.2.0 reads the revision in `alembic_version`, and both read which the oldest program is that can work with it in
    a comment on their table, in SQLite in `user_version`."""
    if connection.dialect.name == "sqlite":
        op.execute("PRAGMA user_version = 11")
    tables = ["reposync_alembic_version"]
    if sa.inspect(connection).has_table("alembic_version"):  # of 0.2.0, or of a different program
        of_0_2 = "UPDATE alembic_version SET version_num = '0011' WHERE version_num IN ('0007', '0010')"
        tables += ["alembic_version"] * connection.exec_driver_sql(of_0_2).rowcount
    for table in tables if connection.dialect.name == "postgresql" else ():
        op.execute(f"COMMENT ON TABLE {table} IS 'oldest program: 0011'")

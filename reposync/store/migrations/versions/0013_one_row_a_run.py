"""A run is one row: who asked for it is a list in the row, and its flags are its columns. Programs before this one kept
requests in a table of their own, and cannot work beside it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_MOMENT = {
    "postgresql": """to_char(asked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')""",
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%f', asked_at) || '+00:00'",
}
_LIST = {
    "postgresql": "json_agg(json_build_object({0}) ORDER BY asked_at, id)",
    "sqlite": "json_group_array(json_object({0}))",
}
_FLAG = {"postgresql": '"{0}"', "sqlite": """json(CASE WHEN "{0}" THEN 'true' ELSE 'false' END)"""}
_APPROVAL = {"postgresql": "approval", "sqlite": "json(approval)"}


def upgrade() -> None:
    dialect = op.get_context().dialect.name
    moment = "TIMESTAMP WITH TIME ZONE" if dialect == "postgresql" else "DATETIME"
    op.execute("ALTER TABLE sync_runs ADD COLUMN asked JSON DEFAULT '[]' NOT NULL")
    op.execute("ALTER TABLE sync_runs ADD COLUMN approval JSON")
    op.execute(f"ALTER TABLE sync_runs ADD COLUMN waits_since {moment}")
    _list_requests(dialect)
    _carry_approvals()
    op.execute("DROP TABLE idempotency_keys")
    op.execute(f"""
        CREATE TABLE idempotency_keys (
            "key" TEXT NOT NULL, fingerprint TEXT NOT NULL, run_id TEXT NOT NULL, created_at {moment} NOT NULL,
            CONSTRAINT pk_idempotency_keys PRIMARY KEY ("key"))""")
    op.execute("CREATE INDEX ix_idempotency_keys_created_at ON idempotency_keys (created_at)")
    op.execute("""
        INSERT INTO idempotency_keys ("key", fingerprint, run_id, created_at)
        SELECT id, fingerprint, run_id, asked_at FROM run_requests WHERE fingerprint IS NOT NULL""")
    op.execute("DROP TABLE run_requests")
    op.execute("ALTER TABLE sync_runs DROP COLUMN approved")
    op.execute("ALTER TABLE run_attempts DROP COLUMN times")


def _list_requests(dialect: str) -> None:
    """Of a run that is not over, those that were not withdrawn: its flags, priority and trigger follow from them."""
    flags = ", ".join(f"'{name}', {_FLAG[dialect].format(name)}" for name in ("full", "repair", "removal"))
    entry = f""" 'trigger', "trigger", 'asked_by', asked_by, 'asked_at', {_MOMENT[dialect]}, {flags}, 'approval',
        {_APPROVAL[dialect]}"""
    op.execute(f"""
        UPDATE sync_runs SET asked = (
            SELECT {_LIST[dialect].format(entry)} FROM (
                SELECT * FROM run_requests WHERE run_id = sync_runs.id AND (
                    withdrawn_at IS NULL OR sync_runs.status NOT IN ('queued', 'retrying', 'running', 'blocked'))
                ORDER BY asked_at, id LIMIT 100) listed)
        WHERE EXISTS (
            SELECT 1 FROM run_requests WHERE run_id = sync_runs.id AND (
                withdrawn_at IS NULL OR sync_runs.status NOT IN ('queued', 'retrying', 'running', 'blocked')))""")  # noqa: S608


def _carry_approvals() -> None:
    """An approval counts if it is in advance, or of what the run stopped at last. `{}`, which programs before 0.2.1
    wrote for either, approves nothing."""
    runs = sa.table("sync_runs", sa.column("id"), sa.column("approved", sa.Boolean), sa.column("brake", sa.JSON))
    approvals = sa.table("sync_runs", sa.column("id"), sa.column("approval", sa.JSON))
    requests = sa.table(
        "run_requests",
        *(sa.column(name) for name in ("id", "run_id", "asked_at", "withdrawn_at")),
        sa.column("approval", sa.JSON),
    )
    given = (
        sa.select(runs.c.id, runs.c.brake, requests.c.approval)
        .join_from(requests, runs, requests.c.run_id == runs.c.id)
        .where(runs.c.approved, requests.c.withdrawn_at.is_(None))
        .order_by(requests.c.asked_at, requests.c.id)
    )
    for run_id, brake, approval in op.get_bind().execute(given).all():
        if approval and (brake is None or approval in ({"in_advance": True}, brake)):
            op.execute(approvals.update().where(approvals.c.id == run_id).values(approval=approval))

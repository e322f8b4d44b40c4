"""A database that another version left behind, in use: its repository is synced, and its history goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reposync.app.command_runs import sync
from reposync.config.settings import Settings
from reposync.store.migrations import HEAD, REVISIONS
from tests.fixtures.applied import open_applied
from tests.fixtures.folders import quick_folder
from tests.fixtures.pods import stored_points
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.released_schemas import execute, make
from tests.fixtures.repositories import GitRepository


@pytest.fixture(scope="module")
def qdrant() -> Iterator[QdrantServer]:
    with quick_folder() as folder, QdrantServer(folder) as server:
        yield server


# What a later version may have made of it, for the version that knows nothing of that.
LATER = """
    ALTER TABLE sync_runs ADD COLUMN shard INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE repositories ADD COLUMN owner TEXT;
    CREATE TABLE shards (id INTEGER PRIMARY KEY);
    UPDATE alembic_version SET version_num = '9999';
"""
WORD = {
    "sqlite": f"PRAGMA user_version = {int(HEAD)}",
    "postgresql": f"COMMENT ON TABLE alembic_version IS 'oldest program: {HEAD}'",
}


@pytest.mark.parametrize("revision", [*REVISIONS, "later"])
async def test_a_sync_ends_exact_on_what_another_version_recorded(
    empty_database_url: str, database_kind: str, revision: str, tmp_path: Path, qdrant: QdrantServer
) -> None:
    repository = GitRepository.create(tmp_path / "ledger.git")
    head = repository.commit({"ledger.py": b"def book(): pass\n", "new.py": b"def added(): pass\n"})
    is_later = revision == "later"
    here = {"/srv/git/ledger.git": str(repository.path)}
    await make(empty_database_url, HEAD if is_later else revision, replace=here)
    if is_later:
        await execute(empty_database_url, LATER + WORD[database_kind])
    collection = f"c{revision}-{tmp_path.parent.name}-{tmp_path.name}".replace("_", "-")
    (tmp_path / "repositories.yaml").write_text(
        f"embedding: {{provider: none}}\ndefaults: {{collection: {collection}}}\n"
    )
    variables = {
        "REPOSYNC_STATE_DIR": str(tmp_path / "state"),
        "REPOSYNC_CONFIG": str(tmp_path / "repositories.yaml"),
        "QDRANT_URL": qdrant.url,
        "DATABASE_URL": empty_database_url,
    }

    async with open_applied(Settings.from_environment(variables)) as app:
        target = await app.catalog.find("ledger")
        run = await sync(app, target, full=False, approved=False, watch=lambda _: None)
        history = await app.runs.history("ledger")
        row = await app.repositories.get("ledger")
        manifest = await app.manifests.load(row.live_version or "")

    assert run.status == "completed", run.error_message
    assert [each.status for each in history] == ["completed", "completed"], "and the run that was killed is over"
    assert (row.last_commit, row.epoch > 1) == (head, True)
    points = sorted((each["path"], each["commit"]) for each in stored_points(qdrant.url, collection).values())
    assert points == [("ledger.py", head), ("new.py", head)]
    assert sorted(manifest) == ["ledger.py", "new.py"]

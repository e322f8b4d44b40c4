"""What the daemon that executed a run logged about it is read from any other pod, without secrets."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.databases import PostgresqlDatabases
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.pods import Pod, until
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository

SECRET = "s3cr3t-of-handbook"


def test_the_log_of_a_run_is_read_from_a_pod_that_did_not_execute_it(
    tmp_path: Path, postgresql: PostgresqlDatabases, embeddings: EmbeddingServer, repository: GitRepository
) -> None:
    repository.commit({"a.py": b"x = 1\n", "b.py": b"y = 2\n"})
    registry = tmp_path / "repositories.yaml"
    registry.write_text(
        f"{embeddings.registry}daemon: {{max_attempts: 1}}\nrepositories:\n"
        f"  - {{name: app, path: '{repository.path}', schedule: yearly}}\n"
        "  - {name: handbook, git: 'https://127.0.0.1:9/handbook.git', username: git, password: '${SECRET}',"
        " schedule: yearly}\n"
    )
    with QdrantServer(tmp_path / "qdrant") as qdrant:
        shared = {
            "REPOSYNC_DATABASE_URL": postgresql.upgraded(),
            "REPOSYNC_QDRANT_URL": qdrant.url,
            "REPOSYNC_CONFIG": str(registry),
            "SECRET": SECRET,
        }
        with (
            Pod("works", tmp_path / "works", shared) as works,
            Pod("shows", tmp_path / "shows", shared, ("--no-workers",)) as shows,
        ):

            def lines_of(name: str, last: str) -> list[str]:
                """Those of its first run, once the last one is written. A pod that starts answers with errors first."""
                runs = shows.gets(f"/api/v1/runs?repository={name}").json().get("items", [])
                log = shows.gets(f"/api/v1/runs/{runs[-1]['id']}/log").json().get("items", []) if runs else []
                texts = [line["text"] for line in log]
                return texts if texts and texts[-1].startswith(last) else []

            app = until(lambda: lines_of("app", "run completed"), details=works.log_tail)
            handbook = until(lambda: lines_of("handbook", "run failed"), details=works.log_tail)

    assert app[0].startswith("run started trigger=schedule")
    assert app[1].startswith("planned commit=") and "to_read=2" in app[1]
    assert "files_processed=2" in app[-1]
    assert "SOURCE_UNAVAILABLE" in handbook[-1]
    assert not any("handbook" in line for line in app)
    assert SECRET not in str(app + handbook + works.text)

"""Files that are written against the program that reads them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fixtures.pods import Pod, until
from tests.fixtures.repositories import GitRepository

# A pod's limit, in kB: of addresses, of which a daemon uses more than of memory.
LIMIT_KB = 1536 * 1024
LIMITED = ("sh", "-c", f'ulimit -v {LIMIT_KB} && exec "$@"', "sh", sys.executable, "-m", "reposync")


@pytest.mark.full
def test_a_daemon_with_a_memory_limit_lives_through_a_file_that_fills_its_parser(
    tmp_path: Path, repository: GitRepository
) -> None:
    repository.commit(
        {"a.kt": b"/*" * 495_000, "b.kt": b"fun close() {\n}\n", ".gitattributes": b"*.kt -linguist-generated\n"}
    )
    home = tmp_path / "daemon"
    home.mkdir()
    (home / "repositories.yaml").write_text(
        f"embedding: {{provider: none}}\nrepositories: [{{name: app, path: '{repository.path}', schedule: never}}]\n"
    )
    with Pod("limited", home, {"REPOSYNC_CONFIG": str(home / "repositories.yaml")}, program=LIMITED) as pod:
        until(lambda: pod.gets("/readyz").status_code == 200, 60, pod.log_tail)
        run = pod.posts("/api/v1/repositories/app/sync").json()["id"]
        until(lambda: pod.gets(f"/api/v1/runs/{run}").json()["status"] == "completed", 120, pod.log_tail)
        assert pod.gets(f"/api/v1/runs/{run}").json()["files_processed"] == 3
        outlines = [pod.gets(f"/api/v1/repositories/app/outline?path={path}").json() for path in ("a.kt", "b.kt")]
        assert [[each["name"] for each in outline["symbols"]] for outline in outlines] == [[], ["close"]]
        assert pod.is_running

"""From registering over HTTP to a searchable index and back, on a real daemon."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

REGISTRY = "embedding: {provider: none}\nhttp: {allow_local_sources: true}\n"


def test_a_repository_is_registered_synced_paused_and_removed_over_http(tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "repository.git")
    head = repository.commit({"a.py": b"def settle_invoice(): pass\n", "b.bin": b"\0\1"})
    home = tmp_path / "pod"
    home.mkdir()
    (home / "repositories.yaml").write_text(REGISTRY)

    with Pod("laptop", home) as pod, httpx.Client(base_url=f"{pod.url}/api/v1", timeout=PATIENCE_SECONDS) as client:
        until(lambda: client.get("/repositories").status_code == 200, details=pod.log_tail)
        definition = {"name": "team/app", "path": str(repository.path), "schedule": "yearly"}
        assert client.post("/repositories", json=definition).status_code == 201
        synced = client.post("/repositories/team/app/sync?wait=60", headers={"X-Request-Id": "deploy-1"})
        assert (synced.status_code, synced.json()["status"]) == (200, "completed"), pod.log_tail()
        assert (synced.json()["commit_after"], synced.headers["x-request-id"]) == (head, "deploy-1")
        shown = client.get("/repositories/team/app").json()
        assert (shown["last_commit"], shown["files"], shown["skipped"]) == (head, 1, 1)
        assert client.get("/search", params={"q": "settle_invoice"}).json()["items"][0]["path"] == "a.py"

        paused = client.patch("/repositories/team/app", json={"is_active": False, "paused_reason": "holidays"})
        assert paused.json()["state"] == "paused"
        # A sync that is requested by name is executed for a paused repository, too.
        second = client.post("/repositories/team/app/sync", params={"wait": 60})
        assert (second.status_code, second.json()["status"]) == (200, "completed")

        removed = client.delete("/repositories/team/app", params={"wait": 60})
        assert (removed.status_code, removed.json()["status"]) == (200, "completed"), pod.log_tail()
        assert removed.json()["files_deleted"] == 1
        assert client.get("/repositories/team/app").status_code == 404
        assert client.get("/repositories").json()["items"] == []
        assert len(client.get("/runs", params={"repository": "team/app"}).json()["items"]) >= 3
        left = client.get("/search", params={"q": "settle_invoice"})
        assert left.status_code != 200 or left.json()["items"] == []
        assert pod.terminate() == 0

"""A run is watched in a terminal while a daemon executes it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess

import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

FILES = 400


def test_a_run_is_watched_to_its_end_and_goes_on_after_ctrl_c(
    person: Person, pod: Pod, log: ExecutionLog, embeddings: EmbeddingServer, repository: GitRepository
):
    repository.many(FILES)
    person.configures(
        f"{embeddings.registry}repositories:\n  - {{name: app, path: '{repository.path}', schedule: yearly}}\n"
    )
    with embeddings.holding():
        pod.start()

        def reported() -> str | None:
            return next((run.id for run in log.runs("app") if (run.progress or {}).get("files_total") == FILES), None)

        run_id: str = until(reported, details=pod.log_tail)
        to_the_end = person.starts("runs", "watch", run_id[:13], "--json")
        primary, secondary = pty.openpty()
        try:
            interrupted = subprocess.Popen(
                person.command("runs", "watch", run_id),
                env=person.variables() | {"TERM": "xterm"},
                cwd=person.home,
                stdout=subprocess.PIPE,
                stderr=secondary,
                text=True,
                start_new_session=True,
            )
            drawn = b""
            while f"of {FILES} files".encode() not in drawn:
                drawn += os.read(primary, 4096)
            interrupted.send_signal(signal.SIGINT)
            out, _ = interrupted.communicate(timeout=PATIENCE_SECONDS)
            while b"stops it" not in drawn:
                drawn += os.read(primary, 4096)
        finally:
            os.close(primary)
            os.close(secondary)
    assert (interrupted.returncode, out) == (130, "")

    out, err = to_the_end.communicate(timeout=PATIENCE_SECONDS)
    assert to_the_end.returncode == 0, err
    assert (json.loads(out)["id"], json.loads(out)["files_processed"]) == (run_id, FILES)
    assert "app: " in err
    # What is over already is reported at once.
    assert person.types("runs", "watch", run_id).stdout.startswith("app: completed at ")


def test_a_run_that_does_not_end_well_is_exit_code_1(person: Person, repository: GitRepository):
    repository.commit({"a.py": b"def first(): pass\n"})
    person.applies("embedding: {provider: none}\n")
    person.types("sync", str(repository.path))
    repository.delete_branch("main")
    (run,) = person.lists("sync", "payments", exit_code=1)

    watched = person.types("runs", "watch", run["id"], exit_code=1)
    assert watched.stdout.startswith("payments: failed: ")
    assert person.asks("runs", "watch", run["id"], exit_code=1) == run

"""What docs/rotate-a-token.md promises of a running daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.pods import Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

OLD, NEW = "glpat-the-old-one-12345", "glpat-the-new-one-67890"
CONFIGURATION = """
gitlab: [{{name: main, url: "{url}", token: "${{GITLAB_TOKEN}}"}}]
embedding: {{provider: none}}
daemon: {{max_attempts: 1}}
repositories: [{{name: payments, gitlab: main, project: platform/payments-api}}]
"""


def test_a_gitlab_token_in_a_mounted_file_is_taken_over_while_the_daemon_runs(
    repository: GitRepository, tmp_path: Path
) -> None:
    repository.commit({"a.py": b"1\n"})
    registry, secret = tmp_path / "pod" / "repositories.yaml", tmp_path / "token"
    registry.parent.mkdir()
    variables = {"REPOSYNC_CONFIG": str(registry), "GITLAB_TOKEN_FILE": str(secret)}

    def write(token: str) -> None:
        # As Kubernetes does it: a new file takes the old one's place.
        fresh = secret.with_suffix(".new")
        fresh.write_text(token)
        fresh.replace(secret)

    with GitLabServer() as server:
        server.add_token(OLD, scopes=("read_api", "read_repository"))
        server.add_project("platform/payments-api", repository.path, id=42)
        registry.write_text(CONFIGURATION.format(url=server.url))
        write(OLD)
        with Pod("rotating", registry.parent, variables) as pod:

            def ended(status: str) -> bool:
                runs = pod.gets("/api/v1/runs").json().get("items", [])
                return bool(runs) and runs[0]["status"] == status

            def sync() -> None:
                assert pod.posts("/api/v1/repositories/payments/sync").status_code == 202

            until(lambda: ended("completed"), details=pod.log_tail)
            server.add_token(NEW, scopes=("read_api", "read_repository"))
            del server.tokens[OLD]
            sync()
            until(lambda: ended("failed"), details=pod.log_tail)
            assert pod.gets("/api/v1/runs").json()["items"][0]["error_code"] == "SOURCE_DENIED"

            write(NEW)
            until(lambda: pod.events("files of secrets read again"), details=pod.log_tail)
            repository.commit({"b.py": b"2\n"})
            sync()
            until(lambda: ended("completed"), details=pod.log_tail)
            assert OLD not in "\n".join(pod.text)
            assert NEW not in "\n".join(pod.text)

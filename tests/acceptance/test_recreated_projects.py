"""A GitLab project whose recorded number, or recorded commit, is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.gitlab_server.plumbing import BareRepository
from tests.fixtures.repositories import GitRepository

TOKEN = "glpat-reader-of-everything"
REGISTRY = """
embedding: {{provider: none}}
gitlab:
  - {{name: main, url: "{url}", token: "${{GITLAB_TOKEN}}"}}
repositories:
  - {{name: app, gitlab: main, project: g/a, schedule: yearly}}
"""


def files(tmp_path: Path, name: str, *paths: str) -> GitRepository:
    repository = GitRepository.create(tmp_path / name)
    repository.commit({path: f"def {path.removesuffix('.py')}(): pass\n".encode() for path in paths})
    return repository


@pytest.mark.parametrize("recreated", [True, False])
def test_a_recreated_project_is_named_and_adopted_by_one_command(
    person: Person, tmp_path: Path, recreated: bool
) -> None:
    with GitLabServer() as gitlab:
        gitlab.add_token(TOKEN, scopes=("read_api", "read_repository"))
        person.environment["GITLAB_TOKEN"] = TOKEN
        former = gitlab.add_project("g/a", files(tmp_path, "old.git", "first.py").path, id=1)
        person.applies(REGISTRY.format(url=gitlab.url))
        person.lists("sync", "app")
        assert person.asks("repos", "show", "app")["project_id"] == 1

        assert "number 1 exists, at g/a" in person.types("repos", "adopt", "app", exit_code=2).stderr
        former.deleted = True
        if not recreated:
            (run,) = person.lists("sync", "app", exit_code=1)
            assert (run["error_code"], "repos adopt" in run["error_message"]) == ("SOURCE_GONE", False)
            person.types("repos", "adopt", "app", exit_code=1)
            assert person.asks("repos", "show", "app")["project_id"] == 1
            return
        gitlab.add_project("g/a", files(tmp_path, "new.git", "first.py", "second.py").path, id=51)
        (run,) = person.lists("sync", "app", exit_code=1)
        assert run["error_code"] == "SOURCE_GONE"
        assert "number 1 is gone" in run["error_message"]
        assert "g/a is number 51 now" in run["error_message"]
        assert "`reposync repos adopt" in run["error_message"]
        assert [hit["path"] for hit in person.lists("search", "first")] == ["first.py"]

        assert "is number 51 now" in person.types("repos", "adopt", "app").stdout
        assert [hit["path"] for hit in person.lists("search", "first")] == ["first.py"]
        (run,) = person.lists("sync", "app")

        assert run["status"] == "completed"
        assert person.asks("repos", "show", "app")["project_id"] == 51
        assert [hit["path"] for hit in person.lists("search", "second")] == ["second.py"]
        person.types("verify", "app", "--source")


def test_verify_says_that_a_rewritten_branch_no_longer_has_the_indexed_commit(person: Person, tmp_path: Path) -> None:
    with GitLabServer() as gitlab:
        gitlab.add_token(TOKEN, scopes=("read_api", "read_repository"))
        person.environment["GITLAB_TOKEN"] = TOKEN
        project = gitlab.add_project("g/a", files(tmp_path, "old.git", "first.py").path, id=1)
        person.applies(REGISTRY.format(url=gitlab.url))
        person.lists("sync", "app")
        project.repository.close()
        project.repository = BareRepository(files(tmp_path, "new.git", "second.py").path)

        text = person.types("verify", "app", "--source", exit_code=1).stdout
        assert "is no longer on the server, because the branch was rewritten" in text
        assert "Its points agree with the manifest. The next sync indexes the new head." in text
        person.types("verify", "app")
        person.types("sync", "app")
        person.types("verify", "app", "--source")

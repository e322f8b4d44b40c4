"""Which commit comes after which, asked of a git server that is no GitLab."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from pydantic import SecretStr

from reposync.errors import SourceDenied
from reposync.sources import git_history
from reposync.sources.ancestry import Ancestry, ancestry
from reposync.sources.spec import LocalGit, RemoteGit
from tests.fixtures.gitlab_server import GitLabServer, Project
from tests.fixtures.repositories import GitRepository, git_environment
from tests.integration.sources.conftest import PATH, TOKEN, Watched


@pytest.fixture
def spec(server: GitLabServer, project: Project) -> RemoteGit:
    return RemoteGit(f"{server.url}/{PATH}.git", username="oauth2", password=SecretStr(TOKEN))


def is_ancestor(repository: GitRepository, commit: str, tip: str) -> bool:
    """As git itself says."""
    command = ["git", "--git-dir", str(repository.path), "merge-base", "--is-ancestor", commit, tip]
    return subprocess.run(command, env=git_environment(), check=False).returncode == 0


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_git_server_tells_what_git_itself_tells_of_any_history(
    repository: GitRepository, spec: RemoteGit, seed: int
) -> None:
    chance = random.Random(seed)
    commits: list[str] = []
    for number in range(14):
        parents = chance.sample(commits, min(len(commits), chance.choice([0, 1, 1, 1, 2, 3])))
        if number == 1 and not parents:
            parents = commits[:1]
        commits.append(repository.commit({f"{number}.py": b"x"}, parents=parents, branch=f"b{number}"))
    pairs = [(chance.choice(commits), chance.choice(commits)) for _ in range(14)]
    # The commits of a fork, of which git's servers say `ready`: their parents are known to both.
    base = repository.commit({"base.py": b"x"}, parents=[], branch="fork")
    aside = repository.commit({"aside.py": b"x"}, parents=[base], branch="aside")
    tip = repository.commit({"tip.py": b"x"}, parents=[base], branch="tip")
    pairs += [(aside, tip), (base, tip), (tip, base), (tip, tip)]

    for commit, head in pairs:
        answer = await ancestry(spec, commit, head)
        wanted = Ancestry.CONTAINED if is_ancestor(repository, commit, head) else Ancestry.NOT_CONTAINED
        assert answer is wanted, (commit, head)
        assert await ancestry(LocalGit(repository.path), commit, head) is wanted


async def test_what_lies_between_is_all_that_is_sent(repository: GitRepository, spec: RemoteGit) -> None:
    commits = [repository.commit({"a.py": b"%d\n" % number * 1_000}) for number in range(40)]
    watched = Watched()

    assert await ancestry(spec, commits[0], commits[-1], observer=watched) is Ancestry.CONTAINED
    # The server's words, the commit, the commits after it.
    assert watched.requests == ["git_refs", "git_fetch", "git_fetch"]


async def test_a_commit_that_is_none_there_is_unknown(repository: GitRepository, spec: RemoteGit) -> None:
    head = repository.commit({"a.py": b"x"})
    tree = repository.git("rev-parse", "HEAD^{tree}").decode().strip()
    repository.tag("v1", head, message="a tag")
    tag = repository.git("rev-parse", "refs/tags/v1").decode().strip()

    for nothing in ("0" * 40, tree, tag):
        assert await ancestry(spec, nothing, head) is Ancestry.UNKNOWN_COMMIT, nothing
    # A branch that was rewritten took the indexed commit with it.
    assert await ancestry(spec, head, "1" * 40) is Ancestry.NOT_CONTAINED


async def test_where_nobody_can_tell_the_same_commit_is_still_the_same(
    repository: GitRepository, project: Project, spec: RemoteGit
) -> None:
    first, head = repository.commit({"a.py": b"x"}), repository.commit({"b.py": b"x"})

    assert await ancestry(spec, first[:12], head) is Ancestry.SHORT_NAME
    assert await ancestry(spec, head[:12], head) is Ancestry.CONTAINED
    project.allow_filter = False
    assert await ancestry(spec, first, head) is Ancestry.UNKNOWABLE
    assert await ancestry(spec, head, head) is Ancestry.CONTAINED


async def test_a_history_beyond_the_limit_is_not_read(
    repository: GitRepository, spec: RemoteGit, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = [repository.commit({"a.py": b"%d" % number}, message="words " * number) for number in range(60)]
    monkeypatch.setattr(git_history, "MAX_HISTORY_BYTES", 4_000)

    assert await ancestry(spec, commits[0], commits[-1]) is Ancestry.TOO_FAR
    assert await ancestry(spec, commits[-3], commits[-1]) is Ancestry.CONTAINED


async def test_a_server_that_refuses_is_named_without_the_password(repository: GitRepository, spec: RemoteGit) -> None:
    first, head = repository.commit({"a.py": b"x"}), repository.commit({"b.py": b"x"})

    with pytest.raises(SourceDenied) as refused:
        await ancestry(RemoteGit(spec.url, username="x", password=SecretStr("hunter2-secret")), first, head)
    assert "hunter2" not in str(refused.value)


async def test_names_of_64_digits_are_told_apart_as_well(server: GitLabServer, tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "long.git", object_format="sha256")
    first, head = repository.commit({"a.py": b"x"}), repository.commit({"b.py": b"x"})
    server.add_project("platform/long", repository.path, id=43, visibility="public")
    spec = RemoteGit(f"{server.url}/platform/long.git")

    assert await ancestry(spec, first, head) is Ancestry.CONTAINED
    assert await ancestry(spec, head, first) is Ancestry.NOT_CONTAINED

"""Which commit is part of the history of which."""

from __future__ import annotations

import random
import subprocess

import pytest

from reposync.sources import local
from reposync.sources.factory import open_source
from reposync.sources.port import Ancestry, LocalGit
from tests.fixtures.repositories import GitRepository, git_environment


def is_ancestor(repository: GitRepository, commit: str, tip: str) -> bool:
    """As git itself says."""
    command = ["git", "--git-dir", str(repository.path), "merge-base", "--is-ancestor", commit, tip]
    return subprocess.run(command, env=git_environment(), check=False).returncode == 0


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_local_repository_answers_as_git_does_for_any_history(repository: GitRepository, seed: int) -> None:
    chance = random.Random(seed)
    commits: list[str] = []
    for number in range(14):
        parents = chance.sample(commits, min(len(commits), chance.choice([0, 1, 1, 1, 2, 3])))
        commits.append(repository.commit({f"{number}.py": b"x"}, parents=parents, branch=f"b{number}"))

    source = open_source(LocalGit(repository.path))
    for _ in range(14):
        commit, tip = chance.choice(commits), chance.choice(commits)
        wanted = Ancestry.CONTAINED if is_ancestor(repository, commit, tip) else Ancestry.NOT_CONTAINED
        assert await source.ancestry(commit, tip) is wanted, (commit, tip)
    await source.close()


async def test_a_history_beyond_the_limit_is_not_read(
    repository: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = [repository.commit({"a.py": b"%d" % number}) for number in range(20)]
    monkeypatch.setattr(local, "MAX_COMMITS", 10)
    source = open_source(LocalGit(repository.path))

    assert await source.ancestry(commits[0], commits[-1]) is Ancestry.TOO_FAR
    assert await source.ancestry(commits[-3], commits[-1]) is Ancestry.CONTAINED
    await source.close()

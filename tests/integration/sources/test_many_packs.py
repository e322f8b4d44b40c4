"""A repository of more packs than a process may open files."""

from __future__ import annotations

import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from reposync.sources.local import LocalGitSource
from reposync.sources.spec import LocalGit
from tests.fixtures.repositories import GitRepository

READ = """
import asyncio, resource, sys
from pathlib import Path

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

from reposync.sources.local import LocalGitSource
from reposync.sources.spec import LocalGit


async def main():
    source = LocalGitSource(LocalGit(Path(sys.argv[1])))
    tree = await source.tree(await source.head())
    print(len([blob async for blob in source.read(tree.entries, max_bytes=1000) if blob.content]))
    await source.close()


asyncio.run(main())
"""


def in_packs(path: Path, count: int) -> GitRepository:
    """A repository of `count` files, each of which came in a pack of its own."""
    repository = GitRepository.create(path)
    repository.git("config", "fastimport.unpackLimit", "0")
    for number in range(count):
        repository.commit({f"{number}.py": b"%d\n" % number * 20})
    assert len(list(path.glob("objects/pack/*.pack"))) == count
    return repository


def test_a_repository_of_more_packs_than_files_may_be_open_is_read(tmp_path: Path) -> None:
    repository = in_packs(tmp_path / "many.git", 150)

    done = subprocess.run([sys.executable, "-c", READ, repository.path], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("150\n", "")


async def test_packs_that_are_repacked_while_not_open_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reposync.sources.objects.STEP_BLOBS", 1)
    repository = in_packs(tmp_path / "many.git", 10)
    source = LocalGitSource(LocalGit(repository.path))
    tree = await source.tree(await source.head())

    found = set()
    async with aclosing(source.read(tree.entries, max_bytes=1000)) as blobs:
        async for blob in blobs:
            if not found:
                repository.git("repack", "-a", "-d", "-q")
            found.add(blob.sha)

    assert found == {entry.sha for entry in tree.entries}
    await source.close()

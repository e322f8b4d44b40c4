"""Repositories on this machine, in every shape that people have them."""

from __future__ import annotations

import random
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from reposync.errors import SourceCorrupt, SourceError
from reposync.sources.factory import open_source
from reposync.sources.local import LocalGitSource
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import LocalGit
from tests.fixtures.repositories import GitRepository, git_environment
from tests.integration.sources.conftest import contents, entries_of, expected, listed, same_tree

Open = Callable[..., LocalGitSource]


@pytest.fixture
async def local() -> AsyncGenerator[Open, None]:
    made: list[LocalGitSource] = []

    def make(path: Path, branch: str | None = None) -> LocalGitSource:
        made.append(LocalGitSource(LocalGit(path, branch)))
        return made[-1]

    yield make
    for source in made:
        await source.close()


def git(path: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "protocol.file.allow=always"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=path, env=git_environment(), capture_output=True, check=True
    )
    return done.stdout.decode().strip()


async def test_of_a_working_copy_only_what_is_committed_counts(
    repository: GitRepository, tmp_path: Path, local: Open
) -> None:
    repository.commit({"a.py": b"committed\n", "b.py": b"b\n"})
    work = repository.clone(tmp_path / "work")
    (work / "a.py").write_text("changed\n")
    (work / "staged.py").write_text("staged\n")
    (work / "untracked.py").write_text("untracked\n")
    git(work, "add", "staged.py")
    source = local(work)

    head = await source.head()
    entries = (await source.tree(head)).entries

    assert head.sha == repository.head()
    assert head.committed_at.isoformat() == "2024-01-01T00:00:00+00:00"
    assert sorted((await contents(source, entries)).values()) == [b"b\n", b"committed\n"]
    assert source.url(b"a.py", head, 1, 2) is None
    assert await source.project_id() is None


def a_submodule(repository: GitRepository, folder: Path) -> Path:
    outer = folder / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "submodule", "--quiet", "add", str(repository.path), "inner")
    return outer / "inner"


def a_linked_worktree(repository: GitRepository, folder: Path) -> Path:
    git(repository.clone(folder / "work"), "worktree", "add", "-q", str(folder / "linked"), "origin/main")
    assert (folder / "linked" / ".git").is_file()
    return folder / "linked"


def with_borrowed_objects(repository: GitRepository, folder: Path) -> Path:
    git(folder, "clone", "-q", "--shared", str(repository.path), "shared")
    return folder / "shared"


def a_shallow_clone(repository: GitRepository, folder: Path) -> Path:
    git(folder, "clone", "-q", "--depth", "1", repository.path.as_uri(), "shallow")
    return folder / "shallow"


def packed(repository: GitRepository, folder: Path) -> Path:
    repository.git("gc", "--quiet")
    return repository.path


SHAPES = [a_submodule, a_linked_worktree, with_borrowed_objects, a_shallow_clone, packed]


@pytest.mark.parametrize(("hashes", "shape"), [*(("sha1", shape) for shape in SHAPES), ("sha256", packed)])
async def test_every_shape_of_a_repository_is_read(
    tmp_path: Path, local: Open, hashes: str, shape: Callable[[GitRepository, Path], Path]
) -> None:
    repository = GitRepository.create(tmp_path / "r.git", object_format=hashes)
    repository.commit({"a.py": b"one\n"})
    repository.many(30)
    source = local(shape(repository, tmp_path))

    head = await source.head()
    entries = (await source.tree(head)).entries

    assert head.sha == repository.head()
    assert same_tree(entries, repository)
    assert await contents(source, entries) == expected(repository, entries)


async def test_a_worktree_whose_repository_is_gone_says_so(
    repository: GitRepository, tmp_path: Path, local: Open
) -> None:
    repository.commit({"a.py": b"main\n"})
    work = repository.clone(tmp_path / "work")
    git(work, "worktree", "add", "-q", str(tmp_path / "linked"))
    work.rename(tmp_path / "moved")

    with pytest.raises(SourceError, match="linked"):
        await local(tmp_path / "linked").head()


async def test_a_branch_may_be_named_and_head_may_be_unborn_or_detached(
    repository: GitRepository, tmp_path: Path, local: Open
) -> None:
    repository.set_head("unborn/branch")
    source = local(repository.path)
    assert await source.branch() == "unborn/branch"
    old = repository.commit({"a.py": b"1\n"})
    new = repository.commit({"a.py": b"2\n"})
    other = repository.commit({"a.py": b"3\n"}, branch="feature/über", parents=[])
    repository.set_head("main")
    repository.git("pack-refs", "--all")
    work = repository.clone(tmp_path / "work")
    git(work, "checkout", "-q", "--detach", old)
    git(work, "worktree", "add", "-q", "-b", "topic", str(tmp_path / "linked"))

    assert ((await source.head()).sha, await source.branch()) == (new, "main")
    assert ((await local(work).head()).sha, await local(work).branch()) == (old, None)
    assert (await local(repository.path, "feature/über").head()).sha == other
    assert await local(tmp_path / "linked").branch() == "topic"


async def test_a_folder_that_was_swapped_for_a_different_one_is_never_listed(
    repository: GitRepository, local: Open
) -> None:
    repository.git("config", "fastimport.unpackLimit", "10000")
    repository.commit({"one/a.py": b"1\n", "two/b.py": b"2\n"})
    one, two = (repository.git("rev-parse", f"HEAD:{name}").strip().decode() for name in ("one", "two"))
    objects = repository.path / "objects"
    swapped = objects / one[:2] / one[2:]
    swapped.chmod(0o644)
    swapped.write_bytes((objects / two[:2] / two[2:]).read_bytes())
    source = local(repository.path)
    head = await source.head()

    with pytest.raises(SourceCorrupt, match=f"tree {one}"):
        await source.tree(head)


async def test_loose_objects_that_are_packed_in_the_middle_of_a_read_are_still_read(
    repository: GitRepository, tmp_path: Path, local: Open
) -> None:
    work = repository.clone(tmp_path / "work")
    for number in range(300):
        (work / f"f{number}").write_text(f"{number}\n")
    git(work, "add", "-A")
    git(work, "commit", "-qm", "many")
    source, entries = await listed(local(work))

    found: dict[str, bytes | None] = {}
    async with aclosing(source.read(entries, max_bytes=1000)) as blobs:
        async for blob in blobs:
            if not found:
                git(work, "gc", "--quiet", "--prune=now")
            found[blob.sha] = blob.content

    assert len(found) == 300


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "loose"])
async def test_a_blob_over_the_limit_is_sized_but_never_held(
    repository: GitRepository, local: Open, packed: bool
) -> None:
    repository.git("config", "pack.compression", "1")
    repository.git("config", "fastimport.unpackLimit", "1" if packed else "10000")
    repository.commit({"huge.bin": bytes(40_000_000), "small.py": b"x = 1\n"})
    source, entries = await listed(local(repository.path))

    tracemalloc.start()
    async with aclosing(source.read(entries, max_bytes=1000)) as blobs:
        found = {blob.size_bytes: blob.content async for blob in blobs}
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert found == {40_000_000: None, 6: b"x = 1\n"}
    assert peak_bytes < 4_000_000


async def test_a_partial_clone_that_lacks_its_contents_says_what_is_needed(
    repository: GitRepository, tmp_path: Path, local: Open
) -> None:
    repository.commit({"a": b"1"})
    repository.git("config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--filter=blob:none", "--no-checkout", repository.path.as_uri(), "partial")
    source, entries = await listed(local(tmp_path / "partial"))

    with pytest.raises(UnreadableBlobs, match=r"is missing.*without --filter"):
        await contents(source, entries)


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied", "swapped"])
async def test_a_damaged_loose_blob_is_never_returned(repository: GitRepository, local: Open, damage: str) -> None:
    repository.git("config", "fastimport.unpackLimit", "10000")
    repository.commit({"good.py": b"good\n" * 50, "bad.py": random.Random(1).randbytes(500)})
    source = local(repository.path)
    entries = {entry.path: entry for entry in await entries_of(source)}
    bad, good = (
        repository.path / "objects" / entries[name].sha[:2] / entries[name].sha[2:] for name in (b"bad.py", b"good.py")
    )
    whole = bad.read_bytes()
    bad.chmod(0o644)
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    bad.write_bytes(
        {"flipped": bytes(changed), "cut": whole[:100], "emptied": b"", "swapped": good.read_bytes()}[damage]
    )

    read = []
    with pytest.raises(UnreadableBlobs, match=r"bad\.py"):
        async for blob in source.read(list(entries.values()), max_bytes=1000):
            read.append(blob.sha)
    assert read == [entries[b"good.py"].sha]


async def test_a_damaged_pack_is_named_and_returns_nothing_wrong(repository: GitRepository, local: Open) -> None:
    repository.commit({f"f{number}": random.Random(number).randbytes(300) for number in range(50)})
    repository.git("repack", "-adq")
    _, entries = await listed(local(repository.path))
    true = expected(repository, entries)
    [pack] = (repository.path / "objects" / "pack").glob("*.pack")
    changed = bytearray(pack.read_bytes())
    changed[len(changed) // 2] ^= 0x55
    pack.chmod(0o644)
    pack.write_bytes(changed)

    read: dict[str, bytes | None] = {}
    with pytest.raises(SourceCorrupt, match="fsck"):
        async for blob in local(repository.path).read(entries, max_bytes=1000):
            read[blob.sha] = blob.content
    assert read
    assert all(true[sha] == content for sha, content in read.items())


@pytest.mark.parametrize("name", ["idx", "pack"])
async def test_a_pack_that_is_rubbish_is_an_error_that_names_it(
    repository: GitRepository, local: Open, name: str
) -> None:
    repository.many(20)
    repository.git("repack", "-adq")
    [broken] = (repository.path / "objects" / "pack").glob(f"*.{name}")
    broken.chmod(0o644)
    broken.write_bytes(b"rubbish" * 300)

    with pytest.raises(SourceCorrupt, match="pack"):
        await local(repository.path).head()


async def test_a_path_that_is_no_repository_says_what_it_is_and_what_to_give(
    repository: GitRepository, tmp_path: Path, local: Open
) -> None:
    repository.commit({"src/a.py": b"1\n"})
    work = repository.clone(tmp_path / "work")
    plain = tmp_path / "plain"
    plain.mkdir()

    for path, words in [
        (tmp_path / "nowhere", "does not exist"),
        (work / "src", f"is inside the git repository {work.resolve()}.*Give {work.resolve()} instead"),
        (plain, "is not a git repository"),
    ]:
        with pytest.raises(SourceError, match=words):
            await local(path).head()


async def test_the_factory_opens_a_path_and_closing_gives_every_file_back(repository: GitRepository) -> None:
    repository.many(5)
    before = open_files()
    source = open_source(LocalGit(repository.path))

    assert len(await entries_of(source)) == 5
    await source.close()

    assert open_files() == before


def open_files() -> list[str]:
    """The files of repositories that this process holds open (on systems that tell)."""
    folder = Path("/proc/self/fd")
    links = (str(link.readlink()) for link in folder.iterdir() if link.is_symlink()) if folder.exists() else ()
    return sorted(link for link in links if ".git" in link)


READ = """
import asyncio, resource, sys
from pathlib import Path

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

from reposync.sources.local import LocalGitSource
from reposync.sources.port import LocalGit


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

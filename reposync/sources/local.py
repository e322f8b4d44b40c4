"""A repository on this machine, read through its refs and objects; the work tree is never read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TypeVar

from dulwich.errors import NotGitRepository
from dulwich.refs import HEADREF, SYMREF, Ref, SymrefLoop
from dulwich.repo import Repo, UnsupportedExtension, UnsupportedVersion

from reposync.errors import BranchNotFound, RepositoryEmpty, SourceCorrupt, SourceError
from reposync.sources.object_stores import ObjectDirectories
from reposync.sources.objects import (
    HEADS,
    UnreadableBlobs,
    branch_name,
    branch_not_found,
    distinct_blobs,
    read_steps,
)
from reposync.sources.port import Blob, Commit, Source, Tree, TreeEntry
from reposync.sources.spec import LocalGit

T = TypeVar("T")

# Blobs are looked up and sorted by their place in the packs this many at a time.
LOOKUP_BLOBS = 20_000


class LocalGitSource(Source):
    """A working copy, a linked worktree (`.git` file) or a bare repository. Only what is committed on `branch` counts,
    or on HEAD, detached or not. The first call checks whether it is a repository."""

    def __init__(self, spec: LocalGit) -> None:
        self._path = spec.path
        self._branch = spec.branch
        self._opened: tuple[Repo, ObjectDirectories] | None = None
        # Reading changes caches, and two reads may run at a time.
        self._lock = threading.Lock()

    async def head(self) -> Commit:
        return await self._in_thread(self._head)

    async def branch(self, *, fresh: bool = False) -> str | None:
        """As the port says; always what the repository says now."""
        return self._branch if self._branch is not None else await self._in_thread(self._symbolic_head)

    async def tree(self, commit: Commit) -> Tree:
        return await self._in_thread(partial(self._tree, commit))

    async def read(self, entries: Sequence[TreeEntry], *, max_bytes: int) -> AsyncGenerator[Blob, None]:
        """As the port says. Raises UnreadableBlobs after the last blob if some are missing or damaged."""
        unreadable: dict[str, str] = {}
        shas = distinct_blobs(entries)
        for start in range(0, len(shas), LOOKUP_BLOBS):
            _, objects = await self._in_thread(self._open)
            blobs = objects.blobs(shas[start : start + LOOKUP_BLOBS], max_bytes=max_bytes, unreadable=unreadable)
            async with aclosing(read_steps(blobs, self._in_thread)) as steps:
                async for blob in steps:
                    yield blob
        if unreadable:
            raise UnreadableBlobs.among(
                entries,
                unreadable,
                where=str(self._path),
                remedy=f"Run `git -C {self._path} fsck`; a fresh full clone (without --filter) restores them.",
            )

    async def close(self) -> None:
        await self._in_thread(self._close)

    # In a thread -------------------------------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def locked() -> T:
            with self._lock:
                return work()

        return await asyncio.to_thread(locked)

    def _open(self) -> tuple[Repo, ObjectDirectories]:
        if self._opened is None:
            repo = self._open_repository()
            folder = Path(repo.object_store.path)
            if not folder.is_dir():
                repo.close()
                raise SourceError(
                    f"{self._path} points to a git directory without objects: {repo.commondir()}.",
                    remedy="If this is a linked worktree, its main repository was moved or deleted: `git worktree "
                    "repair`.",
                )
            self._opened = repo, ObjectDirectories(folder, repo.object_format, where=str(self._path))
        return self._opened

    def _open_repository(self) -> Repo:
        try:
            return Repo(self._path)
        except NotGitRepository as error:
            raise self._no_repository() from error
        except (UnsupportedExtension, UnsupportedVersion) as error:
            raise SourceError(
                f"{self._path} uses a repository format that cannot be read here: {error}.",
                remedy="A plain `git clone` of it (no --filter) can be read.",
            ) from error
        except (OSError, ValueError, KeyError) as error:
            remedy = "Run `git fsck` there."
            if isinstance(error, PermissionError):
                remedy = "Grant this user read access to it."
            raise SourceError(f"{self._path} cannot be opened as a git repository: {error}.", remedy=remedy) from error

    def _no_repository(self) -> SourceError:
        if not self._path.exists():
            return SourceError(f"{self._path} does not exist.", remedy="Give the path of a git repository.")
        if not self._path.is_dir():
            return SourceError(f"{self._path} is a file.", remedy="Give the folder of a git repository.")
        try:
            with Repo.discover(self._path) as outer:
                root = Path(outer.path).resolve()
        except (NotGitRepository, OSError, ValueError):
            return SourceError(
                f"{self._path} is not a git repository.",
                remedy=f"Give the path of a repository, or make one: `git init {self._path}` and commit.",
            )
        return SourceError(
            f"{self._path} is a folder inside the git repository {root}.", remedy=f"Give {root} instead."
        )

    def _head(self) -> Commit:
        repo, objects = self._open()
        branch = self._branch
        ref = HEADREF if branch is None else HEADS + branch.encode("utf-8", "surrogateescape")
        tip = self._ref(repo, ref)
        if tip is not None:
            return objects.commit(tip)[0]
        names = sorted(name.decode(errors="replace") for name in repo.refs.keys(Ref(b"refs/heads")))
        if not names:
            raise RepositoryEmpty(f"{self._path} has no commit yet.", remedy="Commit something there first.")
        if branch is not None:
            raise branch_not_found(branch, names, str(self._path))
        raise BranchNotFound(
            f"HEAD of {self._path} names a branch without commits.",
            remedy=f"Name a branch to sync: {', '.join(names[:5])}.",
        )

    def _ref(self, repo: Repo, name: bytes) -> str | None:
        try:
            return repo.refs[Ref(name)].decode("ascii")
        except KeyError:
            return None
        except (SymrefLoop, ValueError, OSError) as error:
            raise self._unreadable_ref(name, error) from error

    def _symbolic_head(self) -> str | None:
        try:
            content = self._open()[0].refs.read_ref(HEADREF) or b""
        except (ValueError, OSError) as error:
            raise self._unreadable_ref(HEADREF, error) from error
        return branch_name(content.removeprefix(SYMREF)) if content.startswith(SYMREF) else None

    def _unreadable_ref(self, name: bytes, error: Exception) -> SourceCorrupt:
        return SourceCorrupt(
            f"{name.decode(errors='replace')} of {self._path} cannot be read: {error}.",
            remedy="Run `git fsck` there.",
        )

    def _tree(self, commit: Commit) -> Tree:
        return Tree(self._open()[1].tree(commit.sha), proven=True)

    def _close(self) -> None:
        if self._opened is not None:
            repo, objects = self._opened
            objects.close()
            repo.close()
            self._opened = None

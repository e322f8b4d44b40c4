"""A repository on this machine, read through its refs and objects; the work tree is never read."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TypeVar

from dulwich.errors import NotGitRepository
from dulwich.refs import HEADREF, SYMREF, Ref, SymrefLoop
from dulwich.repo import Repo, UnsupportedExtension, UnsupportedVersion

from reposync.errors import SourceCorrupt, SourceError
from reposync.sources.object_stores import ObjectDirectories
from reposync.sources.objects import HEADS, UnreadableBlobs, branch_name, distinct_blobs, no_tip, read_steps
from reposync.sources.port import Blob, Commit, Source, Tree, TreeEntry
from reposync.sources.spec import LocalGit

T = TypeVar("T")


class LocalGitSource(Source):
    """Only what is committed on `branch` counts, or on HEAD, detached or not. The first call checks whether it is a
    repository."""

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
        _, objects = await self._in_thread(self._open)
        found = objects.blobs(distinct_blobs(entries), max_bytes=max_bytes, unreadable=unreadable)
        async with aclosing(read_steps(found, self._in_thread)) as blobs:
            async for blob in blobs:
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
            try:
                repo = Repo(self._path)
            except NotGitRepository as error:
                raise self._no_repository() from error
            except (UnsupportedExtension, UnsupportedVersion, OSError, ValueError, KeyError) as error:
                raise SourceError(
                    f"{self._path} cannot be opened as a git repository: {error}.",
                    remedy="Check that this user may read it, and run `git fsck` there. A plain `git clone` of it can "
                    "be read, whatever its format.",
                ) from error
            folder = Path(repo.object_store.path)
            if not folder.is_dir():
                repo.close()
                raise SourceError(
                    f"{self._path} points to a git directory without objects: {repo.commondir()}.",
                    remedy="`git worktree repair` finds a main repository that was moved.",
                )
            self._opened = repo, ObjectDirectories(folder, repo.object_format, where=str(self._path))
        return self._opened

    def _no_repository(self) -> SourceError:
        what = "is not a git repository" if self._path.exists() else "does not exist"
        remedy = "Give the folder of a git repository."
        with contextlib.suppress(NotGitRepository, OSError, ValueError), Repo.discover(self._path) as outer:
            root = Path(outer.path).resolve()
            what, remedy = f"is inside the git repository {root}", f"Give {root} instead."
        return SourceError(f"{self._path} {what}.", remedy=remedy)

    def _head(self) -> Commit:
        repo, objects = self._open()
        name = b"HEAD" if self._branch is None else HEADS + self._branch.encode("utf-8", "surrogateescape")
        with self._reading_refs(), contextlib.suppress(KeyError):
            return objects.commit(repo.refs[Ref(name)].decode("ascii"))[0]
        names = [name.decode(errors="replace") for name in repo.refs.keys(Ref(b"refs/heads"))]
        raise no_tip(str(self._path), self._branch, names)

    def _symbolic_head(self) -> str | None:
        repo, _ = self._open()
        with self._reading_refs():
            content = repo.refs.read_ref(HEADREF) or b""
        return branch_name(content.removeprefix(SYMREF)) if content.startswith(SYMREF) else None

    @contextlib.contextmanager
    def _reading_refs(self) -> Iterator[None]:
        try:
            yield
        except (SymrefLoop, ValueError, OSError) as error:
            raise SourceCorrupt(
                f"The refs of {self._path} cannot be read: {error}.", remedy="Run `git fsck` there."
            ) from error

    def _tree(self, commit: Commit) -> Tree:
        return Tree(self._open()[1].tree(commit.sha), proven=True)

    def _close(self) -> None:
        if self._opened is not None:
            repo, objects = self._opened
            objects.close()
            repo.close()
            self._opened = None

"""A repository on this machine, read through its refs and objects; the work tree is never read."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from dulwich.errors import NotGitRepository
from dulwich.graph import find_merge_base
from dulwich.objects import Commit as CommitObject
from dulwich.objects import ObjectID
from dulwich.refs import HEADREF, SYMREF, Ref, SymrefLoop
from dulwich.repo import BaseRepo, Repo, UnsupportedExtension, UnsupportedVersion

from reposync.errors import SourceCorrupt, SourceError
from reposync.sources.history import read_history
from reposync.sources.object_stores import ObjectDirectories
from reposync.sources.objects import HEADS, UnreadableBlobs, branch_name, first_paths, no_tip, read_steps
from reposync.sources.port import (
    Ancestry,
    Blob,
    Commit,
    CommitAmbiguous,
    LocalGit,
    PastCommit,
    Source,
    Tree,
    TreeEntry,
)

T = TypeVar("T")

MAX_COMMITS = 500_000
"""Read to compare two. Both ends meet soon, unless the histories have nothing in common."""


class LocalGitSource(Source):
    """What is committed on `branch`, or on HEAD, detached or not. The first call checks that it is a repository."""

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
        shas = list(await asyncio.to_thread(first_paths, entries))
        found = objects.blobs(shas, max_bytes=max_bytes, unreadable=unreadable)
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

    async def ancestry(self, commit: str, tip: str | None) -> Ancestry:
        """As the port says; reads commits from both ends until they meet."""
        stop = threading.Event()
        try:
            return await self._in_thread(partial(self._ancestry, commit, tip, stop))
        except _Stopped:
            return Ancestry.TOO_FAR
        finally:
            # The caller may be gone: the thread ends at its next commit.
            stop.set()

    async def history(self, tip: str, most: int, *, contents_too: bool = True) -> list[PastCommit]:
        stop = threading.Event()
        try:
            return await self._in_thread(lambda: read_history(self._open()[1], tip, most, stop))
        finally:
            stop.set()

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

    def _ancestry(self, commit: str, tip: str | None, stop: threading.Event) -> Ancestry:
        repo, _ = self._open()
        try:
            full = self._full_name(repo, commit)
            if full is None or tip is None:
                return Ancestry.UNKNOWN_COMMIT if full is None else Ancestry.NOT_CONTAINED
            # Not `can_fast_forward`, which relies on the commits' dates: clocks are wrong.
            bases = find_merge_base(cast("BaseRepo", _History(repo, stop)), [full, ObjectID(tip.encode())])
        except (KeyError, OSError, ValueError, AssertionError) as error:
            # KeyError: a shallow clone is incomplete, and commits that a force-push left behind are removed some day.
            kind = SourceCorrupt if isinstance(error, KeyError) else SourceError
            raise kind(
                f"The history of {self._path} cannot be read: {error}.",
                remedy="Run `git fsck` there; `git fetch --unshallow` completes a shallow clone.",
            ) from error
        return Ancestry.CONTAINED if bases == [full] else Ancestry.NOT_CONTAINED

    def _full_name(self, repo: Repo, commit: str) -> ObjectID | None:
        wanted = commit.encode()
        if len(wanted) == repo.object_format.hex_length:
            candidates = [ObjectID(wanted)] if ObjectID(wanted) in repo.object_store else []
        else:
            # Trees and blobs may have the same prefix; of millions of objects two or three do.
            candidates = list(islice(repo.object_store.iter_prefix(wanted), 100))
        found = [each for each in candidates if isinstance(repo.object_store[each], CommitObject)]
        if len(found) > 1:
            text = f"{len(found)} commits of {self._path} begin with {commit}."
            raise CommitAmbiguous(text, remedy="Give more of the name.")
        return found[0] if found else None

    def _close(self) -> None:
        if self._opened is not None:
            repo, objects = self._opened
            objects.close()
            repo.close()
            self._opened = None


class _Stopped(Exception):
    pass


class _History:
    """The parts of a repository that `find_merge_base` uses; stoppable and bounded."""

    def __init__(self, repo: Repo, stop: threading.Event) -> None:
        self._repo = repo
        self._stop = stop
        self._left = MAX_COMMITS
        self.object_store = self

    def parents_provider(self) -> Any:
        return self._repo.parents_provider()

    def __getitem__(self, name: ObjectID) -> Any:
        self._left -= 1
        if self._stop.is_set() or self._left < 0:
            raise _Stopped
        return self._repo.object_store[name]

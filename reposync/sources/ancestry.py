"""Whether a commit is part of the history of a different one.

| source | answer |
|---|---|
| a repository on this machine | its commits, from both ends until they meet |
| GitLab | 1 REST call: the merge base of the two |
| git behind a URL | unknowable, except for the tip itself |
"""

from __future__ import annotations

import asyncio
import threading
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, assert_never, cast

from reposync.errors import SourceCorrupt, SourceError, UsageError
from reposync.outgoing import RequestObserver, RetryPolicy
from reposync.sources.spec import GitLabProject, LocalGit, RemoteGit, SourceSpec

if TYPE_CHECKING:
    from dulwich.objects import ObjectID
    from dulwich.repo import BaseRepo, Repo

MAX_COMMITS = 500_000
"""Read for one answer. Both ends meet soon, unless the histories have nothing in common."""
_RETRY = RetryPolicy(attempts=2, max_wait_seconds=5.0)


class Ancestry(StrEnum):
    CONTAINED = "contained"
    """The commit is the tip, or one of its ancestors."""
    NOT_CONTAINED = "not_contained"
    UNKNOWN_COMMIT = "unknown_commit"
    """The repository has no such commit."""
    UNKNOWABLE = "unknowable"
    """This source cannot compare commits."""
    TOO_FAR = "too_far"
    """There are too many commits between the two."""


class CommitAmbiguous(UsageError):
    """An abbreviated commit is ambiguous."""

    code = "COMMIT_AMBIGUOUS"
    status = 409


async def ancestry(
    spec: SourceSpec, commit: str, tip: str | None, *, observer: RequestObserver | None = None
) -> Ancestry:
    """The relation of `commit` (7 to 64 lower-case hex digits, abbreviated if unique) to `tip` (a full name). Without a
    tip the answer is NOT_CONTAINED if the commit exists.

    Raises CommitAmbiguous, ConfigError, SourceError and its kind.
    """
    match spec:
        case LocalGit():
            return await _local(spec, commit, tip)
        case GitLabProject():
            return await _gitlab(spec, commit, tip, observer)
        case RemoteGit():
            return Ancestry.CONTAINED if tip is not None and tip.startswith(commit) else Ancestry.UNKNOWABLE
        case _:
            assert_never(spec)


# A repository on this machine ----------------------------------------------------------------------------------------


class _Stopped(Exception):
    pass


async def _local(spec: LocalGit, commit: str, tip: str | None) -> Ancestry:
    stop = threading.Event()
    try:
        return await asyncio.to_thread(_read_history, spec, commit, tip, stop)
    except _Stopped:
        return Ancestry.TOO_FAR
    finally:
        # The caller may be gone: the thread ends at its next commit.
        stop.set()


def _read_history(spec: LocalGit, commit: str, tip: str | None, stop: threading.Event) -> Ancestry:
    from dulwich.errors import NotGitRepository
    from dulwich.graph import find_merge_base
    from dulwich.objects import ObjectID
    from dulwich.repo import Repo

    try:
        with Repo(spec.path) as repo:
            full = _full_name(repo, commit, str(spec.path))
            if full is None:
                return Ancestry.UNKNOWN_COMMIT
            if tip is None:
                return Ancestry.NOT_CONTAINED
            # Not `can_fast_forward`, which relies on the commits' dates: clocks are wrong.
            bases = find_merge_base(cast("BaseRepo", _History(repo, stop)), [full, ObjectID(tip.encode())])
            return Ancestry.CONTAINED if bases == [full] else Ancestry.NOT_CONTAINED
    except (KeyError, NotGitRepository, OSError, ValueError, AssertionError) as error:
        # KeyError: a shallow clone is incomplete, and commits that a force-push left behind are removed some day.
        kind = SourceCorrupt if isinstance(error, KeyError) else SourceError
        raise kind(
            f"The history of {spec.path} cannot be read: {error}.",
            remedy="Run `git fsck` there; `git fetch --unshallow` completes a shallow clone.",
        ) from error


def _full_name(repo: Repo, commit: str, where: str) -> ObjectID | None:
    """Raises CommitAmbiguous."""
    from dulwich.objects import Commit, ObjectID

    wanted = commit.encode()
    if len(wanted) == repo.object_format.hex_length:
        candidates = [ObjectID(wanted)] if ObjectID(wanted) in repo.object_store else []
    else:
        # Trees and blobs may have the same prefix; of millions of objects two or three do.
        candidates = list(islice(repo.object_store.iter_prefix(wanted), 100))
    found = [each for each in candidates if isinstance(repo.object_store[each], Commit)]
    if len(found) > 1:
        raise CommitAmbiguous(f"{len(found)} commits of {where} begin with {commit}.", remedy="Give more of the name.")
    return found[0] if found else None


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


# GitLab --------------------------------------------------------------------------------------------------------------


async def _gitlab(spec: GitLabProject, commit: str, tip: str | None, observer: RequestObserver | None) -> Ancestry:
    from reposync.http_client import HttpRefused
    from reposync.sources.gitlab_client import GitLabClient, Refusal

    server = GitLabClient(spec, retry=_RETRY, observer=observer)
    project = spec.project_id if spec.project_id is not None else spec.project
    doing = f"Reading the history of {spec.project} on {server.url}"
    try:
        if tip is None:
            await server.call(
                "api_commit",
                lambda client: client.projects.get(project, lazy=True).commits.get(commit, stats="false"),
                doing=doing,
            )
            return Ancestry.NOT_CONTAINED
        base = await server.call(
            "api_merge_base",
            lambda client: client.projects.get(project, lazy=True).repository_merge_base([commit, tip]),
            doing=doing,
        )
    except HttpRefused as refused:
        refusal = Refusal.of(refused)
        if (refused.status == 400 and commit in refusal.text) or refusal.is_about("Commit"):
            return Ancestry.UNKNOWN_COMMIT
        if refusal.is_about("Merge Base") or (refused.status == 400 and tip is not None and tip in refusal.text):
            # They have nothing in common; or the tip went with a rewritten branch, and its index is about to follow.
            return Ancestry.NOT_CONTAINED
        raise server.explain(refused, path=spec.project) from refused
    finally:
        await server.close()
    # Compared by its prefix: GitLab would prefer a branch of that name to the commit.
    found = str(cast("dict[str, Any]", base).get("id") or "")
    return Ancestry.CONTAINED if found.startswith(commit) else Ancestry.NOT_CONTAINED

"""What the last commits say of a repository's files: read from the source once the index holds its head."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from reposync.embedding.commit_words import CommitWords
from reposync.errors import SourceError
from reposync.sources.commit_kinds import is_bot, is_format, is_revert, without_numbers
from reposync.sources.port import PastCommit, path_text
from reposync.store.run import Run
from reposync.supervision import in_thread
from reposync.sync.lease import Lease
from reposync.sync.shown_texts import mask_error
from reposync.sync.target import SyncParts

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 86_400.0
"""A fetch of commits and trees is dearer than a usual push, and a search loses little without the last day: without the
newest 60 commits, NDCG@10 of past questions rises by 0.041, and with them by 0.047."""
MOST_READ: Final = 500
"""Merges and commits with many files are left out afterwards."""


async def refresh_commit_words(parts: SyncParts, run: Run, lease: Lease, head: str) -> None:
    """At most once a day. A source that refuses is asked again a day later; the run goes on. Raises LeaseLost, and what
    the store raises."""
    if await parts.versions.asked_for_commit_words(run.repository_id, EVERY_SECONDS):
        return
    words = None
    try:
        commits = await parts.source.history(head, MOST_READ, contents_too=False)
        if commits:
            words = await in_thread(lambda: CommitWords.of(said_of_files(commits)).stored())
    except SourceError as error:
        await mask_error(parts.content, error, parts.settings.secrets, known=parts.settings.location)
        log.info("what commits say of files was not read: %s", error)
    lease.check()
    await parts.versions.record_commit_words(run, words)


def said_of_files(commits: Sequence[PastCommit]) -> Iterator[tuple[str, list[str]]]:
    """The subject of each, and the files that it changed, by the paths that they have now. `commits`: newest first.
    Merges repeat what other commits say; bots, reverts and formats say nothing of a file; one that is gone is no
    answer."""
    now: dict[bytes, bytes] = {}
    for commit in commits:
        if commit.changes is None or len(commit.parents) > 1:
            continue
        paths = []
        for change in commit.changes:
            if change.after is not None:
                path = now.get(change.after.path, change.after.path)
                paths.append(path)
                if change.before is not None and change.before.path != change.after.path:
                    now[change.before.path] = path
        if not commit.has_more and not _says_nothing(commit):
            yield commit.subject, [path_text(path) for path in paths]


def _says_nothing(commit: PastCommit) -> bool:
    title = without_numbers(commit.subject).strip()
    return is_bot([commit.author, commit.email]) or is_revert(title) or is_format(title)

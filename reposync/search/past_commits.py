"""What the last commits say of the files that a search found."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from reposync.embedding.commit_words import CommitWords, file_number
from reposync.store.database import Database
from reposync.store.versions import Versions
from reposync.vectors.port import Candidate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEPT_SECONDS: Final = 600.0
"""Runs read them from the source once a day."""
MOST_KEPT_BYTES: Final = 32 << 20
"""The words of about 2,500 repositories."""
_ENTRY_BYTES: Final = 500


class PastCommits:
    """Remembers the commits of the index versions that searches found files of last. A search reads those of no other
    version: a reader finds no file of a repository that they may not see."""

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._kept: dict[str, tuple[float, CommitWords | None]] = {}
        self._most_bytes = most_bytes
        self.kept_bytes = 0

    async def like(
        self, database: Database, found: Sequence[Candidate], wanted: NDArray[np.uint32]
    ) -> dict[tuple[str, str], float]:
        """How much the commits of each file are like a question of these terms, by version and path; see
        `CommitWords.likeness`. Raises StoreUnavailable."""
        files = {(each.version, each.path) for each in found}
        known = await self._known(database, {version for version, _ in files})
        of_each = {version: words.likeness(wanted) for version, words in known.items()}
        return {
            (version, path): share
            for version, path in files
            if version in of_each and (share := of_each[version].get(file_number(path), 0.0))
        }

    async def _known(self, database: Database, versions: set[str]) -> dict[str, CommitWords]:
        now = time.monotonic()
        # Taken before the database is asked: meanwhile other searches may displace them.
        kept = {each: self._kept[each] for each in versions if each in self._kept}
        found = {each: words for each, (until, words) in kept.items() if until >= now}
        if unknown := versions - found.keys():
            rows = await Versions(database).commit_words(unknown)
            for each in unknown:
                found[each] = CommitWords.read(rows[each]) if each in rows else None
                self._keep(each, found[each])
        return {each: words for each, words in found.items() if words is not None}

    def _keep(self, version: str, words: CommitWords | None) -> None:
        self._forget(version)
        self._kept[version] = time.monotonic() + KEPT_SECONDS, words
        self.kept_bytes += _size(words)
        while self.kept_bytes > self._most_bytes:
            self._forget(next(iter(self._kept)))

    def _forget(self, version: str) -> None:
        if version in self._kept:
            self.kept_bytes -= _size(self._kept.pop(version)[1])


def _size(words: CommitWords | None) -> int:
    return _ENTRY_BYTES + (0 if words is None else words.size_bytes)

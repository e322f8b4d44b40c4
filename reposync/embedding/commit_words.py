"""What the last commits of a repository say of its files: words of their subjects, as numbers.

Who looks for a place in their own repository often asks as its commits say it, and the files that similar commits
changed are likely answers (`docs/decisions/0015-ranking.md`). Neither words nor paths can be read from it: of both it
has hashes alone.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final

from reposync.embedding.sparse import query_vector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_COMMITS: Final = 200
"""More find commits a little better, and lines of code worse."""
MOST_FILES: Final = 5
"""A commit that changes more files says little of each."""

_LENGTHS: Final = struct.Struct("<BII")
_REVISION: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class CommitWords:
    """Parallel arrays: `terms` (ids of sparse terms) with the numbers of their commits, each pair once, and `files`
    (`file_number`) with theirs."""

    terms: NDArray[np.uint32]
    of_terms: NDArray[np.uint16]
    files: NDArray[np.uint64]
    of_files: NDArray[np.uint16]

    @classmethod
    def of(cls, commits: Iterable[tuple[str, Sequence[str]]]) -> CommitWords:
        """`commits`: the subject of each and the paths of the files that it changed, newest first. Kept are the first
        MOST_COMMITS that changed at most MOST_FILES."""
        import numpy as np

        terms: list[NDArray[np.uint32]] = []
        files: list[list[int]] = []
        for subject, paths in commits:
            if not 0 < len(paths) <= MOST_FILES:
                continue
            terms.append(query_vector(subject).indices)
            files.append([file_number(path) for path in paths])
            if len(terms) == MOST_COMMITS:
                break
        numbers = np.arange(len(terms), dtype=np.uint16)
        return cls(
            np.concatenate([np.zeros(0, np.uint32), *terms]),
            np.repeat(numbers, [len(each) for each in terms]),
            np.fromiter(chain.from_iterable(files), np.uint64),
            np.repeat(numbers, [len(each) for each in files]),
        )

    @classmethod
    def read(cls, stored: bytes) -> CommitWords | None:
        """None if a different release wrote it. The arrays are views of `stored`."""
        import numpy as np

        if len(stored) < _LENGTHS.size:
            return None
        revision, terms, files = _LENGTHS.unpack_from(stored)
        if revision != _REVISION or len(stored) != _LENGTHS.size + 6 * terms + 10 * files:
            return None
        at, arrays = _LENGTHS.size, []
        for kind, count in (("<u4", terms), ("<u2", terms), ("<u8", files), ("<u2", files)):
            arrays.append(np.frombuffer(stored, kind, count, at))
            at += arrays[-1].nbytes
        return cls(*arrays)

    def stored(self) -> bytes:
        """6 bytes for each word of a commit, 10 for each file of one: 13 kB for 200 commits."""
        parts = (self.terms, "<u4"), (self.of_terms, "<u2"), (self.files, "<u8"), (self.of_files, "<u2")
        head = _LENGTHS.pack(_REVISION, len(self.terms), len(self.files))
        return head + b"".join(array.astype(kind).tobytes() for array, kind in parts)

    @property
    def size_bytes(self) -> int:
        return self.terms.nbytes + self.of_terms.nbytes + self.files.nbytes + self.of_files.nbytes

    def likeness(self, wanted: NDArray[np.uint32]) -> Mapping[int, float]:
        """By file number, how much its commits are like a question of these term ids: for each commit the share of the
        question that its subject has, by inverse document frequency, squared, divided among its files; summed."""
        import numpy as np

        commits = int(self.of_files.max(initial=0)) + 1
        places = np.flatnonzero(np.isin(self.terms, wanted))
        if not len(places):
            return {}
        found, which, count = np.unique(self.terms[places], return_inverse=True, return_counts=True)
        weights = np.log1p((commits - count + 0.5) / (count + 0.5))
        # Words that no commit has count, too: they are the part of the question that none of them says.
        whole = weights.sum() + (len(wanted) - len(found)) * np.log1p((commits + 0.5) / 0.5)
        shares = np.bincount(self.of_terms[places], weights[which], commits) / whole
        of_each = shares**2 / np.maximum(np.bincount(self.of_files, minlength=commits), 1)
        files, which_file = np.unique(self.files, return_inverse=True)
        sums = np.bincount(which_file, of_each[self.of_files])
        like = np.flatnonzero(sums)
        return dict(zip(files[like].tolist(), sums[like].tolist(), strict=True))


@lru_cache(1 << 13)
def file_number(path: str) -> int:
    """64 bits of a hash: of a repository's paths, no two have the same one by chance."""
    return int.from_bytes(hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")

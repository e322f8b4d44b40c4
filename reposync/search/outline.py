"""The definitions of a file, from its chunks in the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reposync.errors import NotFoundError
from reposync.symbol import Symbol, merged, read_symbols
from reposync.vectors.port import StoredPoint


class FileNotIndexed(NotFoundError, code="FILE_NOT_INDEXED"):
    """The index has nothing of this file: it is skipped, or not in the commit."""


@dataclass(frozen=True, slots=True)
class Outline:
    """`commit`: of the run that stored the file. `symbols`: by line."""

    repository: str
    path: str
    commit: str
    language: str | None
    symbols: Sequence[Symbol]


def outline_of(points: Sequence[StoredPoint], repository: str, path: str) -> Outline:
    """From all points of the path. A run may be replacing them: those of the newest run count. Raises
    FileNotIndexed."""
    payloads = [each.payload.get("metadata") for each in points]
    found: list[dict[str, Any]] = [
        each for each in payloads if isinstance(each, dict) and isinstance(each.get("epoch"), int)
    ]
    if not found:
        raise FileNotIndexed(
            f"The index of {repository} has no file {path!r}.",
            remedy="Give the path from the root of the repository. A file that is skipped has no outline.",
        )
    newest = max(each["epoch"] for each in found)
    chunks = [each for each in found if each["epoch"] == newest]
    symbols = merged(symbol for chunk in chunks for symbol in read_symbols(chunk.get("symbols")))
    first = chunks[0]
    return Outline(repository, path, str(first.get("commit")), first.get("language"), symbols)

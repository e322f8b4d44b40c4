"""The results of the content stage: chunks of a file, or the reason why it is skipped."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reposync.symbol import Symbol as Symbol


class Skip(StrEnum):
    """Why a file is not indexed. The values are in the manifest and in `run_problems`: do not rename them."""

    SUBMODULE = "submodule"
    SYMLINK = "symlink"
    EXCLUDED = "excluded"
    NOT_INCLUDED = "not_included"
    LOCK_FILE = "lock_file"
    MINIFIED = "minified"
    VENDORED = "vendored"
    GENERATED = "generated"
    DATA = "data"
    BINARY = "binary"
    LFS_POINTER = "lfs_pointer"
    TOO_LARGE = "too_large"
    EMPTY = "empty"
    UNDECODABLE = "undecodable"
    SECRET = "secret"  # noqa: S105
    FAILED = "failed"


REMEDIES: Final[Mapping[str, str]] = {
    Skip.SUBMODULE: "register that repository",
    Skip.EXCLUDED: "change `exclude`",
    Skip.NOT_INCLUDED: "change `include`",
    Skip.LOCK_FILE: "`include` it by name",
    Skip.MINIFIED: "`include` it by name",
    Skip.VENDORED: "`include` the folder, or `-linguist-vendored`",
    Skip.GENERATED: "`include` it by name, or `-linguist-generated`",
    Skip.DATA: "`include` it by name or extension",
    Skip.TOO_LARGE: "raise `max_file_bytes`",
    Skip.SECRET: "`allow` it under `secrets`",
    Skip.FAILED: "every following run tries it again",
}
"""What to change so that such a file is indexed; the others never are."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A window of one file's text. Lines count from 1: the first and the last line that the text touches.
    `start_index`: how many characters of the file's text are before it; None for a stored chunk without it."""

    text: str
    start_line: int
    end_line: int
    start_index: int | None = 0


def content_hash(text: str) -> str:
    """32 hex digits of the text's SHA-256: equal texts are embedded once, in whatever files they are."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Document:
    """A file to index: its language (None: unknown) and its chunks, which cover all of its text."""

    language: str | None
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """Why a file is not indexed; `detail` is for users and quotes nothing of the file."""

    reason: Skip
    detail: str

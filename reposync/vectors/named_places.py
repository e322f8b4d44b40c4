"""Chunks at places that a text names, such as the frames of a traceback: `/usr/src/app/src/pool.py:12`.

A path is written as it was where the program ran: with folders before those of the repository, or without the first
ones of the repository. So what counts is how many of the last parts two paths have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_LIBRARIES: Final = (
    *("site-packages/", "dist-packages/", "node_modules/", "/lib/python", "/.cargo/registry/", "/rustc/", "<frozen "),
    *("/go/pkg/mod/", "/usr/lib/", "/usr/local/go/src/", "/usr/include/", "/gems/", "vendor/bundle/", "node:"),
)  # fmt: skip
_CERTAIN_PARTS: Final = 3
"""So many parts in common are no coincidence, also in the path of a library."""
_MOST_FILES: Final = 3
"""The number of files that one place may be in: repositories have files of one path."""


@dataclass(frozen=True, slots=True)
class NamedPlace:
    """`path`: as it is written, with slashes, without a scheme. `line`: None if no line is named."""

    path: str
    line: int | None

    def __str__(self) -> str:
        return self.path if self.line is None else f"{self.path}:{self.line}"

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def is_of_library(self) -> bool:
        """Whether the path is in a folder where package managers and compilers put the code of others."""
        return any(part in f"/{self.path}" for part in _LIBRARIES)

    def shared_parts(self, path: str) -> int:
        """How many parts at the ends of the two paths are the same; 0 if they are too few for one file."""
        mine, other = self.path.strip("/").split("/"), path.split("/")
        shared = 0
        while shared < min(len(mine), len(other)) and mine[-1 - shared] == other[-1 - shared]:
            shared += 1
        if shared in (len(mine), len(other)) and shared and not (self.is_of_library and shared == 1):
            return shared
        return shared if shared >= (_CERTAIN_PARTS if self.is_of_library else 2) else 0

    def files(self, paths: Sequence[str]) -> list[str]:
        """Those of the paths that it may be in: with the most parts in common."""
        shared = {path: self.shared_parts(path) for path in paths}
        most = max(shared.values(), default=0)
        return sorted(path for path in paths if most and shared[path] == most)[:_MOST_FILES]

    def is_in(self, path: str, start: int, end: int) -> bool:
        return self.shared_parts(path) > 0 and (self.line is None or start <= self.line <= end)

"""Tokens of paths, for a keyword index: Qdrant cannot match globs, but it can leave out most of the other paths.

A token is a gitignore pattern that matches the path. `src/a/setup.py` has the folders `/src/` and `/src/a/`, the names
`src`, `a` and `setup.py`, and the extension `*.py`; `a.tar.gz` has `*.gz` and `*.tar.gz`. Only a folder contains a
slash, so that it is never equal to a name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

# The tokens of a longer or deeper path would fill kilobytes in each of its points, so it has none. Within both limits
# there are at most 127 tokens, of 10,000 characters.
MAX_PATH_CHARS = 512
MAX_SEGMENTS = 32
# Conditions of one filter, of which a server in strict mode permits few (see `collection.LARGEST_FILTER`).
_MAX_GLOB_TOKENS = 4
# Of `x.spec.d.ts`: `*.ts` and `*.d.ts`.
_MAX_EXTENSION_PARTS = 2


def path_tokens(path: str) -> Sequence[str]:
    """Empty for a path beyond the limits: a filter by tokens must not exclude points without any."""
    segments = path.split("/")
    if len(path) > MAX_PATH_CHARS or len(segments) > MAX_SEGMENTS:
        return []
    folders = [f"/{'/'.join(segments[:depth])}/" for depth in range(1, len(segments))]
    extensions = [each for segment in segments for each in _extensions(segment)]
    return list(dict.fromkeys([*folders, *segments, *extensions]))


def glob_tokens(glob: str) -> Sequence[str]:
    """Tokens of every path that the gitignore pattern `glob` matches, except of paths that have no tokens. Empty if it
    has no such token, as `test_*`."""
    # Escaped characters and classes become wildcards. A slash may be a member of a class: everything from the first
    # bracket to the last is one wildcard.
    body = re.sub(r"\\(?:(/)|.)", lambda escaped: escaped[1] or "?", glob, flags=re.DOTALL)
    body = re.sub(r"\[.*\]", "?", body, flags=re.DOTALL).rstrip(" ").removeprefix("!")
    is_folder = body.endswith("/")
    body = body.removesuffix("/")
    segments = body.removeprefix("/").split("/")
    folders: list[str] = []
    if "/" in body:  # anchored
        # The last segment may be a file.
        folders = list(takewhile(_is_literal, segments if is_folder else segments[:-1]))
    tokens = [f"/{'/'.join(folders)}/"] if folders else []
    for segment in segments[len(folders) :]:
        tokens += [segment] if _is_literal(segment) else _extensions(re.split(r"[*?]", segment)[-1])[-1:]
    return list(dict.fromkeys(tokens))[:_MAX_GLOB_TOKENS]


def _is_literal(segment: str) -> bool:
    return bool(segment) and "*" not in segment and "?" not in segment


def _extensions(name: str) -> list[str]:
    """Patterns of the ends of a name, as `*.gz` and `*.tar.gz`, the shortest first."""
    parts = name.split(".")
    counts = range(1, min(len(parts), _MAX_EXTENSION_PARTS + 1))
    return ["*." + ".".join(parts[-count:]) for count in counts]

"""Which paths of a commit are indexed, decided before anything is fetched.

In this order: submodules and symlinks never; what the user excludes; where the user includes something, nothing else;
then `.gitattributes` and the defaults (binary, lock files, minified, generated, vendored), which yield to an `include`
pattern that names what they leave out: `vendor/ours/**` brings that folder back, `src/**` does not bring back
`src/node_modules`.

What a file's content says (generated, minified, data) yields likewise: `*.pb.go` or `maps/world.json` names such files,
and `*.csv` names all that end so, since data goes by no other name. `*.py` does not: most of these files are code.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from reposync.content.attributes import Attributes
from reposync.content.data import DATA_FORMATS, SMALLEST_DATA_CHARS
from reposync.content.defaults import Default, by_folder, by_name, named_by
from reposync.content.languages import language_of
from reposync.content.model import Skip, Skipped
from reposync.content.notebooks import is_notebook
from reposync.wildmatch import PathPatterns

CONTENT_REVISION: Final = 2
"""Raise it with every change of this package that changes which files are indexed or how: the next run then looks at
every file again."""

_PATTERNS_REVISION: Final = 2
"""Raise it if the same `include` and `exclude` match other paths than before: the next run then decides about every
path again, and reads what these decisions ask for."""

_SUBMODULE: Final = 0o160000

_IS_SUBMODULE: Final = Skipped(Skip.SUBMODULE, "a submodule: its files belong to another repository")
_IS_SYMLINK: Final = Skipped(Skip.SYMLINK, "a symbolic link, which is never followed")
_NOT_INCLUDED: Final = Skipped(Skip.NOT_INCLUDED, "matches none of the include patterns")
_MARKED_VENDORED: Final = Default(Skipped(Skip.VENDORED, ".gitattributes says linguist-vendored"), "marked vendored")
_MARKED_GENERATED: Final = Default(
    Skipped(Skip.GENERATED, ".gitattributes says linguist-generated"), "marked generated"
)
_GENERATED_KINDS: Final = frozenset({Skip.GENERATED, Skip.LOCK_FILE, Skip.MINIFIED})
_CONTENT_KEYS: Final = frozenset({"generated", "minified", "marked generated"})
_WILD: Final = re.compile(r"[*?\[\\]")


class PathRules:
    """The decision about every path of one commit. Patterns have gitignore semantics and match bytes, as git's do."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str], attributes: Attributes | None = None) -> None:
        self._include = tuple(include)
        self._exclude = tuple(exclude)
        self._attributes = attributes or Attributes()
        self._folders: dict[str, tuple[Default, ...]] = {}
        self._included = _patterns(self._include)
        self._excluded = _patterns(self._exclude)
        self._asking = [
            (_patterns((pattern,)), keys)
            for pattern in self._include
            if not pattern.startswith("!") and (keys := self._keys(pattern))
        ]

    def decide(self, path: bytes, mode: int) -> Skipped | None:
        """Why the file at `path` (a raw git path) is not indexed, None where it is. `mode` is git's."""
        if mode == _SUBMODULE:
            return _IS_SUBMODULE
        if stat.S_ISLNK(mode):
            return _IS_SYMLINK
        text = path.decode("latin-1")
        if self._exclude and (number := self._excluded.match(text)) is not None:
            return Skipped(Skip.EXCLUDED, f"matches the exclude pattern {self._exclude[number]!r}")
        if self._include and self._included.match(text) is None:
            return _NOT_INCLUDED
        defaults = self._defaults(path, text)
        if not defaults:
            return None
        asked = self._asked(text)
        return next((default.skipped for default in defaults if default.key not in asked), None)

    def keeps_generated(self, path: bytes) -> bool:
        """Whether the file is to be indexed even if its content says that it is generated, minified or data: the
        repository says so by `-linguist-generated`, or the user by an include pattern that names such files."""
        if self._attributes.generated(path) is False:
            return True
        text = path.decode("latin-1")
        named = _content_keys(text.rpartition("/")[2])
        return not self._asked(text).isdisjoint(_CONTENT_KEYS | named)

    @property
    def attributes(self) -> Attributes:
        return self._attributes

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that change whenever a decision, or what is made of a file's content, may change."""
        return self.fingerprint_of(CONTENT_REVISION)

    def fingerprint_of(self, revision: int) -> str:
        """As a program with that revision of this package's rules writes it."""
        sources = [[folder.decode("latin-1"), lines] for folder, lines in self._attributes.sources]
        parts = [revision, list(self._include), list(self._exclude), sources]
        if revision == CONTENT_REVISION and (self._include or self._exclude):
            parts.append(_PATTERNS_REVISION)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def _defaults(self, path: bytes, text: str) -> list[Default]:
        folder, _, name = text.rpartition("/")
        inside = self._folders.get(folder)
        if inside is None:
            inside = self._folders[folder] = by_folder(folder)
        named = by_name(name)
        found = [named, *inside] if named else list(inside)
        if self._attributes.empty:
            return found
        vendored, generated = self._attributes.vendored(path), self._attributes.generated(path)
        if vendored is False:
            found = [default for default in found if default.skipped.reason is not Skip.VENDORED]
        if generated is False:
            found = [default for default in found if default.skipped.reason not in _GENERATED_KINDS]
        if vendored:
            found.append(_MARKED_VENDORED)
        if generated:
            found.append(_MARKED_GENERATED)
        return found

    def _keys(self, pattern: str) -> frozenset[str]:
        """The defaults that an include pattern names: those that would leave out a file of the pattern's own name."""
        path = pattern.encode().strip(b"/")
        text = path.decode("latin-1")
        keys = {default.key for default in self._defaults(path, text)} | named_by(text)
        if not pattern.endswith("/"):
            keys |= _content_keys(text.rpartition("/")[2])
        return frozenset(keys)

    def _asked(self, text: str) -> frozenset[str]:
        """Keys of the include patterns that match the path and name something that is left out by default."""
        keys: frozenset[str] = frozenset()
        for patterns, named in self._asking:
            if patterns.match(text) is not None:
                keys |= named
        return keys


def _patterns(patterns: Sequence[str]) -> PathPatterns:
    return PathPatterns([pattern.encode().decode("latin-1") for pattern in patterns])


def read_differently(path: bytes, size_bytes: int) -> bool:
    """Whether revision 2 may make something else of the content of this file than revision 1 did."""
    return is_notebook(path) or size_bytes >= SMALLEST_DATA_CHARS  # no character takes less than a byte


def _content_keys(name: str) -> frozenset[str]:
    """Keys under which a file is asked for whatever its content is: its whole name, and an extension that does not
    stand for code. Of a pattern with wildcards only what is literal: `*.csv` has the extension, `data.*` neither."""
    stem, dot, extension = name.rpartition(".")
    if not stem or not dot or _WILD.search(extension):
        return frozenset()
    keys = set() if _WILD.search(stem) else {f"name {name}"}
    if language_of(f"x.{extension}".encode("latin-1")) in DATA_FORMATS:
        keys.add(f".{extension.lower()}")
    return frozenset(keys)

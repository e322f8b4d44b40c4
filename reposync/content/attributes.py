"""Reads `linguist-vendored` and `linguist-generated` from the `.gitattributes` files of a commit.

git's precedence: a deeper file overrides those above it, and a later line of a file overrides an earlier one. Patterns
are those of gitignore, but none is negative, and one of a folder does not apply to its files. Macros (`[attr]`) are not
expanded. Anybody who may push writes these files: over-long lines and too many patterns are ignored.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from reposync.wildmatch import PathPatterns, wildmatch_regex

_LONGEST_LINE: Final = 2048
"""git itself ignores longer lines (`ATTR_MAX_LINE_LENGTH`)."""

_LONGEST_PATH: Final = 4096
_MOST_LINES: Final = 3000
_BUDGET: Final = 3000
"""The budget of all files together: a line costs 1, and 5 more for each `*` or `**`. Within it a path takes 0.1 ms."""

_BLANKS: Final = " \t"
_NAMES: Final = ("linguist-vendored", "linguist-generated")
_ATTRIBUTE: Final = re.compile(r"([-!]?)(linguist-(?:vendored|generated))(?:=(.*))?", re.DOTALL)
_STARS: Final = re.compile(r"\*+")
_C_ESCAPE: Final = re.compile(r"\\([0-7]{3}|.)", re.DOTALL)
_C_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class _Line:
    pattern: str
    values: Mapping[str, bool | None]


_Matcher = tuple[PathPatterns, list[_Line]]
"""The lines of one file about one attribute, and their patterns."""


@dataclass(frozen=True)
class Attributes:
    """The linguist attributes of a commit. Use `parse`; without arguments no path has any."""

    sources: tuple[tuple[bytes, str], ...] = ()
    """(folder, relevant lines), the upper folders first: everything that decisions depend on."""

    _matchers: Mapping[bytes, Mapping[str, _Matcher]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def parse(cls, files: Mapping[bytes, bytes | str]) -> Attributes:
        """From the `.gitattributes` files by folder (b"": the root). Malformed lines are ignored, as git does."""
        sources: list[tuple[bytes, str]] = []
        matchers: dict[bytes, Mapping[str, _Matcher]] = {}
        left = _BUDGET
        for folder in sorted(files, key=lambda folder: (folder.count(b"/"), folder)):
            relevant = cls.relevant(files[folder])
            lines = []
            for line in _lines(relevant):
                left -= 1 + 5 * len(_STARS.findall(line.pattern))
                if left >= 0:
                    lines.append(line)
            if lines:
                sources.append((folder.strip(b"/"), relevant))
                by_name = {name: [line for line in lines if name in line.values] for name in _NAMES}
                matchers[folder.strip(b"/")] = {
                    name: (PathPatterns([line.pattern for line in mine], wildmatch_regex), mine)
                    for name, mine in by_name.items()
                }
        return cls(tuple(sources), matchers)

    @staticmethod
    def relevant(content: bytes | str) -> str:
        """The lines of a `.gitattributes` file that `parse` reads, each with `\\n`; none that is not UTF-8."""
        if isinstance(content, str):
            content = content.encode("utf-8", "surrogateescape")
        kept = []
        for raw in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
            line = raw.rstrip(b"\r")
            if b"linguist-" in line and len(line) <= _LONGEST_LINE and b"\0" not in line:
                with contextlib.suppress(UnicodeDecodeError):
                    text = line.decode()
                    if _parsed(text) is not None:
                        kept.append(text + "\n")
        return "".join(kept[-_MOST_LINES:])

    @property
    def empty(self) -> bool:
        return not self._matchers

    def vendored(self, path: bytes) -> bool | None:
        """Whether `path` is marked vendored (True), marked not to be (False), or neither."""
        return self._value(path, "linguist-vendored")

    def generated(self, path: bytes) -> bool | None:
        """Whether `path` is marked generated (True), marked not to be (False), or neither."""
        return self._value(path, "linguist-generated")

    def rule(self, path: bytes, name: str) -> tuple[bytes, str] | None:
        """The file and the pattern that decide about the attribute `name` of `path`; None if none does."""
        if (found := self._found(path, name)) is None:
            return None
        folder, line = found
        return (folder + b"/.gitattributes" if folder else b".gitattributes"), line.pattern

    def _value(self, path: bytes, name: str) -> bool | None:
        found = self._found(path, name)
        return None if found is None else found[1].values[name]

    def _found(self, path: bytes, name: str) -> tuple[bytes, _Line] | None:
        cut = len(path) if self._matchers and len(path) <= _LONGEST_PATH else -1
        while cut >= 0:
            cut = path.rfind(b"/", 0, cut)
            folder = path[:cut] if cut > 0 else b""
            if (matcher := self._matchers.get(folder, {}).get(name)) is not None:
                patterns, lines = matcher
                if (number := patterns.match(path[cut + 1 :].decode("latin-1"))) is not None:
                    # `!attr` resets what less specific lines set: the search ends here as well.
                    return folder, lines[number]
        return None


def _lines(text: str) -> Iterator[_Line]:
    # Decoded as Latin 1: git matches bytes, and a path need not be UTF-8.
    for line in text.encode().decode("latin-1").split("\n"):
        if parsed := _parsed(line):
            yield parsed


def _parsed(line: str) -> _Line | None:
    line = line.strip(_BLANKS)
    if not line or line[0] in "#!" or line.startswith("[attr]"):
        return None
    if line[0] == '"':
        closing = re.match(r'"((?:[^"\\]|\\.)*)"', line, re.DOTALL)
        if closing is None:
            return None
        pattern, rest = _C_ESCAPE.sub(_unescaped, closing[1]), line[closing.end() :]
    else:
        pattern, _, rest = re.sub(r"[ \t]+", " ", line).partition(" ")
    values: dict[str, bool | None] = {}
    for word in rest.split():
        if attribute := _ATTRIBUTE.fullmatch(word):
            sign, name, given = attribute.groups()
            # Linguist: set, or any value but false.
            values[name] = None if sign == "!" else sign != "-" and (given or "true").lower() != "false"
    if not values or not pattern or pattern.startswith("!"):
        return None
    return _Line(pattern, values)


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code, 8) & 0xFF) if len(code) == 3 else _C_ESCAPED.get(code, code)

"""Git's path patterns as regular expressions that never backtrack over an earlier `*` or `**`.

Patterns come from anyone who may push, search or register a repository. A backtracking translation of `*a*a*a*a*a*b`
takes seconds for one path, and `re` holds the interpreter's lock all that time: no heartbeat, no HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

_MOST_REGEX_CHARS: Final = 4_000
"""The limit for the patterns in one regular expression, which blocks other threads: 50 ms for the slowest and a path of
4 kB."""


class PathPatterns:
    """Lines of a gitignore file: the last one that matches a path, or a folder that the path is in, decides about it.

    Unlike git, which never looks into an excluded folder, a later `!` pattern also brings back a file of such a folder:
    `src/**`, `!src/old/**` would mean nothing otherwise. Git itself (2.39) takes `a**/b` for `a*/**/b`; here it is what
    gitignore(5) says, `a*/b`. A character of a pattern is one of the path: to match bytes as git does, decode both as
    Latin 1.
    """

    def __init__(self, lines: Sequence[str], regex_of: Callable[[str], str | None] | None = None) -> None:
        """As for git, a line that cannot be read matches nothing; `check_pattern` says which. `regex_of`:
        `wildmatch_regex`, if they are patterns of a gitattributes file."""
        self._lines = tuple(lines)
        regex_of = regex_of or _line_regex
        # The last lines first: (line of the first group, regular expression of one group a line).
        self._regexes: list[tuple[int, re.Pattern[str]]] = []
        last = len(self._lines) - 1
        groups: list[str] = []
        chars = 0
        for number in range(last, -1, -1):
            groups.append(f"({regex_of(self._lines[number]) or '(?!)'})")
            chars += len(self._lines[number])
            if chars >= _MOST_REGEX_CHARS or number == 0:
                self._regexes.append((last, re.compile("|".join(groups), re.DOTALL)))
                last, groups, chars = number - 1, [], 0

    def match(self, path: str) -> int | None:
        """The number of the line that decides for the file `path`; None if no line matches, or a negative one does."""
        for last, regex in self._regexes:
            if (found := regex.match(path)) is not None and found.lastindex is not None:
                number = last - found.lastindex + 1
                return None if self._lines[number].startswith("!") else number
        return None


def check_pattern(line: str) -> None:
    """Raises ValueError for a line of a gitignore file that matches no path by its form; it completes "matches nothing:
    "."""
    if not line.strip(" ") or line.startswith("#"):
        raise ValueError("it is empty or a comment; for a name that starts with # write \\#")
    if not line.removeprefix("!").strip("/ "):
        raise ValueError("it has no name in it")
    if _line_regex(line) is None:
        raise ValueError("a [ range in it is not closed, or it ends in a backslash")


def _line_regex(line: str) -> str | None:
    """The regular expression for one line of a gitignore file, without its `!`, to be matched from the start; None if
    it matches nothing."""
    text = line.rstrip(" ")
    if text != line and (len(text) - len(text.rstrip("\\"))) % 2:
        text += " "  # the first of the spaces is escaped
    body = text.removeprefix("!").removesuffix("/")
    if not body.strip("/") or text.startswith("#"):
        return None
    # A path is a file's, so only a part of it that a slash follows is a folder.
    return _path_regex(body, "/" if text.endswith("/") else r"(?:/|\Z)")


def wildmatch_regex(pattern: str) -> str | None:
    """Regular expression, to be matched from the start with DOTALL, for the files that a pattern of gitattributes
    matches; None if it matches none. It has no capturing group."""
    # A pattern with a final slash is a folder, and attributes belong to files.
    return None if pattern.endswith("/") else _path_regex(pattern, r"\Z")


def _path_regex(pattern: str, end: str) -> str | None:
    """The shortest match of what follows a `*` leaves the most to the rest, so that trying a longer one never helps:
    the same reasoning as in `fnmatch.translate`, here also for `**` over folders.

    `end`: what follows the last segment. None if the pattern matches nothing by its form (`[` without end, `\\` at the
    end).
    """
    segments = _segments(pattern)
    if segments is None:
        return None
    # Without a slash it matches in every folder; a slash in a bracket counts, as it does for git.
    if "/" not in pattern:
        segments.insert(0, None)
    elif pattern.startswith("/"):
        del segments[0]
    # Runs of segments between the `**`: the first is anchored at the start, the last at the end.
    runs: list[list[str]] = [[]]
    for segment in segments:
        if segment is None:
            runs.append([])
        else:
            runs[-1].append(segment)
    head, *others = runs
    if not others:
        return "/".join(head) + end
    *middle, tail = others
    if not head and not middle and len(tail) == 1 and end == r"\Z":
        return rf"(?>(?:.*/)?){tail[0]}\Z"  # by the file's name alone: nearly every pattern of gitattributes
    parts = ["".join(f"{regex}/" for regex in head)]
    parts += [r"(?>(?:[^/]*+/)*?" + "".join(f"{regex}/" for regex in run) + ")" for run in middle if run]
    # The tail is as many segments as it says, wherever; `**` alone at the end wants something in the folder.
    parts.append(r"(?:[^/]*+/)*?" + ("/".join(tail) or "[^/]++") + end)
    return "".join(parts)


def _segments(pattern: str) -> list[str | None] | None:
    """Regular expressions of the path's segments, None for `**`."""
    segments: list[str | None] = []
    at = 0
    while True:
        stars = len(pattern) - at - len(pattern[at:].lstrip("*"))
        following = pattern[at + stars :]
        if stars > 1 and (not following or following.startswith(("/", "\\/"))):
            # Before an escaped slash git wants at least one folder.
            escaped = following.startswith("\\")
            segments += [None, "[^/]++"] if escaped else [None]
            at += stars + escaped
        else:
            found = _segment_regex(pattern, at)
            if found is None:
                return None
            segments.append(found[0])
            at = found[1]
        if at == len(pattern):
            return segments
        at += 1


def _segment_regex(pattern: str, at: int) -> tuple[str, int] | None:
    """The segment that starts at `at`, and where it ends: at a slash or the pattern's end."""
    pieces: list[str] = [""]
    while at < len(pattern) and pattern[at] != "/":
        character = pattern[at]
        at += 1
        if character == "*":
            if pieces[-1] or len(pieces) == 1:
                pieces.append("")
        elif character == "?":
            pieces[-1] += "[^/]"
        elif character == "\\":
            if at == len(pattern):
                return None
            if pattern[at] == "/":
                break
            pieces[-1] += re.escape(pattern[at])
            at += 1
        elif character == "[":
            found = _class_regex(pattern, at)
            if found is None:
                return None
            pieces[-1] += found[0]
            at = found[1]
        else:
            pieces[-1] += re.escape(character)
    first, *rest = pieces
    if not rest:
        return first, at
    *middle, last = rest
    parts = [first, *(f"(?>[^/]*?{piece})" for piece in middle)]
    if not last:
        parts.append("[^/]*+")
    elif first or middle:
        # The last piece ends the segment: no other place of it can do.
        parts.append(f"(?>[^/]*?{last}(?=/|\\Z))")
    else:
        parts.append(f"[^/]*+(?<={last})")  # pieces have no variable length, and hold no slash
    return "".join(parts), at


# As git's own tables have them, which know ASCII alone.
_POSIX: Final = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": " \\t", "cntrl": "\\x00-\\x1f\\x7f", "digit": "0-9",
    "graph": "!-~", "lower": "a-z", "print": " -~", "punct": "!-/:-@\\[-`{-~", "space": " \\t\\n\\r", "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}  # fmt: skip


def _class_regex(glob: str, at: int) -> tuple[str, int] | None:
    """The bracket expression whose inside starts at `at`, and where it ends."""
    negated = glob[at : at + 1] in {"!", "^"}
    at += negated
    members: list[str] = []
    start = at
    while True:
        if at >= len(glob):
            return None
        if glob[at] == "]" and at > start:
            break
        if glob.startswith("[:", at) and (end := glob.find(":]", at)) > 0:
            posix = _POSIX.get(glob[at + 2 : end])
            if posix is None:
                return None
            members.append(posix)
            at = end + 2
            continue
        low, at = _class_member(glob, at)
        members.append(re.escape(low))
        if glob[at : at + 1] == "-" and glob[at + 1 : at + 2] not in {"]", ""}:
            high, at = _class_member(glob, at + 1)
            if low <= high:  # of `[z-a]` git matches the z
                members[-1] += f"-{re.escape(high)}"
    inside = "".join(members)
    return (f"[^/{inside}]" if negated else f"(?!/)[{inside}]"), at + 1


def _class_member(glob: str, at: int) -> tuple[str, int]:
    if glob[at] == "\\" and at + 1 < len(glob):
        at += 1
    return glob[at], at + 1

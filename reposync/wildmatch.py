"""Git's patterns of paths as regular expressions that never go back over an earlier `*` or `**`.

Patterns come from whoever may push or search. What other libraries make of `*a*a*a*a*b` takes minutes on one path.
"""

from __future__ import annotations

import re
from typing import Final


class Glob:
    """One line of a gitignore file, as a filter of paths: a folder stands for everything in it."""

    def __init__(self, pattern: str) -> None:
        """Raises ValueError for what matches no path at all by its form."""
        text = pattern if pattern.endswith("\\ ") else pattern.rstrip(" ")
        self._negative = text.startswith("!")
        body = text.removeprefix("!").removesuffix("/")
        if not body.strip("/") or text.startswith("#"):
            raise ValueError("it has no name in it")
        # Of what ends in a slash, only what is inside it: the path itself is a file's.
        self._itself = not text.endswith("/")
        # With a slash anywhere but at its end a pattern starts at the top.
        regex = wildmatch_regex(body)
        if regex is None:
            raise ValueError("a [ range in it is not closed, or it ends in a backslash")
        self._regex = re.compile(regex, re.DOTALL)

    def match_file(self, path: str) -> bool:
        if self._negative:
            return False
        end = len(path) if self._itself else path.rfind("/")
        while end > 0:
            if self._regex.match(path[:end]):
                return True
            end = path.rfind("/", 0, end)
        return False


def wildmatch_regex(pattern: str) -> str | None:
    """Regular expression, to be matched from the start with DOTALL, for the files that a pattern of gitattributes
    matches; None where it matches none. It has no capturing group.

    The shortest match of what follows a `*` leaves the most to the rest, so that trying a longer one never helps: the
    same reasoning as in `fnmatch.translate`, here also for `**` over folders.
    """
    if pattern.endswith("/"):
        return None  # a folder, and attributes are those of files
    segments = pattern.split("/")
    if len(segments) == 1:
        segments.insert(0, "**")
    elif not segments[0]:
        del segments[0]
    # Runs of segments between the `**`: the first is anchored at the start, the last at the end.
    runs: list[list[str]] = [[]]
    for segment in segments:
        if len(segment) > 1 and not segment.strip("*"):
            runs.append([])
            continue
        regex = _segment_regex(segment)
        if regex is None:
            return None
        runs[-1].append(regex)
    head, *others = runs
    if not others:
        return "/".join(head) + r"\Z"
    *middle, tail = others
    if not head and not middle and len(tail) == 1:
        return rf"(?>(?:.*/)?){tail[0]}\Z"  # by its name alone, wherever it is: nearly every pattern there is
    parts = ["".join(f"{regex}/" for regex in head)]
    parts += ["(?>(?:[^/]*/)*?" + "".join(f"{regex}/" for regex in run) + ")" for run in middle if run]
    # The tail is as many segments as it says, at the very end; `**` alone at the end wants something in the folder.
    parts.append(r"(?:[^/]*/)*?" + "/".join(tail) + r"\Z" if tail else r".")
    return "".join(parts)


def _segment_regex(glob: str) -> str | None:
    """Regular expression of one path segment; None where it can match nothing (`[` without end, `\\` at the end)."""
    pieces: list[str] = [""]
    at = 0
    while at < len(glob):
        character = glob[at]
        at += 1
        if character == "*":
            if pieces[-1] or len(pieces) == 1:
                pieces.append("")
        elif character == "?":
            pieces[-1] += "[^/]"
        elif character == "\\":
            if at == len(glob):
                return None
            pieces[-1] += re.escape(glob[at])
            at += 1
        elif character == "[":
            found = _class_regex(glob, at)
            if found is None:
                return None
            pieces[-1] += found[0]
            at = found[1]
        else:
            pieces[-1] += re.escape(character)
    first, *rest = pieces
    if not rest:
        return first
    *middle, last = rest
    # The last piece ends the segment: no other place of it can do.
    return first + "".join(f"(?>[^/]*?{piece})" for piece in middle) + f"(?>[^/]*?{last}(?=/|\\Z))"


_POSIX: Final = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": " \\t", "cntrl": "\\x00-\\x1f\\x7f", "digit": "0-9",
    "graph": "!-~", "lower": "a-z", "print": " -~", "punct": "!-/:-@\\[-`{-~", "space": "\\s", "upper": "A-Z",
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
        if glob[at : at + 1] == "-" and glob[at + 1 : at + 2] not in {"]", ""}:
            high, at = _class_member(glob, at + 1)
            if low and high and low <= high:
                members.append(f"{re.escape(low)}-{re.escape(high)}")
        elif low:
            members.append(re.escape(low))
    inside = "".join(members)
    if negated:
        return f"[^/{inside}]", at + 1
    return (f"(?!/)[{inside}]" if inside else "(?!)"), at + 1


def _class_member(glob: str, at: int) -> tuple[str, int]:
    if glob[at] == "\\" and at + 1 < len(glob):
        at += 1
    return glob[at], at + 1

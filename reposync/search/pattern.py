"""A pattern that is searched for in texts, line by line. RE2 never backtracks: its time is linear in the text, whatever
the pattern is. It releases the interpreter's lock while it searches."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import re2  # type: ignore[import-untyped]

from reposync.embedding.sparse import words
from reposync.errors import UsageError
from reposync.next_steps import UseFixed
from reposync.search.required_words import required_words

MAX_PATTERN_CHARS: Final = 1_000
LONGEST_LINE: Final = 400
"""Characters of a line that are shown."""
_CHARS_BEFORE: Final = 100
_LOOKED_AT: Final = 10_000
"""Bytes of a line whose matches are marked."""
_ELLIPSIS: Final = "…"

# RE2's own limit, of a compiled pattern with its states. If these fill it, each byte costs time for each instruction.
_MEMORY_BYTES: Final = 8 * 2**20
_STEPS_PER_CALL: Final = 100_000_000
"""Bytes times instructions; 0.8 s on a slow machine. A call of RE2 cannot be interrupted."""
_SYNTAX: Final = "https://github.com/google/re2/wiki/Syntax"
_NO_SUCH: Final = f"The syntax has no look-around and no backreferences: {_SYNTAX}."
_LINE_BREAK: Final = re.compile(r"\n|(?<!\\)(?:\\\\)*\\n|\(\?[imU]*s")


class TimeIsUp(Exception):
    """The deadline passed during a search."""


@dataclass(frozen=True, slots=True)
class LineMatch:
    """The first match in a line. `line` counts from 0, `column` from 1 in characters. `last_line`: where the match
    ends. `text`: of these lines, at most LONGEST_LINE characters, with `…` where it was cut."""

    line: int
    last_line: int
    column: int
    text: str


class Pattern:
    """Raises UsageError for a pattern that RE2 does not accept, with its reason and the place. `has_cut_lines`: a match
    may have been missed, in lines that take RE2 too long at once."""

    def __init__(self, pattern: str, *, fixed: bool = False, ignore_case: bool = False) -> None:
        if not pattern:
            raise UsageError("The pattern is empty.")
        if len(pattern) > MAX_PATTERN_CHARS:
            raise UsageError(f"The pattern has {len(pattern):,} characters; at most {MAX_PATTERN_CHARS:,} are allowed.")
        # Like ripgrep, which never matches a line break unless the pattern names one.
        spans_lines = "\n" in pattern if fixed else _LINE_BREAK.search(pattern) is not None
        options = re2.Options()
        options.max_mem = _MEMORY_BYTES
        options.log_errors = False
        options.literal = fixed
        options.case_sensitive = not ignore_case
        options.never_nl = not spans_lines
        options.never_capture = True
        self._compiled: Any = _compiled(pattern, options, fixed=fixed)
        self.required = required_words(pattern, fixed=fixed, ignore_case=ignore_case)
        self._spans_lines = spans_lines
        self._longest = max(4, _STEPS_PER_CALL // self._compiled.programsize)
        self.has_cut_lines = False

    @classmethod
    def of_name(cls, name: str) -> Pattern:
        """Matches a name as a whole."""
        return cls(rf"\b{name}\b") if name.isidentifier() else cls(name, fixed=True)

    def lines(self, text: str, most: int, deadline: float) -> Iterator[LineMatch]:
        """The first `most` lines with a match, in order. Raises TimeIsUp at `deadline` (`time.monotonic`)."""
        content = text.replace("\r\n", "\n").encode()
        line = counted = at = 0
        while most > 0 and at < max(1, len(content)):
            if time.monotonic() > deadline:
                raise TimeIsUp
            end = self._end(content, at)
            match = self._compiled.search(content, at, end)
            if match is None:
                at = max(end, at + 1)  # an empty text ends where it starts
                continue
            start, stop = match.span()
            if start == end < len(content) or (start == len(content) and content.endswith(b"\n")):
                at = end  # an empty match at the start of the next line, or after the last one
                continue
            if not self._is_at_borders(content, start, stop):
                at = start + 1
                while at < len(content) and content[at] & 0xC0 == 0x80:
                    at += 1
                continue
            first = content.rfind(b"\n", 0, start) + 1
            last = content.find(b"\n", max(start, stop - 1))
            last = len(content) if last < 0 else last
            line += content.count(b"\n", counted, first)
            counted = first
            further = content.count(b"\n", first, last)
            before = content[first:start].decode()
            shown = cut_around(before, content[start:last].decode())
            yield LineMatch(line, line + further, len(before) + 1, shown)
            most -= 1
            at = last + 1

    def spans(self, line: str, most: int = 20) -> list[tuple[int, int]]:
        """Where the pattern matches in a line: first character, and the one after the last."""
        content, found, at = line.encode(errors="replace")[:_LOOKED_AT], list[tuple[int, int]](), 0
        for _ in range(5 * most):  # a pattern may match nothing everywhere
            match = self._compiled.search(content, at) if len(found) < most else None
            if match is None:
                break
            start, stop = match.span()
            if stop > start and self._is_at_borders(content, start, stop):
                before = len(content[:start].decode(errors="ignore"))
                found.append((before, before + len(content[start:stop].decode(errors="ignore"))))
            at = stop if stop > start else start + 1
            if at > len(content):
                break
        return found

    def _end(self, content: bytes, at: int) -> int:
        """Where a call that starts at `at` ends: after a line, if the next one would take too long. A longer line is
        searched in parts."""
        if len(content) - at <= self._longest:
            return len(content)
        end = content.rfind(b"\n", at, at + self._longest) + 1
        self.has_cut_lines |= not end or self._spans_lines
        if not end:
            end = at + self._longest
            while content[end] & 0xC0 == 0x80:
                end -= 1
        return end

    def _is_at_borders(self, content: bytes, start: int, stop: int) -> bool:
        """RE2 knows words of ASCII: `\\bcaf\\b` matches in `café`. At the ends of a pattern this is made good."""
        if self.required.starts_at_border and start and content[start - 1] >= 0x80:
            before = content[max(0, start - 4) : start].decode(errors="ignore")
            if _is_part_of_word(before[-1:]):
                return False
        if self.required.ends_at_border and stop < len(content) and content[stop] >= 0x80:
            after = content[stop : stop + 4].decode(errors="ignore")
            return not _is_part_of_word(after[:1])
        return True


def _compiled(pattern: str, options: Any, *, fixed: bool) -> Any:
    try:
        # ^ and $ are the edges of lines.
        return re2.compile((pattern if fixed else f"(?m){pattern}").encode(), options)
    except UnicodeEncodeError:
        raise UsageError("The pattern is not a text: it holds a lone surrogate.") from None
    except re2.error as error:
        reason = (error.args[0] if isinstance(error.args[0], bytes) else str(error).encode()).decode(errors="replace")
        _, _, culprit = reason.rpartition(": ")
        culprit = culprit.removeprefix("(?m)")
        at = pattern.find(culprit) if culprit else -1
        place = f", at character {at + 1}" if at >= 0 else ""
        raise UsageError(
            f"The pattern is not valid: {reason.replace('(?m)', '', 1)}{place}.",
            remedy=_NO_SUCH,
            next_steps=[UseFixed()],
        ) from error
    finally:
        re2.purge()  # its cache would hold 128 patterns of other people, with 8 MB each


def _is_part_of_word(character: str) -> bool:
    """Whether the index takes a word and this character beside it for one word."""
    if unicodedata.category(character).startswith("M"):
        return True
    # CJK characters are words of their own.
    return any(len(words(f"a{each}")) != len(words(f"a {each}")) for each in unicodedata.normalize("NFKC", character))


def cut_around(before: str, after: str) -> str:
    """The text of lines before and after the start of a match, cut around it."""
    if len(before) + len(after) <= LONGEST_LINE:
        return before + after
    room = LONGEST_LINE - 2
    shown_before = before[-max(_CHARS_BEFORE, room - len(after)) :] if before else ""
    shown_after = after[: room - len(shown_before)]
    head = _ELLIPSIS if len(shown_before) < len(before) else ""
    tail = _ELLIPSIS if len(shown_after) < len(after) else ""
    return head + shown_before + shown_after + tail

"""What the index knows about a pattern: terms that every text with a match has.

The parser reads the common part of RE2's syntax and gives up on the rest: then nothing is certain, and nothing is left
out of a search.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from reposync.embedding.sparse import certain_terms

_MAX_DEPTH: Final = 20
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{(\d+)(?:,\d*)?\})\??")
_GROUP: Final = re.compile(r"\((?:\?(?::|P?<\w+>))?")
_FLAGS: Final = re.compile(r"\(\?([ims]+)\)")
_CLASS: Final = re.compile(r"\[(\^?)(\]?(?:\[:\w+:\]|\\.|[^\]\\])*)\]", re.DOTALL)
_ESCAPED_SEPARATORS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}


class _Mark(Enum):
    """What is not a literal character. `SEPARATORS`: one or more ASCII separators, `OPTIONAL_SEPARATORS`: any number.
    `EDGE`: of a line. `BORDER`: of a word, which ASCII alone decides for RE2."""

    SEPARATORS = 0
    OPTIONAL_SEPARATORS = 1
    EDGE = 2
    BORDER = 3
    UNKNOWN = 4


_Item = str | _Mark | tuple[Sequence["_Item"], ...]
"""A literal character, a mark, or alternatives."""


@dataclass(frozen=True, slots=True)
class RequiredWords:
    """`clauses`: of each set of terms, a text with a match has one at least. `literals`: the literal text, from which
    likely terms follow. `starts_at_border`, `ends_at_border`: the clauses hold only for matches that start or end at
    the border of a word of any script."""

    clauses: Sequence[frozenset[str]]
    literals: str
    starts_at_border: bool = False
    ends_at_border: bool = False


def required_words(pattern: str, *, fixed: bool, ignore_case: bool) -> RequiredWords:
    """`pattern`: one that RE2 accepts, or a fixed text. Linear."""
    items: Sequence[_Item]
    if fixed:
        items = list(pattern)
    else:
        flags = _FLAGS.match(pattern)
        ignore_case |= flags is not None and "i" in flags[1]
        try:
            items = _Parser(pattern, flags.end() if flags else 0).items()
        except (_NotUnderstood, IndexError):
            return RequiredWords((), "")
    starts, ends = bool(items) and items[0] is _Mark.BORDER, bool(items) and items[-1] is _Mark.BORDER
    clauses = _clauses(items, starts, ends, ignore_case=ignore_case)
    return RequiredWords(tuple(dict.fromkeys(clauses)), _literals(items), starts, ends)


def _literals(items: Sequence[_Item]) -> str:
    texts = (
        each
        if isinstance(each, str)
        else " ".join(["", *map(_literals, each), ""])
        if isinstance(each, tuple)
        else ""
        if each is _Mark.BORDER
        else " "
        for each in items
    )
    return "".join(texts)


def _clauses(items: Sequence[_Item], left: bool, right: bool, *, ignore_case: bool) -> list[frozenset[str]]:
    """`left`, `right`: whether a separator is before and after what the items match."""
    found: list[frozenset[str]] = []
    at = 0
    while at < len(items):
        item, end = items[at], at + 1
        if isinstance(item, str) and not _is_separator(item):
            while end < len(items) and isinstance(each := items[end], str) and not _is_separator(each):
                end += 1
            run = "".join(str(each) for each in items[at:end])
            bounded = _is_bounded(items, at - 1, -1, left) and _is_bounded(items, end, 1, right)
            found += certain_terms(run, bounded=bounded, ignore_case=ignore_case)
        elif isinstance(item, tuple):
            sides = _is_bounded(items, at - 1, -1, left), _is_bounded(items, end, 1, right)
            branches = [_clauses(each, *sides, ignore_case=ignore_case) for each in item]
            if all(branches):
                # One of each alternative, the one that is likely to be rarest.
                found.append(frozenset().union(*(max(each, key=_length) for each in branches)))
        at = end
    return found


def _length(terms: frozenset[str]) -> int:
    return min(map(len, terms))


def _is_bounded(items: Sequence[_Item], at: int, step: int, outside: bool) -> bool:
    """Whether what is matched next in this direction starts with a separator, or is the edge of a line."""
    while 0 <= at < len(items):
        item = items[at]
        if item in (_Mark.SEPARATORS, _Mark.EDGE) or (isinstance(item, str) and _is_separator(item)):
            return True
        if item not in (_Mark.OPTIONAL_SEPARATORS, _Mark.BORDER):
            return False
        at += step
    return outside


def _is_separator(character: str) -> bool:
    """In the index as well: an ASCII character that is in no word, and that normalisation leaves alone."""
    return character.isascii() and not character.isalnum() and character != "_"


class _NotUnderstood(Exception):
    pass


class _Parser:
    def __init__(self, pattern: str, at: int) -> None:
        self._pattern = pattern
        self._at = at

    def items(self) -> Sequence[_Item]:
        branches = self._branches(0)
        if self._at < len(self._pattern):
            raise _NotUnderstood
        return branches[0] if len(branches) == 1 else [branches]

    def _branches(self, depth: int) -> tuple[Sequence[_Item], ...]:
        if depth > _MAX_DEPTH:
            raise _NotUnderstood
        branches: list[list[_Item]] = [[]]
        while self._at < len(self._pattern) and self._pattern[self._at] != ")":
            if self._pattern[self._at] == "|":
                self._at += 1
                branches.append([])
            else:
                branches[-1] += self._repeated(self._atom(depth))
        return tuple(branches)

    def _repeated(self, atom: Sequence[_Item]) -> Sequence[_Item]:
        quantifier = _QUANTIFIER.match(self._pattern, self._at)
        if quantifier is None:
            return atom
        self._at = quantifier.end()
        are_separators = all(
            each in (_Mark.SEPARATORS, _Mark.OPTIONAL_SEPARATORS) or (isinstance(each, str) and _is_separator(each))
            for each in atom
        )
        if not atom or not are_separators:
            return [_Mark.UNKNOWN]
        occurs = quantifier[0][0] == "+" or (quantifier[1] is not None and int(quantifier[1]) > 0)
        is_there = occurs and any(each is not _Mark.OPTIONAL_SEPARATORS for each in atom)
        return [_Mark.SEPARATORS if is_there else _Mark.OPTIONAL_SEPARATORS]

    def _atom(self, depth: int) -> Sequence[_Item]:
        character = self._pattern[self._at]
        if character == "(":
            return self._group(depth)
        if character == "[":
            return [self._class()]
        self._at += 1
        if character == "\\":
            return [self._escaped()]
        if character in "*+?":
            raise _NotUnderstood
        return [{".": _Mark.UNKNOWN, "^": _Mark.EDGE, "$": _Mark.EDGE}.get(character, character)]

    def _group(self, depth: int) -> Sequence[_Item]:
        opening = _GROUP.match(self._pattern, self._at)
        if opening is None or self._pattern.startswith("?", opening.end()):
            raise _NotUnderstood
        self._at = opening.end()
        branches = self._branches(depth + 1)
        if self._pattern[self._at] != ")":
            raise _NotUnderstood
        self._at += 1
        return branches[0] if len(branches) == 1 else [branches]

    def _class(self) -> _Item:
        found = _CLASS.match(self._pattern, self._at)
        if found is None:
            raise _NotUnderstood
        self._at = found.end()
        members = re.sub(r"\\([^\w])", r"\1", found[2].replace("\\s", " "))
        # A minus may be a range, and what is still escaped may be letters.
        is_plain = not found[1] and members and not set("-\\[") & set(found[2].replace("\\s", ""))
        return _Mark.SEPARATORS if is_plain and all(map(_is_separator, members)) else _Mark.UNKNOWN

    def _escaped(self) -> _Item:
        character = self._pattern[self._at]
        self._at += 1
        if character in "bAzs":
            return {"b": _Mark.BORDER, "A": _Mark.EDGE, "z": _Mark.EDGE, "s": _Mark.SEPARATORS}[character]
        if character in "dDwWSB":
            return _Mark.UNKNOWN
        if _is_separator(character):
            return character
        if character not in _ESCAPED_SEPARATORS:
            raise _NotUnderstood
        return _ESCAPED_SEPARATORS[character]

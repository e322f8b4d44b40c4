"""Definitions in a file of code: functions, classes and the like, with their names and lines; and the calls in it.

Pure functions of the file's text and language: whoever has the text, from its source or joined from its chunks, gets
the same definitions. Languages with a tree-sitter grammar are parsed, others are searched by a regular expression. So
are the parts of a file that the parser cannot understand.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, TypeVar

from reposync.content.calls import CALL_CAPTURES, Call, call_of, in_chunks, searched_calls
from reposync.content.grammars import GRAMMAR_LANGUAGES, grammar_of, load
from reposync.content.model import Chunk
from reposync.content.searched_definitions import (
    MAX_NAME_CHARS,
    QUALIFIERS,
    SEARCHED_LANGUAGES,
    Definition,
    searched_definitions,
)
from reposync.symbol import Symbol

if TYPE_CHECKING:
    from tree_sitter import Node, Tree

KINDS: Final = (
    *("class", "constant", "enum", "function", "interface", "macro", "method", "module", "struct", "trait", "type"),
)
"""`constant`: a named value of a module or class, if the language or its capital letters say that it is constant;
`method`: a function of a class or of an object; `module`: also a namespace; `type`: any other type or its alias."""

MAX_SYMBOLS: Final = 100
"""The number of symbols of a chunk; a chunk of 7,000 characters has 3 on average."""
MAX_TEXT_CHARS: Final = 1_000_000
"""Definitions beyond are not found."""

# The budget of a file. A parser reports its progress after every 100 operations: 3 to 12 times for 1,000 bytes of real
# code, 24 at most (4,000 files in 15 languages).
_LEAST_STEPS: Final = 100
_STEPS_PER_KB: Final = 40
# A scanner that looks for an end that does not come reads the rest of the file for each token. Real code: 0.2 at most.
_LEAST_READS: Final = 200
_READS_PER_KB: Final = 2
# Of CPU time, for nonsense whose steps take long. 1 MB of real code takes 0.1 to 0.5 s: it always has its symbols.
_MOST_SECONDS: Final = 4.0
_BLOCK_BYTES: Final = 4096
# Of patterns in progress: real code has a few.
_MATCH_LIMIT: Final = 1_000

_Named = TypeVar("_Named", Definition, Call)

_HOLDERS: Final = frozenset({"class", "enum", "interface", "struct", "trait", "scope"})
_NESTS_METHODS: Final = frozenset({"csharp", "kotlin", "php", "scala", "swift", "zig"})
"""Languages in which an indented function of which the text does not show the surroundings is a method."""
# After the name of a Python method. In a query it would call back for the text of each first parameter.
_TAKES_SELF: Final = re.compile(rb"\s*(?:\[[^\]]{0,200}\])?\s*\(\s*(?:self|cls)\s*(?::[^=,)]{0,200})?[,)]")
_CLAUSES: Final = frozenset({"elixir", "haskell"})
"""Languages in which a function is written as several equations."""


class OverBudget(Exception):
    """Parsing the file takes more steps than any real code: it has no symbols."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a file defines and calls, both in the order of its text."""

    definitions: Sequence[Definition] = ()
    calls: Sequence[Call] = ()


def names_of(text: str, language: str | None) -> Names:
    """The names in the whole text of a file, which is parsed once. Raises OverBudget, and nothing else."""
    text = text[:MAX_TEXT_CHARS]
    grammar = grammar_of(language, text)
    if language is None or (grammar is None and language not in SEARCHED_LANGUAGES):
        return Names()
    if grammar is None:
        return Names(list(searched_definitions(text, language)), list(searched_calls(text)))
    return _parsed(text, grammar)


def definitions(text: str, language: str | None) -> Sequence[Definition]:
    """Those of `names_of`."""
    return names_of(text, language).definitions


def symbols_of_chunks(
    found: Sequence[Definition], chunks: Sequence[Chunk], lines: Sequence[int] | None = None
) -> list[tuple[Symbol, ...]]:
    """For each chunk, the definitions that begin in it, at most MAX_SYMBOLS; where chunks overlap, both have them. They
    may go on after the chunk. `lines[n]`: the line of the file of line n of the text, if it is not n + 1."""

    def line_of(line: int) -> int:
        return line + 1 if lines is None else lines[min(line, len(lines) - 1)]

    return [
        tuple(Symbol(each.name, each.kind, line_of(each.first), line_of(each.last)) for each in some[:MAX_SYMBOLS])
        for some in in_chunks(found, chunks)
    ]


def has_definitions(language: str | None) -> bool:
    """Whether a chunk in `language` may have any."""
    return language in SEARCHED_LANGUAGES or language in GRAMMAR_LANGUAGES


# By a parser ----------------------------------------------------------------------------------------------------------


def _parsed(text: str, grammar: str) -> Names:
    source = text.encode("utf-8", "replace")
    root = _parse(source, grammar).root_node
    found, calls = _found(root, source, grammar)
    if len(source) != len(text):
        found, calls = _in_characters(found, source), _in_characters(calls, source)
    if root.has_error:
        found = _with_searched(found, text, grammar, _misread_lines(root))
    return Names(_merged(found) if grammar in _CLAUSES else found, calls)


def _parse(source: bytes, grammar: str) -> Tree:
    """Raises OverBudget."""
    from tree_sitter import Parser

    steps = _LEAST_STEPS + _STEPS_PER_KB * len(source) // 1000
    reads = _LEAST_READS + _READS_PER_KB * len(source) // 1000
    thread, until, is_parsed = threading.get_ident(), time.thread_time() + _MOST_SECONDS, False

    def is_over_budget(offset: int, has_error: bool) -> bool:
        nonlocal steps
        steps -= 1
        return steps < 0 or reads < 0 or time.thread_time() > until

    def read(at: int, _: object) -> bytes | bytearray:
        nonlocal reads
        if is_parsed:  # a query reads a name: anything but `bytes` ends the process
            return source[at : at + _BLOCK_BYTES]
        reads -= 1
        rest = len(source) - at
        if rest <= 0 or reads < 0:
            return b""
        size = min(_BLOCK_BYTES, 1 << rest.bit_length() - 1)
        block = _block(size, thread)
        block[:] = source[at : at + size]
        return block

    try:
        tree = Parser(load(grammar)[0]).parse(read, progress_callback=is_over_budget)
    except ValueError:  # it was stopped
        raise OverBudget from None
    is_parsed = True  # and not `tree is not None`: the tree holds `read`, and would hold itself for ever
    return tree


@cache
def _block(size: int, thread: int) -> bytearray:
    """What a parser reads. tree-sitter 0.26.1 never releases what the callback returns (81 MB for 7 kB of Kotlin), and
    `parse(bytes)` cannot be stopped: so it is always one of these, of a power of two bytes, which are filled again."""
    return bytearray(size)


def _in_characters(found: list[_Named], source: bytes) -> list[_Named]:
    """With `start` in characters, not in bytes."""
    ends = accumulate(len(source[a:b].decode("utf-8", "replace")) for a, b in pairwise([0, *[d.start for d in found]]))
    return [replace(each, start=end) for each, end in zip(found, ends, strict=True)]


def _misread_lines(root: Node) -> Set[int]:
    """The lines of those of the outermost nodes that the parser did not understand."""
    lines: set[int] = set()
    for node in root.children if root.type != "ERROR" else [root]:
        if node.has_error:
            lines.update(range(node.start_point.row, node.end_point.row + 1))
    return lines


def _found(root: Node, source: bytes, grammar: str) -> tuple[list[Definition], list[Call]]:
    from tree_sitter import QueryCursor

    cursor = QueryCursor(load(grammar)[1], match_limit=_MATCH_LIMIT)
    nodes: dict[int, tuple[int, str, str, Node]] = {}
    calls: list[Call] = []
    for pattern, captures in cursor.matches(root):
        if not CALL_CAPTURES.isdisjoint(captures):
            if (call := call_of(captures, source)) is not None:
                calls.append(call)
            continue
        names = captures.pop("name", None)
        kind, (node, *_) = next(each for each in captures.items() if not each[0].startswith("_"))
        named = names[0] if names else node.child_by_field_name("name")
        if kind == "scope":
            nodes.setdefault(-node.start_byte - 1, (pattern, kind, "", node))
        elif named is not None and (name := _plain_name(source[named.start_byte : named.end_byte])):
            at = named.start_byte
            if grammar == "python" and kind == "function" and _TAKES_SELF.match(source, named.end_byte):
                kind = "method"
            if at not in nodes or pattern < nodes[at][0]:
                nodes[at] = pattern, kind, name, node
    ordered = sorted(nodes.values(), key=lambda each: (each[3].start_byte, -each[3].end_byte))
    found: list[Definition] = []
    around: list[tuple[int, str]] = []  # end and kind of the definitions that contain the next one
    for _, kind, name, node in ordered:
        while around and around[-1][0] <= node.start_byte:
            around.pop()
        is_cut_out = not around and grammar in _NESTS_METHODS and node.start_point.column > 0
        if kind == "function" and (is_cut_out or (around and around[-1][1] in _HOLDERS)):
            kind = "method"
        around.append((node.end_byte, kind))
        if kind == "scope":
            continue
        first, last = node.start_point.row, node.end_point.row
        if node.end_point.column == 0 and last > first:
            last -= 1  # it ends with a line break
        found.append(Definition(node.start_byte, first, last, name, kind))
    return found, sorted(calls, key=lambda each: each.start)


_TYPE_PARTS: Final = re.compile(r"[<\[]")


def _plain_name(name: bytes) -> str:
    """Without qualifiers, `Session::close` is `close`. Empty if it is none."""
    if len(name) > 4 * MAX_NAME_CHARS:
        return ""
    text = name.decode("utf-8", "replace").strip()
    plain = text if "operator" in text else _TYPE_PARTS.split(text.lstrip("*& "))[0]
    plain = QUALIFIERS.split(plain)[-1].strip()
    return plain if len(plain) <= MAX_NAME_CHARS else ""


def _with_searched(found: list[Definition], text: str, language: str, lines: Set[int]) -> list[Definition]:
    """With the definitions that the parser did not understand."""
    known = {(each.name, line) for each in found for line in range(each.first, min(each.last, each.first + 5) + 1)}
    more = [each for each in searched_definitions(text, language, lines) if (each.name, each.first) not in known]
    return sorted([*found, *more], key=lambda each: each.start) if more else found


def _merged(found: list[Definition]) -> list[Definition]:
    """One for the equations of a function that follow each other."""
    merged: list[Definition] = []
    for each in found:
        before = merged[-1] if merged else None
        if before is not None and (before.name, before.kind) == (each.name, each.kind):
            merged[-1] = replace(before, last=max(each.last, before.last))
        else:
            merged.append(each)
    return merged

"""Definitions in a file of code: functions, classes and the like, with their names and lines.

Pure functions of the file's text and language: whoever has the text, from its source or joined from its chunks, gets
the same definitions. Languages with a tree-sitter grammar are parsed, others are searched by a regular expression. So
are the parts of a file that the parser cannot understand.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

from reposync.content.grammars import GRAMMAR_LANGUAGES, grammar_of, load
from reposync.content.model import Chunk
from reposync.symbol import Symbol

if TYPE_CHECKING:
    from tree_sitter import Node, Tree

KINDS: Final = (
    *("class", "constant", "enum", "function", "interface", "macro", "method", "module", "struct", "trait", "type"),
)
"""`constant`: a named value of a module or class, if the language or its capital letters say that it is constant;
`method`: a function of a class or of an object; `module`: also a namespace; `type`: any other type or its alias."""

MAX_SYMBOLS: Final = 100
"""Of a chunk; a chunk of 7,000 characters has 3 on average."""
MAX_NAME_CHARS: Final = 128
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
class Definition:
    """`start`: how many characters of the text are before it. `first` and `last`: its lines in the text, from 0."""

    start: int
    first: int
    last: int
    name: str
    kind: str


def definitions(text: str, language: str | None) -> list[Definition]:
    """The definitions in the whole text of a file, in the order of their lines. Raises OverBudget, and nothing else."""
    text = text[:MAX_TEXT_CHARS]
    grammar = grammar_of(language, text)
    if language is None or (grammar is None and language not in _SEARCHED):
        return []
    return list(_searched(text, language)) if grammar is None else _parsed(text, grammar)


def symbols_of_chunks(
    found: Sequence[Definition], chunks: Sequence[Chunk], lines: Sequence[int] | None = None
) -> list[tuple[Symbol, ...]]:
    """Of each chunk, the definitions that begin in it, at most MAX_SYMBOLS; where chunks overlap, both have them. They
    may go on after the chunk. `lines[n]`: the line of the file of line n of the text, if it is not n + 1."""

    def line_of(line: int) -> int:
        return line + 1 if lines is None else lines[min(line, len(lines) - 1)]

    symbols: list[tuple[Symbol, ...]] = []
    first = 0
    for chunk in chunks:
        start = chunk.start_index or 0
        end = start + len(chunk.text)
        while first < len(found) and found[first].start < start:
            first += 1
        mine = []
        for each in found[first : first + MAX_SYMBOLS]:
            if each.start >= end:
                break
            mine.append(Symbol(each.name, each.kind, line_of(each.first), line_of(each.last)))
        symbols.append(tuple(mine))
    return symbols


def has_definitions(language: str | None) -> bool:
    """Whether a chunk in `language` may have any."""
    return language in _SEARCHED or language in GRAMMAR_LANGUAGES


# By a parser ----------------------------------------------------------------------------------------------------------


def _parsed(text: str, grammar: str) -> list[Definition]:
    source = text.encode("utf-8", "replace")
    root = _parse(source, grammar).root_node
    found = _definitions(root, source, grammar)
    if len(source) != len(text):
        found = _in_characters(found, source)
    if root.has_error:
        found = _with_searched(found, text, grammar, _misread_lines(root))
    return _merged(found) if grammar in _CLAUSES else found


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


def _in_characters(found: list[Definition], source: bytes) -> list[Definition]:
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


def _definitions(root: Node, source: bytes, grammar: str) -> list[Definition]:
    from tree_sitter import QueryCursor

    cursor = QueryCursor(load(grammar)[1], match_limit=_MATCH_LIMIT)
    nodes: dict[int, tuple[int, str, str, Node]] = {}
    for pattern, captures in cursor.matches(root):
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
    return found


_TYPE_PARTS: Final = re.compile(r"[<\[]")
_QUALIFIERS: Final = re.compile(r"::|[.:\\#]")


def _plain_name(name: bytes) -> str:
    """Without qualifiers, `Session::close` is `close`. Empty if it is none."""
    if len(name) > 4 * MAX_NAME_CHARS:
        return ""
    text = name.decode("utf-8", "replace").strip()
    plain = text if "operator" in text else _TYPE_PARTS.split(text.lstrip("*& "))[0]
    plain = _QUALIFIERS.split(plain)[-1].strip()
    return plain if len(plain) <= MAX_NAME_CHARS else ""


# By a regular expression ----------------------------------------------------------------------------------------------

_C_LIKE: Final = frozenset({
    "actionscript", "apex", "c", "cpp", "csharp", "cuda", "d", "dart", "glsl", "groovy", "java", "javascript",
    "objective-c", "tsx", "typescript", "vala", "vue", "svelte", "wgsl",
})  # fmt: skip
"""Languages in which a definition may have no word that says so: `int parse(char *text) {`."""
_SEARCHED: Final = frozenset({
    "actionscript", "ada", "apex", "awk", "clojure", "cobol", "coffeescript", "coldfusion", "crystal", "cuda", "cython",
    "d", "dart", "erlang", "fortran", "fsharp", "glsl", "graphql", "groovy", "haxe", "julia", "lisp", "move", "nim",
    "objective-c", "ocaml", "odin", "pascal", "perl", "pony", "powershell", "protobuf", "r", "racket", "raku", "scheme",
    "smithy", "solidity", "sql", "stan", "svelte", "tcl", "thrift", "v", "vala", "verilog", "visualbasic", "vue",
    "wgsl",
})  # fmt: skip
"""Languages without a grammar that have definitions."""
_KIND_OF: Final = {
    "actor": "class", "case class": "class", "class": "class", "contract": "class", "data class": "class",
    "extension": "class", "object": "class", "record": "class", "enum": "enum", "enum class": "enum",
    "interface": "interface", "protocol": "interface", "service": "interface", "defmacro": "macro",
    "defmacrop": "macro", "macro": "macro", "method": "method", "rpc": "method", "defmodule": "module",
    "defprotocol": "module", "library": "module", "mod": "module", "module": "module", "namespace": "module",
    "package": "module", "input": "struct", "message": "struct", "struct": "struct", "table": "struct",
    "union": "struct", "view": "struct", "mixin": "trait", "trait": "trait", "data": "type", "newtype": "type",
    "type": "type",
} | dict.fromkeys(
    ("def", "define", "defn", "defn-", "defp", "defun", "fn", "fun", "func", "function", "let rec", "operation", "proc",
     "procedure", "sub", "subroutine", "task", "trigger"),
    "function",
)  # fmt: skip
"""Word that begins a definition -> kind."""
_OWN_WORDS: Final = {
    "c": "struct union enum",
    "cpp": "class struct union enum",
    "csharp": "class record struct interface enum",
    "elixir": "def defp defmodule defprotocol defmacro defmacrop",
    "go": "func",
    "haskell": "data newtype type class",
    "java": "class record interface enum",
    "javascript": "class function",
    "kotlin": "class object fun interface",
    "lua": "function",
    "php": "class interface trait enum function",
    "python": "class def",
    "ruby": "class module def",
    "rust": "struct union enum trait fn mod",
    "scala": "class object trait enum def",
    "shell": "function",
    "swift": "class struct enum protocol func actor",
    "tsx": "class function interface enum type",
    "typescript": "class function interface enum type",
    "zig": "fn",
}
"""Those that a language with a grammar has."""
_MODIFIERS: Final = (
    "abstract", "async", "base", "const", "create", "declare", "default", "elemental", "export", "extern", "external",
    "final", "global", "inline", "internal", "local", "open", "or replace", "override", "partial", "private",
    "protected", "pub", "public", "pure", "recursive", "sealed", "static", "temporary", "unsafe", "virtual",
)  # fmt: skip
_WORDS: Final = "|".join(sorted(_KIND_OF, key=len, reverse=True))
_NAME: Final = r"(?P<name>[^\W\d][\w$!?'-]*+(?:(?:::|\.)[\w$]++)*+)"
# Every repetition is possessive: each line is read once.
_DEFINITION: Final = re.compile(
    rf"[ \t]*+(?P<list>\()?+@?+(?:(?:{'|'.join(_MODIFIERS)})[ \t]++)*+(?P<word>{_WORDS})[ \t]++[(`\"]?+{_NAME}[`\"]?+",
    re.IGNORECASE,
)
# What follows a name in code, and hardly in a sentence.
_AFTER_NAME: Final = re.compile(
    r"[ \t]*+(?:[(\[{<:=;,|)]|\r?$|(?:as|begin|extends|for|implements|is|on|returns|where|with)\b)", re.IGNORECASE
)
_VALUE: Final = re.compile(
    rf"[ \t]*+(?:(?:const|default|export|let|local|pub|static|var)[ \t]++)*+{_NAME}[ \t]*+"
    r"(?:(?:<-|[:=])[ \t]*+(?:async[ \t]++)?+function\b|=[ \t]*+(?:async[ \t]*+)?+(?:\([^()]*+\)|\w++)[ \t]*+=>"
    r"|=[ \t]*+(?:(?:extern|packed)[ \t]++)?+(?P<type>struct|enum|union)\b)"
)
_FUNCTION: Final = re.compile(
    rf"(?P<types>[ \t]*+(?:[\w:<>\[\],*&?.@]++[ \t*&]++)*+)[*&]*+{_NAME}[ \t]*+\((?P<rest>[^;'\"`]*+)$"
)
"""Types, a name, arguments. Without types: a constructor or a method, if a block follows."""
_IN_CALLS: Final = re.compile(r"=>|\bfunction\b")
_SIGNATURE: Final = re.compile(rf"{_NAME}[ \t]++::")
_STATEMENTS: Final = (
    "and assert await case catch class delete do else elseif elsif elif except for foreach function if in lock new not"
    " or print raise repeat require return sizeof struct super switch throw throws try typeof unless until using when"
    " while with yield"
)
_NO_NAMES: Final = frozenset(_STATEMENTS.split())
_LONGEST_LINE: Final = 500


def _searched(text: str, language: str, wanted: Set[int] | None = None) -> Iterator[Definition]:
    """Definitions that begin a line, or one of the `wanted` lines. They end where the indentation does."""
    lines = text.split("\n")
    words = _OWN_WORDS.get(language)
    allowed = frozenset(words.split()) if words is not None else _KIND_OF.keys()
    start = 0
    for first, line in enumerate(lines):
        is_read = len(line) <= _LONGEST_LINE and (wanted is None or first in wanted)
        if is_read and (found := _definition(line, language, allowed)) is not None:
            yield Definition(start, first, _last_line(lines, first), *found)
        start += len(line) + 1


def _definition(line: str, language: str, words: Set[str]) -> tuple[str, str] | None:
    """Name and kind."""
    match = _DEFINITION.match(line)
    if match and match["word"].lower() in words and (match["list"] or _AFTER_NAME.match(line, match.end())):
        kind = _KIND_OF[match["word"].lower()]
        if kind == "function" and line.startswith(("(self", "(cls"), match.end()):
            kind = "method"
    elif match := _VALUE.match(line):
        kind = _KIND_OF[match["type"] or "function"]
    elif language in _C_LIKE and (match := _FUNCTION.match(line)):
        kind = "function"
        is_block = match["rest"].rstrip().endswith("{") and not _IN_CALLS.search(match["rest"])
        types = match["types"].split()
        if (not is_block and (not types or line[0] in " \t")) or not _NO_NAMES.isdisjoint(types):
            return None
        if not types and match["name"].isupper():  # TEST(...) {
            return None
    elif language == "haskell" and (match := _SIGNATURE.match(line)):
        kind = "function"
    else:
        return None
    name = _QUALIFIERS.split(match["name"])[-1]
    return (name, kind) if name.lower() not in _NO_NAMES and len(name) <= MAX_NAME_CHARS else None


def _last_line(lines: list[str], first: int) -> int:
    """The last line that is indented more than line `first`, or the one after it that closes the block."""
    indent = _indent(lines[first])
    last = first
    for at in range(first + 1, min(len(lines), first + _LONGEST_SEARCHED)):
        line = lines[at]
        if not line or line.isspace():
            continue
        if _indent(line) <= indent:
            if not line.startswith((*_CLOSING, *_OPENING), indent):
                break
            if line.startswith(_CLOSING, indent):
                return at
        last = at
    return last


_CLOSING: Final = ("}", ")", "]", "end", "END", "End")
_OPENING: Final = ("{", "begin", "BEGIN", "is", "as", "AS")
_LONGEST_SEARCHED: Final = 1_000


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _with_searched(found: list[Definition], text: str, language: str, lines: Set[int]) -> list[Definition]:
    """With the definitions that the parser did not understand."""
    known = {(each.name, line) for each in found for line in range(each.first, min(each.last, each.first + 5) + 1)}
    more = [each for each in _searched(text, language, lines) if (each.name, each.first) not in known]
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

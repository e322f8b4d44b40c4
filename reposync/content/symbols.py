"""Definitions in a chunk of code: functions, classes and the like, with their names and lines.

Pure functions of the chunk's text and language: chunks that are copied from another version of the index, whose files
are not read, get the same symbols. Languages with a tree-sitter grammar are parsed, others are searched by a regular
expression. A chunk that is cut out of a file is not a program: what the parser cannot understand is searched, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import TYPE_CHECKING, Final

from reposync.content.grammars import GRAMMAR_LANGUAGES, grammar_of, load
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
MAX_TEXT_CHARS: Final = 64_000
"""Definitions beyond are not found: chunks may be configured as large as a file."""

# Parsers take quadratic time for nonsense: the worst that was found (Kotlin, comments that do not end) is 1 s a piece.
_PIECE_CHARS: Final = 8_000
# A parser reports its progress after every 100 operations: 3 to 8 times for 1,000 bytes of real code, 19 at most. A
# bound by time would give the same text different symbols on a busy machine.
_LEAST_STEPS: Final = 50
_STEPS_PER_KB: Final = 20
# Of patterns in progress: real code has a few.
_MATCH_LIMIT: Final = 1_000

_HOLDERS: Final = frozenset({"class", "enum", "interface", "struct", "trait", "scope"})
_NESTS_METHODS: Final = frozenset({"csharp", "kotlin", "php", "scala", "swift", "zig"})
"""Languages in which an indented function of which the chunk does not show the surroundings is a method."""
_CLAUSES: Final = frozenset({"elixir", "haskell"})
"""Languages in which a function is written as several equations."""


def symbols_of(text: str, language: str | None, first_line: int) -> tuple[Symbol, ...]:
    """The definitions in `text`, in the order of their lines, at most MAX_SYMBOLS. `first_line`: the line of the file
    in which it starts. A definition that goes on after the text ends with it. Never raises."""
    text = text[:MAX_TEXT_CHARS]
    grammar = grammar_of(language, text)
    if language is None or (grammar is None and language not in _SEARCHED):
        return ()
    symbols: list[Symbol] = []
    for piece in _pieces(text):
        found = list(_searched(piece, language)) if grammar is None else _parsed(piece, grammar)
        symbols += [Symbol(name, kind, first_line + start, first_line + end) for start, end, name, kind in found]
        first_line += piece.count("\n")
    return tuple(symbols[:MAX_SYMBOLS])


def has_definitions(language: str | None) -> bool:
    """Whether a chunk in `language` may have any."""
    return language in _SEARCHED or language in GRAMMAR_LANGUAGES


def _pieces(text: str) -> Iterator[str]:
    """Cut between lines, if they are not too long."""
    at = 0
    while at < len(text):
        end = at + _PIECE_CHARS
        if end < len(text):
            end = text.rfind("\n", at, end) + 1 or end
        yield text[at:end]
        at = end


_Found = tuple[int, int, str, str]
"""First and last line, from 0; name; kind."""


# By a parser ----------------------------------------------------------------------------------------------------------


def _parsed(text: str, grammar: str) -> list[_Found]:
    source = text.encode("utf-8", "replace")
    tree = _parse(source, grammar)
    if tree is None:
        return list(_searched(text, grammar))
    root = tree.root_node
    found = _definitions(root, grammar)
    if root.has_error:
        found = _with_searched(found, text, grammar)
    return _merged(found) if grammar in _CLAUSES else found


def _parse(source: bytes, grammar: str) -> Tree | None:
    """None if it takes too many steps."""
    from tree_sitter import Parser

    left = _LEAST_STEPS + _STEPS_PER_KB * len(source) // 1000

    def is_too_long(offset: int, has_error: bool) -> bool:
        nonlocal left
        left -= 1
        return left < 0

    try:
        return Parser(load(grammar)[0]).parse(lambda at, _: source[at:], progress_callback=is_too_long)
    except ValueError:  # it was stopped
        return None


def _definitions(root: Node, grammar: str) -> list[_Found]:
    from tree_sitter import QueryCursor

    cursor = QueryCursor(load(grammar)[1], match_limit=_MATCH_LIMIT)
    nodes: dict[int, tuple[int, str, str, Node]] = {}
    for pattern, captures in cursor.matches(root):
        names = captures.pop("name", None)
        kind, (node, *_) = next(each for each in captures.items() if not each[0].startswith("_"))
        named = names[0] if names else node.child_by_field_name("name")
        if kind == "scope":
            nodes.setdefault(-node.start_byte - 1, (pattern, kind, "", node))
        elif named is not None and (name := _plain_name(named.text)):
            at = named.start_byte
            if at not in nodes or pattern < nodes[at][0]:
                nodes[at] = pattern, kind, name, node
    ordered = sorted(nodes.values(), key=lambda each: (each[3].start_byte, -each[3].end_byte))
    found: list[_Found] = []
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
        found.append((first, last, name, kind))
    return found


_TYPE_PARTS: Final = re.compile(r"[<\[]")
_QUALIFIERS: Final = re.compile(r"::|[.:\\#]")


def _plain_name(name: bytes | None) -> str:
    """Without qualifiers, `Session::close` is `close`. Empty if it is none."""
    if not name or len(name) > 4 * MAX_NAME_CHARS:
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


def _searched(text: str, language: str) -> Iterator[_Found]:
    """Definitions that begin a line. They end where the indentation does."""
    lines = text.split("\n")
    words = _OWN_WORDS.get(language)
    allowed = frozenset(words.split()) if words is not None else _KIND_OF.keys()
    for first, line in enumerate(lines):
        if len(line) <= _LONGEST_LINE and (found := _definition(line, language, allowed)) is not None:
            yield first, _last_line(lines, first), *found


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


def _with_searched(found: list[_Found], text: str, language: str) -> list[_Found]:
    """With the definitions that the parser did not understand."""
    known = {(name, line) for first, last, name, _ in found for line in range(first, min(last, first + 5) + 1)}
    more = [each for each in _searched(text, language) if (each[2], each[0]) not in known]
    return sorted([*found, *more], key=lambda each: each[0]) if more else found


def _merged(found: list[_Found]) -> list[_Found]:
    """One for the equations of a function that follow each other."""
    merged: list[_Found] = []
    for first, last, name, kind in found:
        if merged and merged[-1][2:] == (name, kind):
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]), name, kind)
        else:
            merged.append((first, last, name, kind))
    return merged

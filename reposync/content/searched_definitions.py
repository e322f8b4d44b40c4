"""Definitions found by regular expressions, line by line: in languages without a grammar, and in the parts of a file
that the parser cannot understand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Final

MAX_NAME_CHARS: Final = 128
QUALIFIERS: Final = re.compile(r"::|[.:\\#]")


@dataclass(frozen=True, slots=True)
class Definition:
    """`start`: how many characters of the text are before it. `first` and `last`: its lines in the text, from 0."""

    start: int
    first: int
    last: int
    name: str
    kind: str


_C_LIKE: Final = frozenset({
    "actionscript", "apex", "c", "cpp", "csharp", "cuda", "d", "dart", "glsl", "groovy", "java", "javascript",
    "objective-c", "tsx", "typescript", "vala", "vue", "svelte", "wgsl",
})  # fmt: skip
"""Languages in which a definition may have no word that says so: `int parse(char *text) {`."""
SEARCHED_LANGUAGES: Final = frozenset({
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
"""The kinds of definitions that a language with a grammar has."""
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
NO_NAMES: Final = frozenset(_STATEMENTS.split())
"""Words of statements, which a parenthesis may follow."""
_LONGEST_LINE: Final = 500


def searched_definitions(text: str, language: str, wanted: Set[int] | None = None) -> Iterator[Definition]:
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
        if (not is_block and (not types or line[0] in " \t")) or not NO_NAMES.isdisjoint(types):
            return None
        if not types and match["name"].isupper():  # TEST(...) {
            return None
    elif language == "haskell" and (match := _SIGNATURE.match(line)):
        kind = "function"
    else:
        return None
    name = QUALIFIERS.split(match["name"])[-1]
    return (name, kind) if name.lower() not in NO_NAMES and len(name) <= MAX_NAME_CHARS else None


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

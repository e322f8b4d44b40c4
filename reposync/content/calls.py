"""Names that are called in a file of code: of functions, of methods without what they are called on, and of types that
are constructed. Decorators are calls; so is an element of JSX whose name begins with a capital.

One table says which nodes of each grammar are calls. Languages without a grammar are searched by a regular expression,
which also takes the definition of a name for a call: a search looks at the lines.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from reposync.content.model import Chunk
from reposync.content.searched_definitions import MAX_NAME_CHARS, NO_NAMES, QUALIFIERS

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_CALLS: Final = 300
"""The number of names of a chunk; a chunk of 7,000 characters has 30 on average."""
_LONGEST_NODE: Final = 4 * MAX_NAME_CHARS

_JAVASCRIPT: Final = """
(call_expression function: [(identifier) @call (member_expression property: (_) @call)])
(new_expression constructor: [(identifier) @call (member_expression property: (_) @call)])
(decorator [(identifier) @call (member_expression property: (_) @call)])
"""
_JSX: Final = """
(jsx_self_closing_element name: [(identifier) @element (member_expression property: (_) @element)])
(jsx_opening_element name: [(identifier) @element (member_expression property: (_) @element)])
"""
_C: Final = "(call_expression function: [(identifier) @call (field_expression field: (_) @call)])\n"
CALL_PATTERNS: Final = {
    "c": _C,
    "cpp": _C
    + """
(call_expression function: [(qualified_identifier) (template_function)] @call)
(new_expression type: (_) @call)
""",
    "csharp": """
(invocation_expression function: [(identifier) @call (generic_name) @call
  (member_access_expression name: (_) @call)
  (conditional_access_expression (member_binding_expression name: (_) @call))])
(object_creation_expression type: (_) @call)
""",
    "elixir": "(call target: [(identifier) @call (dot right: (identifier) @call)])\n",
    "go": """
(call_expression function: [(identifier) @call (selector_expression field: (_) @call)])
(call_expression function: (index_expression operand: [(identifier) @call (selector_expression field: (_) @call)]))
(type_conversion_expression type: (generic_type type: (_) @call))
(composite_literal type: [(type_identifier) (qualified_type) (generic_type)] @call)
""",
    "haskell": """
(apply function: [(variable) @call (constructor) @call (qualified id: (_) @call)])
(infix_id [(variable) @call (qualified id: (_) @call)])
""",
    "java": """
(method_invocation name: (_) @call)
(object_creation_expression type: (_) @call)
""",
    "javascript": _JAVASCRIPT + _JSX,
    "kotlin": "(call_expression . [(identifier) @call (navigation_expression (_) (identifier) @call .)])\n",
    "lua": """
(function_call name: [(identifier) @call (dot_index_expression field: (_) @call)
  (method_index_expression method: (_) @call)])
""",
    "php": """
(function_call_expression function: [(name) (qualified_name)] @call)
(member_call_expression name: (name) @call)
(nullsafe_member_call_expression name: (name) @call)
(scoped_call_expression name: (name) @call)
(object_creation_expression . [(name) (qualified_name)] @call)
""",
    "python": """
(call function: [(identifier) @call (attribute attribute: (_) @call)])
(decorator [(identifier) @call (attribute attribute: (_) @call)])
""",
    "ruby": """
(call method: [(identifier) (constant)] @call)
(call receiver: [(constant) @call (scope_resolution name: (_) @call)] method: (identifier) @_new (#eq? @_new "new"))
""",
    "rust": """
(call_expression function: [(identifier) @call (field_expression field: (_) @call) (scoped_identifier name: (_) @call)
  (generic_function function: [(identifier) @call (field_expression field: (_) @call)
    (scoped_identifier name: (_) @call)])])
(macro_invocation macro: [(identifier) @call (scoped_identifier name: (_) @call)])
(token_tree (identifier) @token . (token_tree))
""",
    "scala": """
(call_expression function: [(identifier) @call (field_expression field: (_) @call)
  (generic_function function: [(identifier) @call (field_expression field: (_) @call)])])
(instance_expression . (_) @call)
""",
    "shell": "(command name: (command_name (word) @call))\n",
    "swift": """
(call_expression . [(simple_identifier) @call (navigation_expression (navigation_suffix (simple_identifier) @call))])
(constructor_expression (user_type (type_identifier) @call))
""",
    "tsx": _JAVASCRIPT + _JSX,
    "typescript": _JAVASCRIPT,
    "zig": "(call_expression function: [(identifier) @call (field_expression member: (_) @call)])\n",
}
"""By grammar: queries that capture the name of what is called as `@call`, of an element as `@element`, and as `@token`
what is called if a parenthesis follows: the arguments of a macro are not parsed."""

CALL_CAPTURES: Final = frozenset({"call", "element", "token"})
_TYPE_PARTS: Final = re.compile(r"[<\[({]")
_SEARCHED: Final = re.compile(r"(?<![\w$])([^\W\d][\w$]*+)(?=[ \t]?\()")


@dataclass(slots=True)  # not frozen: 100,000 of 22 MB of Python are made in a third of the time
class Call:
    """`start`: how many characters of the text are before the name."""

    start: int
    name: str


class _Starts(Protocol):
    @property
    def start(self) -> int: ...


Placed = TypeVar("Placed", bound=_Starts)


def call_of(captures: Mapping[str, list[Node]], source: bytes) -> Call | None:
    """The call that a match of the patterns is, if it is one. `start` counts bytes."""
    nodes = captures.get("call")
    kind = "call" if nodes else "element" if "element" in captures else "token"
    node = (nodes or captures[kind])[0]
    start, end = node.start_byte, node.end_byte
    name = source[start:end].decode("utf-8", "replace") if end - start <= _LONGEST_NODE else ""
    if not name.isidentifier():
        name = _plain(name)
    return Call(start, name) if name and (nodes or _is_call(kind, name, source[end : end + 1])) else None


def _is_call(kind: str, name: str, following: bytes) -> bool:
    return name[0].isupper() if kind == "element" else kind == "token" and following == b"("


def _plain(name: str) -> str:
    """Without qualifiers and what a generic type is for. Empty if it is none."""
    plain = QUALIFIERS.split(_TYPE_PARTS.split(name, maxsplit=1)[0])[-1].strip()
    return plain if len(plain) <= MAX_NAME_CHARS else ""


def searched_calls(text: str) -> Iterator[Call]:
    """What looks like a call in a text of any language with parentheses."""
    for match in _SEARCHED.finditer(text):
        if match[1].lower() not in NO_NAMES and len(match[1]) <= MAX_NAME_CHARS:
            yield Call(match.start(), match[1])


def calls_of_chunks(calls: Sequence[Call], chunks: Sequence[Chunk]) -> list[tuple[str, ...]]:
    """For each chunk, the distinct names that are called in it, at most MAX_CALLS."""
    return [tuple(dict.fromkeys(each.name for each in some))[:MAX_CALLS] for some in in_chunks(calls, chunks)]


def in_chunks(placed: Sequence[Placed], chunks: Sequence[Chunk]) -> Iterator[Sequence[Placed]]:
    """For each chunk, those that begin in it; where chunks overlap, both have them. `placed`: by `start`."""
    starts = [each.start for each in placed]
    for chunk in chunks:
        start = chunk.start_index or 0
        yield placed[bisect_left(starts, start) : bisect_left(starts, start + len(chunk.text))]

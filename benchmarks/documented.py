"""Documented functions of Go, Java and TypeScript: the code without its comments, and what the comments said.

A doc comment stands right above its function: `//` lines in Go, `/** */` in the others. The name of the function, with
which a comment in Go begins, is no part of the sentence: a question does not know it. Tags, HTML and links are taken
out of the text. Tests and declarations without code are left out.
"""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

SUFFIXES = {"go": ".go", "java": ".java", "typescript": ".ts"}
_GRAMMARS = {"go": "language", "java": "language", "typescript": "language_typescript"}
_FUNCTIONS = {
    "function_declaration", "generator_function_declaration", "method_declaration", "method_definition",
    "constructor_declaration", "arrow_function", "function_expression",
}  # fmt: skip
_AROUND = {"export_statement", "lexical_declaration", "variable_declarator", "public_field_definition", "pair"}
"""Nodes that begin with a function: the comment is above the outermost."""
_COMMENTS = {"comment", "line_comment", "block_comment"}
_TEST_FOLDERS = {"test", "tests", "testing", "testdata", "__tests__", "vendor", "node_modules", "dist", "examples"}
_TEST_FILE = re.compile(r".*(?:_test\.go|[.-](?:test|spec|bench)\.ts|\.d\.ts|Tests?\.java)")
_MARKUP = re.compile(
    r"\{@link(?:plain)?\s+[^{}\s]+\s+\|?\s*(?P<label>[^{}]+)\}|\{@\w+\s+(?P<text>[^{}]*)\}|</?\w[^<>]*>|`"
    r"|\[(?P<name>\w[\w.]*)\]"
)
_FEWEST_LINES = 3
_WORDS = range(6, 41)


@dataclass(frozen=True)
class Module:
    """`code` without doc comments; `documented`: the first sentence about a function, and the line of `code`, from 1,
    that defines it."""

    path: str
    language: str
    code: str
    documented: list[tuple[str, int]]


def modules(folder: Path, language: str) -> Iterator[Module]:
    """Files of `language` in `folder`, in an order that is mixed and always the same."""
    suffix = SUFFIXES[language]
    paths = [path.relative_to(folder) for path in sorted(folder.rglob(f"*{suffix}")) if not path.is_symlink()]
    paths = [path for path in paths if not _TEST_FOLDERS & set(path.parts) and not _TEST_FILE.fullmatch(path.name)]
    random.Random(11).shuffle(paths)
    for path in paths:
        try:
            code, documented = without_comments((folder / path).read_text("utf-8"), language)
        except (OSError, UnicodeDecodeError):
            continue
        yield Module(path.as_posix(), language, code, documented)


def without_comments(source: str, language: str) -> tuple[str, list[tuple[str, int]]]:
    """The code, and each documented function's first sentence with the line that defines it in that code."""
    raw = source.encode()
    nodes = list(_walk(_parser(language).parse(raw).root_node))
    comments = [node for node in nodes if node.type in _COMMENTS]
    lines = raw.split(b"\n")
    dropped: set[int] = set()
    for comment in reversed(comments):  # from the end, so that columns before it stay
        (first, start), (last, end) = comment.start_point, comment.end_point
        rest = lines[first][:start], lines[last][end:]
        if last > first:
            dropped.update(range(first + 1, last + 1))
        lines[first] = b"".join(rest).rstrip()
        if not lines[first].strip():
            dropped.add(first)
    kept = [number for number in range(len(lines)) if number not in dropped]
    new_number = {old: new for new, old in enumerate(kept, start=1)}
    documented = [
        (sentence, new_number[line])
        for node in nodes
        if node.type in _FUNCTIONS and (line := _defining_row(node)) in new_number
        if (sentence := _sentence(node, language)) is not None
    ]
    return b"\n".join(lines[number] for number in kept).decode(), documented


@cache
def _parser(language: str) -> Parser:
    # Installed for development; the benchmark of Python needs none.
    from tree_sitter import Language, Parser

    grammar = importlib.import_module(f"tree_sitter_{language}")
    return Parser(Language(getattr(grammar, _GRAMMARS[language])()))


def _walk(root: Node) -> Iterator[Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(node.children)


def _outermost(function: Node) -> Node:
    node = function
    while node.parent is not None and node.parent.type in _AROUND:
        node = node.parent
    return node


def _defining_row(function: Node) -> int:
    """Of its name: annotations and decorators may stand above."""
    outer = _outermost(function)
    name = function.child_by_field_name("name") or outer
    return name.start_point[0]


def _sentence(function: Node, language: str) -> str | None:
    """None if it is not documented, too short, or the sentence is."""
    body = function.child_by_field_name("body")
    if body is None or body.end_point[0] - body.start_point[0] - 1 < _FEWEST_LINES:
        return None
    comment = _comment_above(_outermost(function), language)
    if comment is None:
        return None
    text = _MARKUP.sub(lambda found: found[found.lastgroup] if found.lastgroup else "", comment).strip()
    name = function.child_by_field_name("name")
    if language == "go" and name is not None and name.text is not None:
        text = re.sub(rf"^{re.escape(name.text.decode())}\s+", "", text)
    # A paragraph ends at an empty line, a sentence at a full stop and white space.
    sentence = " ".join(re.split(r"\n\s*\n|\n\s*@", text)[0].split()).split(". ")[0].rstrip(".")
    return sentence if len(sentence.split()) in _WORDS and not sentence.startswith("@") else None


def _comment_above(node: Node, language: str) -> str | None:
    """Without its marks, if no line is between."""
    texts: list[str] = []
    row, above = node.start_point[0], node.prev_sibling
    while above is not None and above.type in _COMMENTS and above.end_point[0] == row - 1 and above.text is not None:
        if above.prev_sibling is not None and above.prev_sibling.end_point[0] == above.start_point[0]:
            break  # at the end of a line of code
        texts.insert(0, above.text.decode())
        row, above = above.start_point[0], above.prev_sibling
        if language != "go":
            break
    if not texts:
        return None
    if language == "go":
        return "\n".join(text.removeprefix("//").strip() for text in texts if not text.startswith(("//go:", "//line")))
    (text,) = texts
    if not text.startswith("/**"):
        return None
    inner = text.removeprefix("/**").removesuffix("*/").split("\n")
    return "\n".join(line.strip().removeprefix("*").strip() for line in inner)

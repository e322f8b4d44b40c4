"""Commands as documentation shows them: lines that begin with `$ `, what they print below them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.docs.pages import Fence, Place

_INNER = re.compile(r"\$\(([^()]*)\)")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PUNCTUATION = ";|&<>()"
_ID, _NUMBER, _UNIT = r"\b[0-9a-f]{8}[0-9a-f-]*\b", r"\d[\d,.:]*", r"(?:s|min|h|d)\b"


@dataclass
class Typed:
    """What a person types, continuation lines included, and the lines that are shown below it."""

    at: Place
    line: str
    shown: list[str] = field(default_factory=list)

    @property
    def without_remark(self) -> str:
        return re.sub(r"\s+#\s.*$", "", self.line)


def typed(fence: Fence) -> list[Typed]:
    found: list[Typed] = []
    goes_on = False
    for number, line in enumerate(fence.text.splitlines()):
        at = Place(fence.at.page, fence.at.line + number)
        if goes_on:
            found[-1].line += "\n" + line
        elif line.startswith("$ "):
            found.append(Typed(at, line[2:]))
        elif not found:
            raise AssertionError(f"{at}: a console block begins with a command: `$ ...`")
        elif line.strip():
            found[-1].shown.append(line)
        goes_on = (goes_on or line.startswith("$ ")) and line.endswith("\\")
    return found


def simple_commands(line: str) -> Iterator[list[str]]:
    """Every command of a shell line, those whose output is put into others too, without assignments before them.

    Raises ValueError where a quote is open.
    """
    line = line.replace("\\\n", " ")
    while found := _INNER.search(line):
        yield from simple_commands(found[1])
        line = line[: found.start()] + "X" + line[found.end() :]
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace_split, lexer.commenters = True, "#"
    command: list[str] = []
    redirected = False
    for word in lexer:
        if set(word) <= set(_PUNCTUATION):
            redirected = word[0] in "<>"
            if redirected and command and command[-1].isdigit():
                command.pop()  # 2>&1
            elif not redirected:
                yield from _complete(command)
                command = []
        elif redirected:
            redirected = False
        else:
            command.append(word)
    yield from _complete(command)


def _complete(words: list[str]) -> Iterator[list[str]]:
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    if words:
        yield words


def as_expected(shown: str) -> re.Pattern[str]:
    """Figures, times and ids of a shown line may differ, and `...` stands for anything; words may not."""
    pattern = ""
    for piece in re.split(rf"(\.\.\.|{_ID}|{_NUMBER}(?: {_UNIT})?|\s+)", shown.strip()):
        if piece == "...":
            pattern += ".*"
        elif piece.isspace():
            pattern += r"\s+"
        elif re.fullmatch(_ID, piece) and not piece.isdigit():
            pattern += "[0-9a-f-]+"
        elif piece[:1].isdigit():
            pattern += f"{_NUMBER}(?: {_UNIT}(?: {_NUMBER} {_UNIT})*)?"
        else:
            pattern += re.escape(piece)
    return re.compile(pattern)

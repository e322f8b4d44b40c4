"""What a terminal can show: its width, colours, links, and text that wraps at spaces."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import IO, Any

import click

COLORS = ("auto", "always", "never")
ELLIPSIS = "…"
_LEAST_WIDTH = 40
"""The width of lines that are wrapped or cut: on a narrower terminal the terminal itself wraps them."""

# A command in backquotes is one word, with what surrounds it.
_WORDS = re.compile(r"(\s*)([^\s`]*`[^`]*`[^\s`]*|\S+)")
_INDENT = re.compile(r"\s*")


def color_option() -> click.Option:
    """An option of every command; `color_of` reads it, so that errors in the other arguments have the color, too."""
    return click.Option(
        ["--color"],
        type=click.Choice(COLORS),
        expose_value=False,
        help="Colors and links: on a terminal (auto, the default), always or never.",
    )


def color_of(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> bool | None:
    """Whether the command line has colors; None: on a terminal. The option counts first, then NO_COLOR, then
    CLICOLOR_FORCE."""
    words = list(takewhile(lambda word: word != "--", arguments))
    chosen = [word.partition("=")[2] for word in words if word.startswith("--color=")]
    chosen += [value for word, value in pairwise(words) if word == "--color"]
    if chosen and chosen[-1] in ("always", "never"):
        return chosen[-1] == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return False if environ.get("TERM") == "dumb" else None


def has_color(stream: IO[Any] | None = None) -> bool:
    """Whether what is printed to `stream` (default: stdout) keeps its colors."""
    context = click.get_current_context(silent=True)
    color = None if context is None else context.color
    return (stream or sys.stdout).isatty() if color is None else color


def width_of(stream: IO[Any]) -> int | None:
    """In characters; None if it is no terminal. COLUMNS counts first, as for other programs."""
    if not stream.isatty():
        return None
    chosen = os.environ.get("COLUMNS", "")
    if chosen.isdecimal() and int(chosen):
        return max(int(chosen), _LEAST_WIDTH)
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return max(columns or 80, _LEAST_WIDTH)


def cells(text: str) -> int:
    """How many columns of a terminal it takes, without its colors."""
    plain = click.unstyle(text)
    if plain.isascii():
        return len(plain)
    from rich.cells import cell_len

    return cell_len(plain)


def cut(text: str, width: int) -> str:
    """Unstyled `text`, with a mark where it was cut: the end of a path and the start of other text stay."""
    if cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    if "/" in text and " " not in text:
        return ELLIPSIS + set_cell_size(text[::-1], width - 1)[::-1].strip()
    return set_cell_size(text, width - 1).rstrip() + ELLIPSIS


def padded(text: str, width: int, *, right: bool = False) -> str:
    blanks = " " * (width - cells(text))
    return blanks + text if right else text + blanks


def wrapped(text: str, width: int | None, hang: int = 2) -> str:
    """`text` wrapped at spaces, never within a word or a command in backquotes. What follows the first line is indented
    by `hang` more than it. `width` None: as it is."""
    if width is None:
        return text
    return "\n".join(line for each in text.split("\n") for line in _wrapped(each, width, hang))


def _wrapped(line: str, width: int, hang: int) -> Iterator[str]:
    if cells(line) <= width:
        yield line
        return
    found = _INDENT.match(line)
    shown = indent = found[0] if found is not None else ""
    begin = True
    for space, word in _WORDS.findall(line[len(indent) :]):
        if not begin and cells(shown) + len(space) + cells(word) > width:
            yield shown
            # A command that is too long for the column still has a line of its own.
            margin = max(0, min(cells(indent) + hang, width - cells(word)))
            shown, begin = " " * margin, True
        shown, begin = f"{shown}{'' if begin else space}{word}", False
    yield shown


def link(text: str, url: str | None) -> str:
    """`text` as a link (OSC 8) on a terminal with colors; many open it by a click."""
    if url is None or not url.isprintable() or not (has_color() and sys.stdout.isatty()):
        return text
    return f"\x1b]8;;{url}\x1b\\{text}\x1b]8;;\x1b\\"

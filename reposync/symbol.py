"""A definition in a file, as the content stage finds it, points store it, and search shows it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Symbol:
    """`kind`: one of `reposync.content.symbols.KINDS`. Lines count from 1, and the last one is included; a definition
    may go on after the chunk in which it was found."""

    name: str
    kind: str
    start_line: int
    end_line: int

    def __reduce__(self) -> tuple[type[Symbol], tuple[str, str, int, int]]:
        """Workers return about 14 a chunk; without it, pickling takes three times as long."""
        return Symbol, (self.name, self.kind, self.start_line, self.end_line)


def read_symbols(stored: object) -> list[Symbol]:
    """From a point's payload, which any program may have written: what is no symbol is left out."""
    return [
        Symbol(each["name"], each["kind"], each["start_line"], each["end_line"])
        for each in (stored if isinstance(stored, list) else [])
        if isinstance(each, dict)
        and all(isinstance(each.get(key), str) for key in ("name", "kind"))
        and all(isinstance(each.get(key), int) for key in ("start_line", "end_line"))
    ]


def read_names(stored: object) -> list[str]:
    """As `read_symbols`, of the names that are called in a point's text."""
    return [each for each in stored if isinstance(each, str)] if isinstance(stored, list) else []


def merged(symbols: Iterable[Symbol]) -> list[Symbol]:
    """By line, each definition once. Chunks that overlap both have those of the lines they share: the one that shows
    more of a definition knows its end."""
    longest: dict[tuple[str, int], Symbol] = {}
    for each in symbols:
        known = longest.get((each.name, each.start_line))
        if known is None or each.end_line > known.end_line:
            longest[each.name, each.start_line] = each
    return sorted(longest.values(), key=lambda each: (each.start_line, -each.end_line))

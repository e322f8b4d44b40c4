"""A definition in a file, as the content stage finds it, points store it, and search shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Symbol:
    """`kind`: one of `reposync.content.symbols.KINDS`. Lines count from 1, and the last one is included; a definition
    may go on after the chunk in which it was found."""

    name: str
    kind: str
    start_line: int
    end_line: int

"""Masks of secrets in a text. A mask has as many characters and lines as what it replaces, so that lines, offsets,
symbols and links stay right: `glpat-...` becomes `[gitlab-pat·············]`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from reposync.finding import FILL

_SHORTEST: Final = 4  # "[", a letter, a mark, "]"
_LINE_BREAKS: Final = re.compile(r"([\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+)")


def masked(text: str, spans: Iterable[tuple[int, int, str]]) -> str:
    """`text` with a mask in place of each (start, end, kind), in characters. Of overlapping ones all is masked, with
    the kind of the first."""
    parts: list[str] = []
    done = 0
    for start, end, kind in _joined(spans):
        parts += [text[done:start], _mask(text[start:end], kind)]
        done = end
    return "".join([*parts, text[done:]])


def _joined(spans: Iterable[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    for start, end, kind in sorted(spans):
        if found and start < found[-1][1]:
            before, before_end, before_kind = found[-1]
            found[-1] = before, max(before_end, end), before_kind
        elif start < end:
            found.append((start, end, kind))
    return found


def _mask(value: str, kind: str) -> str:
    """The mask for a secret. If it has several lines, as a private key has, the first one has the kind."""
    lines = _LINE_BREAKS.split(value)
    return "".join(part if index % 2 else _line(part, "" if index else kind) for index, part in enumerate(lines))


def _line(value: str, kind: str) -> str:
    if not kind or len(value) < _SHORTEST:
        return FILL * len(value)
    room = len(value) - 3
    return f"[{kind[:room]}{FILL * (len(value) - 2 - min(len(kind), room))}]"

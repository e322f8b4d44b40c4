"""Sorting that leaves the event loop its turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")

# Takes 10 ms.
_SORTED_AT_ONCE = 20_000


def in_order(items: Iterable[T], key: Callable[[T], Any]) -> list[T]:
    """`items` sorted by `key`, for a thread: sorting a million at once keeps the interpreter's lock for most of a
    second, and so stops the event loop too. Merging does not."""
    rest = iter(items)
    parts: list[list[T]] = []
    while part := list(islice(rest, _SORTED_AT_ONCE)):
        parts.append(sorted(part, key=key))
    return parts[0] if len(parts) == 1 else list(merge(*parts, key=key))

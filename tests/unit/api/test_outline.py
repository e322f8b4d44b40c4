"""The definitions of a file, as its page nests them."""

from __future__ import annotations

from reposync.api.web.file_page import MAX_DEFINITIONS, MAX_NESTING, Definition, outline_of
from reposync.symbol import Symbol


def test_definitions_are_in_the_smallest_one_around_them() -> None:
    outer, inner, after = (
        Symbol("Outer", "class", 1, 9),
        Symbol("inner", "method", 2, 4),
        Symbol("after", "class", 10, 12),
    )

    first, second = outline_of([outer, inner, after])

    assert (first.symbol, [each.symbol for each in first.inner]) == (outer, [inner])
    assert second == Definition(after)


def test_classes_in_classes_without_an_end_are_listed_in_the_last_level() -> None:
    last = 2 * MAX_DEFINITIONS
    found = outline_of([Symbol(f"C{depth}", "class", depth + 1, last - depth) for depth in range(MAX_DEFINITIONS)])

    levels = []
    while found:
        levels.append(len(found))
        found = found[0].inner
    assert levels == [*[1] * MAX_NESTING, MAX_DEFINITIONS - MAX_NESTING]

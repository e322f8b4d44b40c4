"""Lines that match a pattern, as ripgrep finds them, and in bounded time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.errors import UsageError
from reposync.search.pattern import LONGEST_LINE, LineMatch, Pattern, TimeIsUp


def found(
    pattern: str, text: str, most: int = 100, *, fixed: bool = False, ignore_case: bool = False
) -> list[LineMatch]:
    compiled = Pattern(pattern, fixed=fixed, ignore_case=ignore_case)
    return list(compiled.lines(text, most, time.monotonic() + 60))


def places(pattern: str, text: str, **how: bool) -> list[tuple[int, int]]:
    return [(each.line + 1, each.column) for each in found(pattern, text, **how)]


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("a", "xa a\nb\nba\n", [(1, 2), (3, 2)]),
        ("^a|b$", "ba\nab\r\nb", [(2, 1), (3, 1)]),
        ("^$", "a\n\n\nb\n", [(2, 1), (3, 1)]),
        ("x*", "\na", [(1, 1), (2, 1)]),
        ("x*", "", [(1, 1)]),
        ("é", "né\n\U0001f600é", [(1, 2), (2, 2)]),
        # Only a pattern that names line breaks spans lines.
        (r"a\s+b", "a\nb\na b", [(3, 1)]),
        ("a[^x]b", "a\nb", []),
        (r"a\nb", "a\nb\na\nb", [(1, 1), (3, 1)]),
        ("(?s)a.b", "a\nb", [(1, 1)]),
        # A border is one of a word of any script.
        (r"\bcaf\b", "café caf-\nécaf\ncaf\u0301\ncaf中", [(1, 6), (4, 1)]),
    ],
)
def test_the_first_match_of_each_line_is_found(pattern: str, text: str, expected: list[tuple[int, int]]):
    assert places(pattern, text) == expected


def test_a_fixed_text_is_no_pattern_and_case_may_be_ignored():
    assert places("a.b(", "axb( a.b(\n", fixed=True) == [(1, 6)]
    assert places("a.B(", "A.b(\n", fixed=True, ignore_case=True) == [(1, 1)]
    assert places("ärger", "Ärger", ignore_case=True) == [(1, 1)]
    assert places("a\nb", "x\na\nb\n", fixed=True) == [(2, 1)]


def test_lines_that_a_match_spans_are_shown_together():
    (match,) = found(r"one\n\s*two", "zero\n  one\n  two three\nfour\n")

    assert (match.line, match.last_line, match.column, match.text) == (1, 2, 3, "  one\n  two three")


def test_a_long_line_is_cut_around_its_match():
    (start,) = found("needle", "needle" + "x" * 1_000_000)
    (middle,) = found("needle", "x" * 500_000 + "needle" + "é" * 500_000)
    (end,) = found("needle", "é" * 1_000_000 + "needle")

    assert [each.column for each in (start, middle, end)] == [1, 500_001, 1_000_001]
    for each in (start, middle, end):
        assert len(each.text) <= LONGEST_LINE
        assert "needle" in each.text
    assert start.text.startswith("needle") and start.text.endswith("x…")
    assert middle.text.startswith("…x") and middle.text.endswith("é…")
    assert end.text.startswith("…é") and end.text.endswith("needle")


@given(
    st.text(st.sampled_from("ab \n\réé中"), max_size=60),
    st.sampled_from(["a", "b+", "^a", "a$", "[^a]", "a b", "é", "", "(a|b)*", "a*b", ".", r"\s", r"\S+$"]),
    st.booleans(),
)
def test_the_lines_are_those_that_re_finds_one_by_one(text: str, pattern: str, ends: bool):
    text = text.replace("\r", "\r\n") + ("\n" if ends else "")
    lines = text.replace("\r\n", "\n").split("\n")
    if len(lines) > 1 and not lines[-1]:
        lines.pop()
    if pattern:
        regex = re.compile(pattern.replace(r"\s", r"[\t\n\f\r ]").replace(r"\S", r"[^\t\n\f\r ]"))
        expected = [
            (number, match.start() + 1) for number, line in enumerate(lines, 1) if (match := regex.search(line))
        ]
        assert places(pattern, text) == expected


@pytest.mark.parametrize("longest", [4, 7, 64])
def test_a_text_is_searched_in_parts_without_losing_or_repeating_a_line(longest: int, monkeypatch: pytest.MonkeyPatch):
    text = "".join(f"é line {number}\n" for number in range(50))
    pattern = Pattern("line 1|^é")
    monkeypatch.setattr(pattern, "_longest", longest)

    assert [each.line for each in pattern.lines(text, 100, time.monotonic() + 60)] == list(range(50))
    assert pattern.has_cut_lines == (longest < 10)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("foo(", "missing ): foo(, at character 1"),
        ("ab**", "bad repetition operator: **, at character 3"),
        ("x(?=y)", "invalid perl operator: (?=, at character 2"),
        (r"(a)\1", r"invalid escape sequence: \1, at character 4"),
        ("a{5000}", "invalid repetition size: {5000}, at character 2"),
        (r"(?i)\pL{800}", "pattern too large"),
        ("", "The pattern is empty"),
        ("x" * 2_000, "at most 1,000"),
        ("\ud800", "lone surrogate"),
    ],
)
def test_a_bad_pattern_is_refused_with_its_reason_and_place(pattern: str, message: str):
    with pytest.raises(UsageError) as error:
        Pattern(pattern)
    assert message in error.value.message


def test_hostile_patterns_and_texts_end():
    assert found("(a+)+$", "a" * 1_000_000 + "!") == []
    assert found("(a|b)*a(a|b){20}c", "ab" * 100_000) == []
    with pytest.raises(TimeIsUp):
        list(Pattern("(a|b)*a(a|b){900}c").lines("ab" * 500_000, 10, time.monotonic()))

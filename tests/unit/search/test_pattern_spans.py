"""Where a pattern matches in a line that is shown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.search.pattern import Pattern


@pytest.mark.parametrize(
    ("pattern", "line", "matches"),
    [
        (r"r\w+e", "café remove, rare", ["remove", "rare"]),
        (r"\bcaf\b", "café caf", ["caf"]),
        (r"x*", "axxb", ["xx"]),
        (r"é", "éé", ["é", "é"]),
    ],
)
def test_every_match_of_a_line_is_found(pattern: str, line: str, matches: list[str]) -> None:
    assert [line[start:end] for start, end in Pattern(pattern).spans(line)] == matches


@given(st.text(st.sampled_from("ab é漢"), max_size=30), st.sampled_from(["a+", "é", "b|漢", "a?"]))
def test_spans_are_those_of_the_regular_expression(line: str, pattern: str) -> None:
    expected = [match.span() for match in re.finditer(pattern, line) if match[0]]
    assert list(Pattern(pattern).spans(line)) == expected

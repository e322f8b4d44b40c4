"""What several phrasings of a question find, in one order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.vectors.fusion import Fused, best_of_each, fused_phrasings
from reposync.vectors.port import Candidate

CANDIDATE = Candidate("", "version", "project", "a.py", 1, 2, "python", [], 0.0, {})
LISTS = st.lists(st.lists(st.integers(0, 30), unique=True, max_size=20), min_size=1, max_size=8)


def found(*ids: int) -> list[Fused]:
    return [Fused(each, {}, 1.0, 0.0) for each in ids]


def candidates(**scores: float) -> list[Candidate]:
    return [replace(CANDIDATE, id=each, score=score, parts={"words": score}) for each, score in scores.items()]


def test_one_phrasing_keeps_its_order_and_its_scores() -> None:
    one = candidates(a=0.9, b=0.5)
    assert fused_phrasings([one]) == one
    assert best_of_each([found(1, 2, 3)], 2) == [found(1, 2)]


def test_what_several_phrasings_find_comes_before_what_one_finds_as_well() -> None:
    fused = fused_phrasings([candidates(a=1.0, b=0.9), candidates(c=1.0, b=0.8), candidates(c=0.1)])
    assert [(each.id, each.phrasings) for each in fused] == [("b", [1, 2]), ("c", [2]), ("a", [1])]


def test_the_parts_of_a_score_say_what_the_other_phrasings_add() -> None:
    first, second = candidates(a=0.35)[0], candidates(a=0.2)[0]
    first.parts = {"words": 0.5, "prior": 0.7}
    (both,) = fused_phrasings([[first], [second]])
    assert both.score == pytest.approx((both.parts["words"] + both.parts["others"]) * both.parts["prior"])


@given(LISTS, st.integers(1, 50))
def test_every_phrasing_is_heard_and_no_more_points_than_asked_for_are_read(lists: list[list[int]], most: int) -> None:
    chosen = best_of_each([found(*ids) for ids in lists], most)
    ids = {each.id for one in chosen for each in one}
    assert len(ids) == min(most, len({each for ids in lists for each in ids}))
    heard = [bool(one) for one in chosen]
    if most >= len(lists):
        assert heard == [bool(ids) for ids in lists]
    for one, all_of_it in zip(chosen, lists, strict=True):
        assert [each.id for each in one] == [each for each in all_of_it if each in ids]

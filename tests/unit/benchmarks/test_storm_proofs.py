"""The proofs of the storm find what they look for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.storm.proofs import (
    Attempt,
    Executed,
    Request,
    Span,
    TickTaken,
    TickVerdict,
    executed_twice,
    intruding,
    judge_ticks,
    overlapping,
    take_overs,
)


def attempt(
    process: str, started: float, ended: float | None, repository: str = "payments", number: int = 1
) -> Attempt:
    return Attempt(repository, f"run of {repository}", number, process, started, ended, "lost")


def requested(process: str, at: float, *, writes: bool = False) -> Request:
    return Request(process, "payments", at, writes, "/")


def ticks(*taken: tuple[float, float], able: bool = True, joined: bool = False, until: float = 30) -> TickVerdict:
    """Of one repository with a tick each 5 s, the first at 5; `taken`: (tick, when). One pod, `able` or not."""
    return judge_ticks(
        [TickTaken("payments", tick, at, joined) for tick, at in taken],
        ["payments"],
        period_seconds=5,
        window=Span(0, until),
        impaired=[[] if able else [Span(0, until)]],
        prompt_seconds=3,
    )


ALL = [(tick, tick + 0.1) for tick in (5.0, 10.0, 15.0, 20.0, 25.0, 30.0)]


# Overlaps ----------------------------------------------------------------------------------------------------------


def test_attempts_of_two_repositories_may_run_at_once():
    assert overlapping([attempt("a", 0, 5), attempt("a", 1, 4, "handbook")]) == []


def test_an_attempt_that_never_ended_overlaps_with_every_later_one():
    first, second, third = attempt("a", 0, None), attempt("b", 50, 51), attempt("c", 60, 61)
    assert overlapping([first, second, third]) == [(first, second), (first, third)]


def test_an_overlap_hidden_behind_a_short_attempt_is_found():
    long, short, late = attempt("a", 0, 10), attempt("b", 1, 2), attempt("c", 3, 4)
    assert overlapping([long, short, late]) == [(long, short), (long, late)]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=8))
def test_an_overlap_is_found_exactly_where_two_attempts_share_a_moment(spans: list[tuple[int, int]]):
    attempts = [attempt("a", start, start + length) for start, length in spans]
    moments = [second for start, length in spans for second in range(start, start + length)]
    assert bool(overlapping(attempts)) == (len(moments) != len(set(moments)))


# Requests ----------------------------------------------------------------------------------------------------------


def test_requests_within_an_attempt_of_the_same_process_are_fine():
    found = intruding([requested("a", 1), requested("a", 2, writes=True)], [attempt("a", 0, 5)])
    assert (found.writes, found.reads, found.woken, found.idle) == ([], [], [], [])


def test_a_request_outside_the_attempts_of_its_process_is_found():
    attempts = [attempt("a", 0, 5), attempt("b", 5, 9)]
    read, write = requested("a", 6), requested("a", 6, writes=True)
    assert intruding([read], attempts).reads == [read]
    for each in (attempts, attempts[:1], []):
        assert intruding([write], each).writes == [write]


def test_a_process_that_was_just_thawed_may_read_but_not_write():
    attempts = [attempt("a", 0, 5), attempt("b", 5, 9)]
    read, write, later = requested("a", 7), requested("a", 7, writes=True), requested("a", 8.5)
    found = intruding([read, write, later], attempts, [("a", 6.9)], waking_seconds=1)
    assert (found.woken, found.writes, found.reads) == ([read], [write], [later])
    assert intruding([read], attempts, [("b", 6.9)]).reads == [read]


# Ticks -------------------------------------------------------------------------------------------------------------


def test_every_tick_taken_once_is_what_is_promised():
    verdict = ticks(*ALL)
    assert (verdict.expected, verdict.own, verdict.lost, verdict.duplicates, verdict.unscheduled) == (6, 6, [], [], [])


def test_a_tick_that_nobody_took_is_lost():
    assert ticks(*(each for each in ALL if each[0] != 15)).lost == [("payments", 15)]


def test_the_last_tick_is_lost_if_nothing_stands_for_it():
    assert ticks(*ALL[:-1], able=False).lost == [("payments", 30)]


def test_a_tick_that_no_pod_could_take_is_covered_by_a_later_one():
    verdict = ticks((5, 5.1), (30, 30.1), able=False)
    assert (verdict.coalesced, verdict.lost) == (4, [])


@pytest.mark.parametrize(("struck", "lost"), [(8.1, [("payments", 5)]), (7.9, [])])
def test_a_tick_is_lost_if_any_pod_had_time_to_take_it(struck: float, lost: list[tuple[str, float]]):
    verdict = judge_ticks(
        [TickTaken("payments", 10, 10.1)],
        ["payments"],
        period_seconds=5,
        window=Span(0, 10),
        impaired=[[Span(0, 20)], [Span(struck, 9)]],
        prompt_seconds=3,
    )
    assert verdict.lost == lost


def test_a_tick_taken_twice_is_found():
    assert ticks(*ALL, (15, 15.2)).duplicates == [("payments", 15)]


def test_a_tick_that_two_runs_took_over_one_after_the_other_is_found():
    verdict = ticks(*ALL, (15, 21), joined=True)
    assert verdict.duplicates == [("payments", 15)]
    assert verdict.joined == 6


def test_a_run_for_a_moment_that_is_no_tick_is_found():
    assert ticks(*ALL, (17, 17.1)).unscheduled == [("payments", 17)]


def test_ticks_are_counted_for_each_repository():
    verdict = judge_ticks(
        [TickTaken("payments", 5, 5.1)],
        ["payments", "handbook"],
        period_seconds=5,
        window=Span(0, 9),
        impaired=[[]],
        prompt_seconds=3,
    )
    assert verdict.lost == [("handbook", 5)]


def test_a_second_execution_of_a_tick_is_counted():
    first, second = Executed("payments", 5, 5.0), Executed("payments", 5, 5.02)
    assert executed_twice([first, Executed("payments", 10, 10)]) == 0
    assert executed_twice([first, second, Executed("handbook", 5, 5)]) == 1


# Take-overs --------------------------------------------------------------------------------------------------------


def test_a_take_over_lasts_from_the_kill_to_the_next_attempt():
    attempts = [attempt("a", 0, 8, number=1), attempt("b", 8, 9, number=2)]
    assert take_overs(attempts, [("a", 3.0)]) == [5.0]
    assert take_overs(attempts, [("b", 3.0)]) == []
    assert take_overs(attempts, [("a", 8.5)]) == []

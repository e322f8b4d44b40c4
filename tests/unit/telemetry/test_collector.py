"""What lives on is not looked through again and again, and what dies there is found all the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from reposync.telemetry.collector import THAW_SECONDS, Collector


class Clock:
    """Each look at it lets so many seconds pass."""

    def __init__(self) -> None:
        self.seconds, self.step = 0.0, 0.0

    def __call__(self) -> float:
        self.seconds += self.step
        return self.seconds


class Cycle:
    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collector(clock: Clock) -> Iterator[Collector]:
    collector = Collector(clock)
    gc.disable()  # nothing but what the tests ask for
    collector.start()
    yield collector
    collector.stop()
    gc.enable()
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("collector")
def test_what_survives_a_long_collection_is_set_aside(clock: Clock) -> None:
    before = gc.get_freeze_count()
    kept = [Cycle() for _ in range(100)]
    gc.collect()
    assert gc.get_freeze_count() <= before, "that one was quick"

    clock.step = 1.0
    gc.collect()

    assert gc.get_freeze_count() >= before + len(kept)


@pytest.mark.usefixtures("collector")
def test_a_cycle_that_dies_where_it_was_set_aside_is_found_after_an_hour(clock: Clock) -> None:
    cycle = Cycle()
    alive = weakref.ref(cycle)
    clock.step = 1.0
    gc.collect()
    del cycle
    gc.collect()
    assert alive() is not None

    clock.seconds += THAW_SECONDS
    gc.collect()

    assert alive() is None


@pytest.mark.usefixtures("collector")
def test_without_waiting_where_there_is_too_much_of_it(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reposync.telemetry.collector.MOST_OBJECTS", 50)
    cycle = Cycle()
    alive = weakref.ref(cycle)
    kept = [Cycle() for _ in range(100)]
    clock.step = 1.0
    gc.collect()
    del cycle

    gc.collect()

    assert alive() is None and len(kept) == 100

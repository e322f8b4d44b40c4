from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.api.errors import TooManyAttempts
from reposync.api.throttle import Checked, Throttle

HERE, THERE = "192.0.2.1", "192.0.2.2"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


GUESSES: Iterator[bytes] = (str(number).encode() for number in count())


def throttle(clock: Clock, *, per_client: int = 3, of_used: int = 6, in_total: int = 10) -> Throttle:
    return Throttle(per_client=per_client, of_used=of_used, in_total=in_total, window_seconds=60.0, monotonic=clock)


def checked(limits: Throttle, client: str) -> Checked | None:
    """None if no credential of this address is compared."""
    with contextlib.suppress(TooManyAttempts):
        return limits.admit(client)
    return None


def wait_seconds(limits: Throttle, client: str) -> int:
    """Of the refusal."""
    with pytest.raises(TooManyAttempts) as refused:
        limits.failed(client, b"one more", Checked.USED)
    return refused.value.wait_seconds


def guess(limits: Throttle, client: str, times: int = 1) -> None:
    for _ in range(times):
        limits.failed(client, next(GUESSES), Checked.ALL)


def test_after_so_many_wrong_ones_only_used_credentials_are_compared_and_then_none() -> None:
    limits = throttle(Clock())

    guess(limits, HERE, 3)
    assert (checked(limits, HERE), checked(limits, THERE)) == (Checked.USED, Checked.ALL)
    guess(limits, HERE, 2)
    assert checked(limits, HERE) is Checked.USED
    guess(limits, HERE)
    assert (checked(limits, HERE), checked(limits, THERE)) == (None, Checked.ALL)


def test_both_bounds_come_back_evenly() -> None:
    clock = Clock()
    limits = throttle(clock)
    guess(limits, HERE, 6)

    assert wait_seconds(limits, HERE) == 20
    clock.now += 10
    assert checked(limits, HERE) is Checked.USED
    clock.now += 10
    assert checked(limits, HERE) is Checked.ALL
    guess(limits, HERE)
    assert checked(limits, HERE) is Checked.USED


def test_a_repeated_wrong_credential_counts_once() -> None:
    limits = throttle(Clock())
    for client in (HERE, THERE) * 50:
        limits.failed(client, b"an outdated token", Checked.ALL)

    assert checked(limits, HERE) is Checked.ALL
    assert checked(limits, THERE) is Checked.ALL


def test_a_network_that_one_ipv6_host_owns_is_one_client_and_so_is_ipv4_in_ipv6() -> None:
    limits = throttle(Clock())
    for host in range(3):
        guess(limits, f"2001:db8::{host:x}")
        guess(limits, "::ffff:192.0.2.1")

    assert checked(limits, "2001:db8::ffff:1") is Checked.USED
    assert checked(limits, "2001:db8:0:1::1") is Checked.ALL
    assert checked(limits, HERE) is Checked.USED


def test_many_addresses_together_reach_a_limit_that_concerns_none_that_has_not_failed() -> None:
    clock = Clock()
    limits = throttle(clock)
    for host in range(10):
        guess(limits, f"192.0.2.{host}")

    assert checked(limits, "192.0.2.9") is Checked.USED
    assert checked(limits, "198.51.100.1") is Checked.ALL
    clock.now += 60
    assert checked(limits, "192.0.2.9") is Checked.ALL


def test_a_million_addresses_cost_no_more_memory_than_a_few_thousand() -> None:
    limits = throttle(Clock())
    for number in range(20_000):
        guess(limits, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")

    sizes = [len(each) for each in vars(limits).values() if hasattr(each, "__len__")]
    assert sizes and max(sizes) <= 4_096


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 40)), max_size=60))
def test_no_client_has_more_guesses_compared_than_the_limits_allow(steps: list[tuple[str, float]]) -> None:
    clock = Clock()
    limits = throttle(clock, in_total=1_000)
    compared: dict[tuple[str, Checked], list[float]] = {}
    for client, pause in steps:
        clock.now += pause
        kind = checked(limits, client)
        if kind is not None:
            guess(limits, client)
            compared.setdefault((client, kind), []).append(clock.now)

    for (_, kind), times in compared.items():
        most = 3 if kind is Checked.ALL else 6
        # At once, and then one for each part of the window.
        for start, first in enumerate(times):
            for number, later in enumerate(times[start:], 1):
                assert number <= most + (later - first) / 60 * most + 1e-6

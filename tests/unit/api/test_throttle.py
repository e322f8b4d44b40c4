from __future__ import annotations

from itertools import count

import pytest

from reposync.api.errors import TooManyAttempts
from reposync.api.limits import Throttle

HERE, THERE = "192.0.2.1", "192.0.2.2"
GUESSES = (str(number).encode() for number in count())


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def guess(limit: Throttle, client: str, times: int = 1) -> None:
    for _ in range(times):
        limit.admit(client)
        limit.failed(client, next(GUESSES))


def test_after_so_many_wrong_credentials_none_of_that_address_is_compared_until_the_window_ends() -> None:
    clock = Clock()
    limit = Throttle(max_failures=3, monotonic=clock)
    guess(limit, HERE, 3)

    clock.now += 20
    with pytest.raises(TooManyAttempts) as refused:
        limit.admit(HERE)
    assert refused.value.wait_seconds == 40
    limit.admit(THERE)
    clock.now += 40
    guess(limit, HERE, 3)
    with pytest.raises(TooManyAttempts):
        limit.admit(HERE)


def test_a_repeated_wrong_credential_counts_once() -> None:
    limit = Throttle(max_failures=3)
    for client in (HERE, THERE) * 50:
        limit.admit(client)
        limit.failed(client, b"an outdated token")


def test_a_network_that_one_ipv6_host_owns_is_one_client_and_so_is_ipv4_in_ipv6() -> None:
    limit = Throttle(max_failures=3)
    for host in range(3):
        guess(limit, f"2001:db8::{host:x}")
        guess(limit, "::ffff:192.0.2.1")

    for client in ("2001:db8::ffff:1", HERE):
        with pytest.raises(TooManyAttempts):
            limit.admit(client)
    limit.admit("2001:db8:0:1::1")


def test_many_addresses_cost_no_more_memory_than_a_few_thousand() -> None:
    limit = Throttle()
    for number in range(10_000):
        guess(limit, f"10.0.{number >> 8}.{number & 255}")

    assert {len(each) for each in vars(limit).values() if hasattr(each, "__len__")} == {4_096}

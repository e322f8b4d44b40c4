from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from reposync.api.attempts import Attempts


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def attempts(clock: Clock, *, per_client: int = 3, altogether: int = 10) -> Attempts:
    return Attempts(per_client=per_client, altogether=altogether, window_seconds=60.0, monotonic=clock)


def test_after_so_many_failures_an_address_waits_until_the_first_of_them_is_a_minute_old() -> None:
    clock = Clock()
    counted = attempts(clock)
    reached = []
    for _ in range(3):
        reached.append(counted.failed("192.0.2.1"))
        clock.now += 10

    assert reached == [False, False, True]
    assert counted.wait_seconds("192.0.2.1") == 30.0
    assert counted.wait_seconds("192.0.2.2") == 0.0
    clock.now += 30
    assert counted.wait_seconds("192.0.2.1") == 0.0


def test_a_network_that_one_ipv6_host_owns_is_one_client_and_so_is_ipv4_in_ipv6() -> None:
    clock = Clock()
    counted = attempts(clock)
    for host in range(3):
        counted.failed(f"2001:db8::{host:x}")
        counted.failed("::ffff:192.0.2.1")

    assert counted.wait_seconds("2001:db8::ffff:1") > 0
    assert counted.wait_seconds("2001:db8:0:1::1") == 0.0
    assert counted.wait_seconds("192.0.2.1") > 0


def test_many_addresses_together_reach_a_limit_that_concerns_none_that_has_not_failed() -> None:
    clock = Clock()
    counted = attempts(clock)
    for host in range(10):
        counted.failed(f"192.0.2.{host}")

    assert counted.wait_seconds("192.0.2.1") > 0
    assert counted.wait_seconds("198.51.100.1") == 0.0
    clock.now += 60
    assert counted.wait_seconds("192.0.2.1") == 0.0


def test_an_address_is_proven_for_the_token_that_it_used_alone() -> None:
    counted = attempts(Clock())
    counted.succeeded("192.0.2.1", "one")

    assert counted.is_proven("192.0.2.1", "one")
    assert not counted.is_proven("192.0.2.1", "two")
    assert not counted.is_proven("192.0.2.2", "one")


def test_a_million_addresses_cost_no_more_memory_than_a_few_thousand() -> None:
    counted = attempts(Clock())
    for number in range(20_000):
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        counted.failed(address)
        counted.succeeded(address, "one")

    sizes = [len(each) for each in vars(counted).values() if hasattr(each, "__len__")]
    assert sizes and max(sizes) <= 4_096


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 40)), max_size=40))
def test_nobody_gets_more_attempts_in_a_minute_than_allowed(steps: list[tuple[str, float]]) -> None:
    clock = Clock()
    counted = attempts(clock, altogether=1_000)
    tried: dict[str, list[float]] = {}
    for client, pause in steps:
        clock.now += pause
        if counted.wait_seconds(client) == 0:
            counted.failed(client)
            tried.setdefault(client, []).append(clock.now)

    for times in tried.values():
        for first, fourth in zip(times, times[3:], strict=False):
            assert fourth - first >= 60 - 1e-6

"""Who gives up a connection when there are no more."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from reposync.api.connections import HttpLimits, Shares

PROXY = "10.0.0.1"


@dataclass(eq=False)
class Peer:
    network: str
    idle_since: float | None = None
    was_cut: bool = field(default=False, init=False)

    def cut(self) -> None:
        self.was_cut = True


def shares(most: int = 6, a_client: int = 4, reserved: int = 2) -> Shares:
    limits = HttpLimits(
        max_connections=most, connections_a_client=a_client, reserved_connections=reserved, trusted_proxies=(PROXY,)
    )
    return Shares(limits)


def entered(places: Shares, network: str, *idle_since: float | None) -> list[Peer]:
    peers = [Peer(network, since) for since in idle_since]
    assert all(places.enter(each) for each in peers)
    return peers


def test_the_longest_idle_one_of_the_client_that_has_most_makes_room() -> None:
    places = shares()
    many = entered(places, "192.0.2.1", 5.0, 3.0, 4.0, None)
    few = entered(places, "192.0.2.2", 1.0, 2.0)

    assert places.enter(Peer("192.0.2.3"))
    assert [each.was_cut for each in (*many, *few)] == [False, True, False, False, False, False]


def test_a_client_over_its_share_makes_room_for_itself() -> None:
    places = shares()
    many = entered(places, "192.0.2.1", 5.0, 3.0, 4.0, None)

    assert places.enter(Peer("192.0.2.1"))
    assert [each.was_cut for each in many] == [False, True, False, False]


def test_no_request_is_interrupted() -> None:
    places = shares()
    busy = [*entered(places, "192.0.2.1", *[None] * 4), *entered(places, "192.0.2.2", *[None] * 2)]

    assert not places.enter(Peer("192.0.2.3"))
    assert not any(each.was_cut for each in busy)
    # There is room as soon as one has left.
    places.leave(busy[0])
    assert places.enter(Peer("192.0.2.3"))


def test_a_proxys_connection_makes_room_for_a_proxy_alone() -> None:
    places = shares()
    behind = entered(places, PROXY, *[1.0] * 6)

    assert not places.enter(Peer("192.0.2.3"))
    assert not any(each.was_cut for each in behind)
    assert places.enter(Peer(PROXY))
    assert sum(each.was_cut for each in behind) == 1


def test_the_newest_connections_get_the_reserve() -> None:
    places = shares(most=1)
    entered(places, "192.0.2.1", None)
    waiting = [Peer(f"192.0.2.{number}", float(number)) for number in range(2, 6)]
    assert not any(places.enter(each) for each in waiting)

    assert [each.was_cut for each in waiting] == [True, True, False, False]


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", PROXY]), st.booleans()), max_size=40))
def test_there_are_never_more_than_allowed(steps: list[tuple[str, bool]]) -> None:
    places, peers = shares(), []
    for number, (network, is_idle) in enumerate(steps):
        peer = Peer(network, float(number) if is_idle else None)
        placed = places.enter(peer)
        peers.append((peer, placed))
        here = [(each, placed) for each, placed in peers if not each.was_cut]
        assert len([each for each, placed in here if placed]) <= 6
        assert len([each for each, placed in here if not placed]) <= 2
        for name in "abc":
            assert len([each for each, placed in here if placed and each.network == name]) <= 4

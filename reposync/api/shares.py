"""Who has how many of the server's connections, and who gives one up when there are no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class Connection(Protocol):
    @property
    def network(self) -> str:
        """Who is at its other end, as `client_network` has it."""

    @property
    def idle_since(self) -> float | None:
        """By any clock that all have; None while a request is under way."""

    def cut(self) -> None:
        """Close it at once."""


class Shares:
    """At most `most` connections, of which one client has at most `a_client`; and `reserved` besides, for probes.

    When there are no more, an idle connection makes room, of the client that has most of them: HTTP lets a server close
    those at any time. A client is never cut in the middle of a request. Those that `is_trusted`, the proxies before
    this server, stand for many: no share limits them, and only one of them makes room for another.
    """

    def __init__(self, most: int, a_client: int, reserved: int, is_trusted: Callable[[str], bool]) -> None:
        self._most, self._a_client, self._reserved_most = most, a_client, reserved
        self._is_trusted = is_trusted
        self._held: dict[str, set[Connection]] = {}
        self._reserved: set[Connection] = set()

    def enter(self, connection: Connection) -> bool:
        """Whether it has a place like any other; if not, it is for probes alone, or cut."""
        network = connection.network
        own = self._held.setdefault(network, set())
        is_trusted = self._is_trusted(network)
        if not is_trusted and len(own) >= self._a_client:
            victim = self._idlest(own)
        elif sum(map(len, self._held.values())) >= self._most:
            victim = self._idlest(self._may_make_room(is_trusted))
        else:
            own.add(connection)
            return True
        if victim is not None:
            self._cut(victim)
            self._held.setdefault(network, set()).add(connection)
            return True
        self._reserved.add(connection)
        if len(self._reserved) > self._reserved_most:
            self._cut(self._idlest(self._reserved - {connection}) or connection)
        return False

    def leave(self, connection: Connection) -> None:
        self._reserved.discard(connection)
        own = self._held.get(connection.network)
        if own is not None:
            own.discard(connection)
            if not own:
                del self._held[connection.network]

    def _may_make_room(self, for_trusted: bool) -> Iterable[Connection]:
        """Those of the client that has most, of all that have an idle one."""
        by_size = sorted(self._held.items(), key=lambda each: len(each[1]), reverse=True)
        for wants_trusted in (False, True) if for_trusted else (False,):
            for network, held in by_size:
                if self._is_trusted(network) is wants_trusted and self._idlest(held) is not None:
                    return held
        return ()

    def _idlest(self, connections: Iterable[Connection]) -> Connection | None:
        idle = [(since, each) for each in connections if (since := each.idle_since) is not None]
        return min(idle, key=lambda each: each[0], default=(0.0, None))[1]

    def _cut(self, connection: Connection) -> None:
        self.leave(connection)
        connection.cut()

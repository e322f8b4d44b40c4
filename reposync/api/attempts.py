"""Wrong tokens, counted: how long whoever sends them has to wait, in memory that does not grow with them."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict, deque
from collections.abc import Callable

# A person who mistypes needs a few; a program that guesses gets no further than these.
FAILURES_A_CLIENT = 10
FAILURES_ALTOGETHER = 200
WINDOW_SECONDS = 60.0

_CLIENTS_KEPT = 4_096
_PROVEN_KEPT = 4_096


class Attempts:
    """Failures within the last `window_seconds`, of each client and of all together.

    Who is over the limit is not even told whether a token is right, or guessing would go on. Nobody can lock
    others out: an address that has used a token before may go on using it, and the limit for all concerns those alone
    who have failed themselves.
    """

    def __init__(
        self,
        *,
        per_client: int = FAILURES_A_CLIENT,
        altogether: int = FAILURES_ALTOGETHER,
        window_seconds: float = WINDOW_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_client = per_client
        self._window_seconds = window_seconds
        self._monotonic = monotonic
        self._all: deque[float] = deque(maxlen=altogether)
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._proven: OrderedDict[tuple[str, str], None] = OrderedDict()

    def wait_seconds(self, client: str) -> float:
        """How long until the next attempt of this address is looked at; 0: it is now."""
        own = self._failures.get(_group(client))
        if own is None or self._age(own[-1]) >= self._window_seconds:
            return 0.0
        return max(self._left(own), self._left(self._all))

    def failed(self, client: str) -> bool:
        """Count one. Whether it was the one that reached a limit."""
        now, group = self._monotonic(), _group(client)
        own = self._failures.setdefault(group, deque(maxlen=self._per_client))
        self._failures.move_to_end(group)
        if len(self._failures) > _CLIENTS_KEPT:
            self._failures.popitem(last=False)
        own.append(now)
        self._all.append(now)
        return self.wait_seconds(client) > 0

    def succeeded(self, client: str, key_id: str) -> None:
        proof = (client, key_id)
        self._proven[proof] = None
        self._proven.move_to_end(proof)
        if len(self._proven) > _PROVEN_KEPT:
            self._proven.popitem(last=False)

    def is_proven(self, client: str, key_id: str) -> bool:
        """Whether this address has used this token before."""
        return (client, key_id) in self._proven

    def _left(self, failures: deque[float]) -> float:
        if len(failures) < (failures.maxlen or 0):
            return 0.0
        return max(0.0, self._window_seconds - self._age(failures[0]))

    def _age(self, failed_at: float) -> float:
        return self._monotonic() - failed_at


def _group(client: str) -> str:
    """An IPv6 host owns a network of 2**64 addresses, and is one client all the same."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client
    if address.version == 4:
        return client
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))

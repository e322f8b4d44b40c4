"""Wrong credentials, counted: which ones are still checked for whoever sends them, in memory that does not grow."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from reposync.api.hosts import client_network

FAILURES_A_CLIENT = 60
FAILURES_A_CLIENT_OF_USED = 600
FAILURES_ALTOGETHER = 600
WINDOW_SECONDS = 60.0

_CLIENTS_KEPT = 4_096
_WRONG_KEPT = 4_096

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Checked(Enum):
    """Against which credentials one that a client sends is compared."""

    ALL = "all"
    USED = "used"
    """Those that were right before, from any address."""
    NONE = "none"


class _Bucket:
    """Takes `size` at once, and gives them back evenly over `window_seconds`."""

    __slots__ = ("_at", "_level", "_rate", "_size")

    def __init__(self, size: int, window_seconds: float) -> None:
        self._size, self._rate = size, size / window_seconds
        self._level, self._at = 0.0, float("-inf")

    def wait_seconds(self, now: float) -> float:
        """Until it takes one more; 0: now."""
        return max(0.0, self._left(now) + 1 - self._size) / self._rate

    def add(self, now: float) -> None:
        self._level, self._at = min(self._left(now) + 1, self._size), now

    def _left(self, now: float) -> float:
        return max(0.0, self._level - (now - self._at) * self._rate)


@dataclass(slots=True)
class _Client:
    failures: _Bucket
    failures_of_used: _Bucket
    failed_at: float
    limited_at: float = float("-inf")


class Attempts:
    """How much guessing is allowed: two bounds, for one cannot do both things.

    Requests that are always checked are guesses that are always checked. So one bound alone either lets a client guess
    without end, or lets a stranger behind the same address (a proxy, a NAT) lock out those who have the token:

    - After `per_client` wrong credentials from an address, only those that were used before are compared, and anything
      else is refused alike, right or wrong. Whoever has a credential that this process knows goes on.
    - After `of_used` wrong ones nothing of that address is compared at all. This bounds the guesses at credentials in
      use; to lock out those who share an address takes more than that, without a pause.

    Each bound is for `window_seconds`, and comes back evenly. A credential that was found wrong is counted once,
    however often it comes: a program with an outdated token tells nobody anything. `altogether` counts all addresses,
    and concerns those alone that have failed themselves.
    """

    def __init__(
        self,
        *,
        per_client: int = FAILURES_A_CLIENT,
        of_used: int = FAILURES_A_CLIENT_OF_USED,
        altogether: int = FAILURES_ALTOGETHER,
        window_seconds: float = WINDOW_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_client, self._of_used = per_client, of_used
        self._window_seconds = window_seconds
        self._monotonic = monotonic
        self._all = _Bucket(altogether, window_seconds)
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        # Of configured credentials: no more than there are.
        self._used: set[str] = set()

    def checked(self, client: str) -> Checked:
        """What is compared with the next credential of this address."""
        found = self._clients.get(client_network(client))
        if found is None:
            return Checked.ALL
        now = self._monotonic()
        if found.failures_of_used.wait_seconds(now):
            return Checked.NONE
        return Checked.USED if self._wait_seconds(found, now) else Checked.ALL

    def wait_seconds(self, client: str) -> float:
        """How long until all credentials are compared again for this address; 0: they are."""
        found = self._clients.get(client_network(client))
        if found is None:
            return 0.0
        now = self._monotonic()
        return max(self._wait_seconds(found, now), found.failures_of_used.wait_seconds(now))

    def failed(self, client: str, digest: bytes) -> bool:
        """Count a credential of that digest, which was compared. Whether it reached the limit, once a window."""
        if digest in self._wrong:
            self._wrong.move_to_end(digest)
            return False
        _keep(self._wrong, digest, None, _WRONG_KEPT)
        now, network = self._monotonic(), client_network(client)
        found = self._clients.get(network)
        if found is None:
            window = self._window_seconds
            found = _Client(_Bucket(self._per_client, window), _Bucket(self._of_used, window), now)
        _keep(self._clients, network, found, _CLIENTS_KEPT)
        found.failed_at = now
        found.failures_of_used.add(now)
        if self._wait_seconds(found, now):
            return False
        found.failures.add(now)
        self._all.add(now)
        if not self._wait_seconds(found, now) or now - found.limited_at < self._window_seconds:
            return False
        found.limited_at = now
        return True

    def succeeded(self, key_id: str) -> None:
        self._used.add(key_id)

    def is_used(self, key_id: str) -> bool:
        return key_id in self._used

    def _wait_seconds(self, client: _Client, now: float) -> float:
        if now - client.failed_at >= self._window_seconds:
            return 0.0
        return max(client.failures.wait_seconds(now), self._all.wait_seconds(now))


def _keep(kept: OrderedDict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)

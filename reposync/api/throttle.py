"""Throttling of wrong credentials by address, in bounded memory."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from reposync.api.errors import TooManyAttempts
from reposync.api.hosts import client_network

log = logging.getLogger(__name__)

FAILURES_PER_CLIENT = 60
FAILURES_PER_CLIENT_OF_USED = 600
FAILURES_IN_TOTAL = 600
WINDOW_SECONDS = 60.0

_MAX_CLIENTS = 4_096
_MAX_WRONG = 4_096

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Checked(Enum):
    """Which credentials those of a client are compared with: all, or those that were used successfully before (from any
    address)."""

    ALL = "all"
    USED = "used"


class _Bucket:
    """A leaky bucket: takes `size` at once, and drains evenly over `window_seconds`."""

    __slots__ = ("_at", "_level", "_rate", "_size")

    def __init__(self, size: int, window_seconds: float) -> None:
        self._size, self._rate = size, size / window_seconds
        self._level, self._at = 0.0, float("-inf")

    def wait_seconds(self, now: float) -> float:
        """Until it takes one more; 0 if it does now."""
        return max(0.0, self._left(now) + 1 - self._size) / self._rate

    def add(self, now: float) -> None:
        self._level, self._at = min(self._left(now) + 1, self._size), now

    def _left(self, now: float) -> float:
        return max(0.0, self._level - (now - self._at) * self._rate)


@dataclass(slots=True)
class _Client:
    failures: _Bucket
    failures_of_used: _Bucket
    failed_at: float = float("-inf")
    limited_at: float = float("-inf")


class Throttle:
    """Two limits on guessing, because one cannot do both.

    If every request of a client is checked, every guess is checked. With one limit, either a client can guess without
    end, or a stranger behind the same address (a proxy, NAT) can lock out those who have a token:

    - After `per_client` wrong credentials from an address, its credentials are compared only with those that were used
      before; anything else is refused, right or wrong. Clients with a credential that this process knows are let in.
    - After `of_used` wrong ones, nothing from that address is compared. This limits guesses of credentials in use; to
      lock out others behind the address takes more guesses than that, without a pause.

    Each limit is for `window_seconds` and recovers evenly. A wrong credential counts once, however often it is sent: a
    program with an outdated token learns nothing. `in_total` counts all addresses, and applies only to those that have
    failed themselves.
    """

    def __init__(
        self,
        *,
        per_client: int = FAILURES_PER_CLIENT,
        of_used: int = FAILURES_PER_CLIENT_OF_USED,
        in_total: int = FAILURES_IN_TOTAL,
        window_seconds: float = WINDOW_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_client, self._of_used, self._window_seconds = per_client, of_used, window_seconds
        self._monotonic = monotonic
        self._all = _Bucket(in_total, window_seconds)
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        # A subset of the configured credentials, so it is bounded.
        self._used: set[str] = set()

    def admit(self, client: str) -> Checked:
        """Which credentials the next one from this address is compared with. Raises TooManyAttempts if none."""
        of_all, of_used = self._waits(client)
        if of_used:
            raise self._too_many(client)
        return Checked.USED if of_all else Checked.ALL

    def is_compared(self, key_id: str, checked: Checked) -> bool:
        return checked is Checked.ALL or key_id in self._used

    def succeeded(self, key_id: str) -> None:
        self._used.add(key_id)

    def failed(self, client: str, digest: bytes, checked: Checked) -> None:
        """Count a wrong credential with that digest. Raises TooManyAttempts if it was not compared with all: then right
        and wrong ones get the same response."""
        if digest in self._wrong:
            self._wrong.move_to_end(digest)
        else:
            _keep(self._wrong, digest, None, _MAX_WRONG)
            self._count(client)
        if checked is not Checked.ALL:
            raise self._too_many(client)

    def _count(self, client: str) -> None:
        now, network, window = self._monotonic(), client_network(client), self._window_seconds
        found = self._clients.get(network) or _Client(_Bucket(self._per_client, window), _Bucket(self._of_used, window))
        _keep(self._clients, network, found, _MAX_CLIENTS)
        found.failed_at = now
        found.failures_of_used.add(now)
        if self._waits(client)[0]:
            return
        found.failures.add(now)
        self._all.add(now)
        if self._waits(client)[0] and now - found.limited_at >= window:
            found.limited_at = now
            log.warning("too many wrong tokens", extra={"client": client})

    def _too_many(self, client: str) -> TooManyAttempts:
        return TooManyAttempts(max(self._waits(client)))

    def _waits(self, client: str) -> tuple[float, float]:
        """Seconds until the credentials of this address are compared with all, and with those in use."""
        found, now = self._clients.get(client_network(client)), self._monotonic()
        if found is None:
            return 0.0, 0.0
        of_used = found.failures_of_used.wait_seconds(now)
        if now - found.failed_at >= self._window_seconds:
            return 0.0, of_used
        return max(found.failures.wait_seconds(now), self._all.wait_seconds(now)), of_used


def _keep(kept: OrderedDict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)

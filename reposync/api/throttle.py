"""Throttling of wrong credentials by address, in bounded memory."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from reposync.api.errors import TooManyAttempts
from reposync.api.hosts import client_network

log = logging.getLogger(__name__)

MAX_FAILURES = 600
WINDOW_SECONDS = 60.0
_MAX_KEPT = 4_096

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Throttle:
    """After `max_failures` wrong credentials from an address, none from it is compared, right or wrong, until the
    window is over. Ten a second reveal nothing about secrets of 16 characters, and fewer would let a stranger behind
    the same proxy or NAT lock out those who have a token.

    A wrong credential counts once, however often it is sent: a program with an outdated token learns nothing.
    """

    def __init__(self, *, max_failures: int = MAX_FAILURES, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._max_failures, self._monotonic = max_failures, monotonic
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """By network: the end of the window, and how many there were in it."""
        self._wrong: OrderedDict[bytes, None] = OrderedDict()

    def admit(self, client: str) -> None:
        """Raises TooManyAttempts if no credential from this address is compared at the moment."""
        ends_at, count = self._failures.get(client_network(client), (0.0, 0))
        if count >= self._max_failures and (left_seconds := ends_at - self._monotonic()) > 0:
            raise TooManyAttempts(left_seconds)

    def failed(self, client: str, digest: bytes) -> None:
        """Count a wrong credential with that digest."""
        is_repeated = digest in self._wrong
        _keep(self._wrong, digest, None)
        if is_repeated:
            return
        network, now = client_network(client), self._monotonic()
        ends_at, count = self._failures.get(network, (0.0, 0))
        if ends_at <= now:
            ends_at, count = now + WINDOW_SECONDS, 0
        _keep(self._failures, network, (ends_at, count + 1))
        if count + 1 == self._max_failures:
            log.warning("too many wrong tokens", extra={"client": client})


def _keep(kept: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _MAX_KEPT:
        kept.popitem(last=False)

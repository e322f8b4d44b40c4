"""Tokens that nobody is known by: what one client, and all together, may cost GitLab, or the database, with them."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from reposync.errors import StoreUnavailable, TooManyUnknownTokens

MAX_QUESTIONS = 4
"""First questions about a token at a time, in one daemon."""
MAX_WAITING = 200
"""A daemon that has just started knows nobody. These take GitLab seconds."""
REFUSED_PER_MINUTE = 30
"""The refusals that one client may have. A token that turns out to be good does not count."""
MAX_REMEMBERED = 10_000
"""Refused tokens, and clients."""


@dataclass(slots=True)
class _Account:
    """`spent` falls by REFUSED_PER_MINUTE a minute."""

    spent: float
    at: float

    def check(self) -> None:
        """Raises TooManyUnknownTokens."""
        if self.spent + 1 > REFUSED_PER_MINUTE:
            wait_seconds = (self.spent + 1 - REFUSED_PER_MINUTE) * 60 / REFUSED_PER_MINUTE
            raise _too_many("This client has sent too many tokens that are not valid.", wait_seconds)


class Strangers:
    def __init__(self, elapsed: Callable[[], float], *, refused_seconds: float) -> None:
        """`refused_seconds`: for how long a refused token is refused without a question."""
        self._elapsed = elapsed
        self._refused_seconds = refused_seconds
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._slots = asyncio.Semaphore(MAX_QUESTIONS)
        self._waiting = 0

    def is_refused(self, identity: bytes) -> bool:
        """Whether the token was refused a moment ago."""
        refused_at = self._refused.get(identity)
        return refused_at is not None and self._elapsed() - refused_at < self._refused_seconds

    def refuse(self, identity: bytes) -> None:
        self._refused[identity] = self._elapsed()
        self._refused.move_to_end(identity)
        _shorten(self._refused)

    @asynccontextmanager
    async def asking(self, address: str) -> AsyncGenerator[None, None]:
        """While it is asked whose a token of this client is. Raises TooManyUnknownTokens."""
        network = _network(address)
        self._account(network).check()
        if self._waiting >= MAX_WAITING:
            raise _too_many("Too many tokens that nobody knows yet are being checked.", 1.0)
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            # Others of this client may have been refused meanwhile.
            self._account(network).check()
            try:
                yield
            except StoreUnavailable:
                raise
            except Exception:
                # Also if GitLab does not answer: it must not be asked more often then.
                self._account(network).spent += 1
                raise
        finally:
            self._slots.release()

    def _account(self, network: str) -> _Account:
        now = self._elapsed()
        account = self._accounts.setdefault(network, _Account(0.0, now))
        self._accounts.move_to_end(network)
        account.spent = max(0.0, account.spent - (now - account.at) * REFUSED_PER_MINUTE / 60)
        account.at = now
        _shorten(self._accounts)
        return account


def _network(address: str) -> str:
    """A client with IPv6 has a network of 64 bits for itself."""
    with contextlib.suppress(ValueError):
        parsed = ipaddress.ip_address(address)
        if parsed.version == 6 and parsed.ipv4_mapped is None:
            return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address


def _shorten(remembered: OrderedDict[bytes, float] | OrderedDict[str, _Account]) -> None:
    while len(remembered) > MAX_REMEMBERED:
        remembered.popitem(last=False)


def _too_many(message: str, wait_seconds: float) -> TooManyUnknownTokens:
    return TooManyUnknownTokens(message, remedy="Try again later.", retry_after_seconds=wait_seconds)

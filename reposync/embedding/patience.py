"""When a refused request is tried again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, Self

from tenacity import RetryCallState

from reposync.errors import EmbeddingError

_FIRST_WAIT_SECONDS: Final = 2.0
_GROWTH: Final = 4.0
NOTICE_SECONDS: Final = 5.0
"""Whoever watches is told after so long what is waited for, and again as long as it is."""

Tell = Callable[[str | None], None]
"""What is waited for, `the embedding server at HOST: attempt 2 of 3`; None as soon as it is over. Called on the event
loop; must return at once."""


class Wait:
    """While it is entered, `tell` hears what `told` says. `attempt` is counted up by whoever makes them."""

    def __init__(self, tell: Tell | None, where: str, attempts: int) -> None:
        self.attempt = 0
        self._tell = tell
        self._where = where
        self._attempts = attempts
        self._reminding: asyncio.Task[None] | None = None
        self._told = False

    async def __aenter__(self) -> Self:
        if self._tell is not None:
            self._reminding = asyncio.create_task(self._remind(self._tell), name=f"waiting for {self._where}")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reminding is not None and self._tell is not None:
            self._reminding.cancel()
            if self._told:
                self._tell(None)

    async def _remind(self, tell: Tell) -> None:
        while True:
            await asyncio.sleep(NOTICE_SECONDS)
            at = f"attempt {self.attempt} of {self._attempts}" if self.attempt else "other requests are first"
            tell(f"{self._where}: {at}")
            self._told = True


class Transient(Exception):
    """Worth another try, perhaps after a while. `error` is what a person sees if none helps."""

    def __init__(self, error: EmbeddingError) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after = error.retry_after_seconds


class Cooldown:
    """A pause that one request was asked for and that the other requests to the same server keep too.

    Never longer than `longest_seconds`, whatever the server says: after that they ask for themselves.
    """

    def __init__(self, longest_seconds: float) -> None:
        self._longest_seconds = longest_seconds
        self._until = 0.0

    def asked(self, seconds: float) -> None:
        self._until = max(self._until, time.monotonic() + min(seconds, self._longest_seconds))

    async def over(self) -> None:
        while (remaining := self._until - time.monotonic()) > 0:  # noqa: ASYNC110 (another refusal may move it)
            await asyncio.sleep(remaining)

    def is_bearable(self, error: BaseException) -> bool:
        """Whether the request is to be tried again in a while that it may wait for."""
        return isinstance(error, Transient) and (error.retry_after or 0.0) <= self._longest_seconds

    def wait(self, state: RetryCallState) -> float:
        """Seconds before the next try: what Retry-After says and a little more, else four times as long each time."""
        failure = state.outcome.exception() if state.outcome is not None else None
        asked = failure.retry_after if isinstance(failure, Transient) else None
        if asked is not None:
            return asked + random.uniform(0, 0.1 + asked / 10)  # noqa: S311
        ceiling = min(self._longest_seconds, _FIRST_WAIT_SECONDS * _GROWTH ** (state.attempt_number - 1))
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311


def retry_after_seconds(header: str | None) -> float | None:
    """`Retry-After` as seconds from now; None where it is missing or unreadable. It is seconds or an HTTP date."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
        except ValueError:
            return None
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - time.time()
    return max(0.0, seconds) if seconds == seconds else None

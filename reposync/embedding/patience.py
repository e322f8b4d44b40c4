"""When a refused request is tried again."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from tenacity import RetryCallState

from reposync.errors import EmbeddingError

_FIRST_WAIT_SECONDS: Final = 0.5


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
        """Seconds before the next try: what Retry-After says and a little more, else doubling with jitter."""
        failure = state.outcome.exception() if state.outcome is not None else None
        asked = failure.retry_after if isinstance(failure, Transient) else None
        if asked is not None:
            return asked + random.uniform(0, 0.1 + asked / 10)  # noqa: S311
        ceiling = min(self._longest_seconds, _FIRST_WAIT_SECONDS * 2.0 ** (state.attempt_number - 1))
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

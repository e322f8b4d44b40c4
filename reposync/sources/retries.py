"""Repeating calls that failed for the moment: how often, how long, and what is said in the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from reposync.errors import SourceCorrupt, SourceUnavailable
from reposync.sources.spec import Patience, SourceObserver

T = TypeVar("T")

# Where a 429 names no time, this much more than after an error: asking again at once makes it worse.
RATE_LIMIT_FACTOR = 4


class TransientFailure(Exception):
    """A call failed in a way that may pass. `reason` completes "... failed: "."""

    def __init__(
        self,
        reason: str,
        *,
        rate_limited: bool = False,
        wait_seconds: float | None = None,
        overloaded: bool = False,
        corrupt: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.rate_limited = rate_limited
        self.wait_seconds = wait_seconds
        # The server was reached and gave up: asking for less at a time may work.
        self.overloaded = overloaded
        self.corrupt = corrupt


async def patiently(
    call: Callable[[], Awaitable[T]], patience: Patience, observer: SourceObserver | None, *, doing: str
) -> T:
    """Await `call`, again after a TransientFailure: errors at most `patience.attempts` times, with jitter; rate limits
    as long as the server asks, but never longer than `max_wait_seconds` in total.

    Raises SourceUnavailable (SourceCorrupt where the answers were damaged) with the last reason, and with what the
    server asks for; `doing` says what was tried, as in "Reading the tree of group/project".
    """
    backoff = wait_random_exponential(multiplier=patience.first_delay_seconds, max=patience.max_delay_seconds)
    errors = 0

    async def attempt() -> T:  # tenacity awaits coroutine functions only
        return await call()

    def wait(state: RetryCallState) -> float:
        failure = _failure(state)
        if failure is not None and failure.wait_seconds is not None:
            return failure.wait_seconds
        factor = RATE_LIMIT_FACTOR if failure is not None and failure.rate_limited else 1
        return max(backoff(state), patience.first_delay_seconds / 2) * factor

    def stop(state: RetryCallState) -> bool:
        nonlocal errors
        failure = _failure(state)
        if failure is not None and not failure.rate_limited:
            errors += 1
        return errors >= patience.attempts or state.idle_for + state.upcoming_sleep > patience.max_wait_seconds

    def before_sleep(state: RetryCallState) -> None:
        failure = _failure(state)
        if observer is not None and failure is not None and failure.rate_limited:
            observer.rate_limited(state.upcoming_sleep)

    def give_up(state: RetryCallState) -> T:
        failure = _failure(state)
        if failure is None:
            raise SourceUnavailable(f"{doing} failed.")
        raise _final(failure, state, patience, doing) from failure

    retrying = AsyncRetrying(
        sleep=asyncio.sleep,
        retry=retry_if_exception_type(TransientFailure),
        wait=wait,
        stop=stop,
        before_sleep=before_sleep,
        retry_error_callback=give_up,
    )
    return await retrying(attempt)


def retry_after_seconds(header: str | None, reset: str | None = None) -> float | None:
    """The wait that `Retry-After` (seconds or an HTTP date) or `RateLimit-Reset` (a Unix time) asks for, in seconds;
    None where neither says anything sensible."""
    if header is not None:
        text = header.strip()
        if text.isascii() and text.isdigit():
            return float(text[:9])
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
        except (ValueError, TypeError, OverflowError):
            pass
    if reset is not None and reset.strip().isascii() and reset.strip().isdigit():
        return max(0.0, float(reset.strip()[:12]) - time.time())
    return None


def _failure(state: RetryCallState) -> TransientFailure | None:
    error = state.outcome.exception() if state.outcome is not None else None
    return error if isinstance(error, TransientFailure) else None


def _final(
    failure: TransientFailure, state: RetryCallState, patience: Patience, doing: str
) -> SourceUnavailable | SourceCorrupt:
    if failure.rate_limited:
        wanted = f"it asks to wait another {state.upcoming_sleep:.0f} s"
        return SourceUnavailable(
            f"{doing} was refused by the server's rate limit: after {state.idle_for:.0f} s of waiting {wanted}, "
            f"and a call waits {patience.max_wait_seconds:.0f} s at most.",
            remedy="The next run tries again; if this goes on, sync less often or ask for a higher limit.",
            retry_after_seconds=failure.wait_seconds,
        )
    times = f" {state.attempt_number} times" if state.attempt_number > 1 else ""
    if failure.corrupt:
        return SourceCorrupt(f"{doing} failed{times}: {failure.reason}.")
    asked = "" if failure.wait_seconds is None else f" The server asks to wait {failure.wait_seconds:.0f} s."
    return SourceUnavailable(
        f"{doing} failed{times}: {failure.reason}.{asked}",
        remedy="The next run tries again.",
        retry_after_seconds=failure.wait_seconds,
    )

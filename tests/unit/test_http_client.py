"""Retries of the HTTP client, and the waits that servers request."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.errors import RepoSyncError, SourceGone, SourceUnavailable
from reposync.http_client import HttpClient, TransientFailure, retry_after_seconds
from reposync.outgoing import RetryPolicy
from reposync.sources.smart_http import SOURCE_ERRORS

QUICK = RetryPolicy(first_delay_seconds=0.001, max_delay_seconds=0.002, max_wait_seconds=1)


class Watched:
    """Keeps the waits that an observer is told of."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def request(self, kind: str) -> None: ...

    def rate_limited(self, seconds: float) -> None:
        self.waits.append(seconds)


class Failing:
    """A call that fails `times`, or always."""

    def __init__(self, failure: Exception, times: int | None = None) -> None:
        self.calls = 0
        self._failure = failure
        self._times = times

    async def __call__(self) -> str:
        self.calls += 1
        if self._times is None or self.calls <= self._times:
            raise self._failure
        return "answer"


def client(observer: Watched | None = None) -> HttpClient:
    return HttpClient("https://x", SOURCE_ERRORS, policy=QUICK, observer=observer)


def limited(seconds: float) -> TransientFailure:
    return TransientFailure("the rate limit is reached", rate_limited=True, wait_seconds=seconds)


def test_retry_after_is_understood_as_seconds_as_a_date_and_from_the_reset_time() -> None:
    assert retry_after_seconds("7") == 7
    assert 50 < (retry_after_seconds(formatdate(time.time() + 60, usegmt=True)) or 0) <= 60
    assert retry_after_seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert 50 < (retry_after_seconds(None, str(int(time.time()) + 60)) or 0) <= 60


@pytest.mark.parametrize("ahead_seconds", [-86_400, 86_400])
def test_a_server_whose_clock_is_a_day_off_is_waited_for_as_long_as_it_means(ahead_seconds: int) -> None:
    its_time = int(time.time()) + ahead_seconds
    date, later = formatdate(its_time, usegmt=True), formatdate(its_time + 60, usegmt=True)

    assert retry_after_seconds(later, date=date) == retry_after_seconds(None, str(its_time + 60), date) == 60


_HEADERS = st.one_of(st.none(), st.text(max_size=40))


@given(_HEADERS, _HEADERS, _HEADERS)
def test_an_unreadable_retry_after_is_never_an_error(header: str | None, reset: str | None, date: str | None) -> None:
    wait = retry_after_seconds(header, reset, date)
    assert wait is None or wait >= 0


@pytest.mark.parametrize(
    ("failure", "error", "message", "calls"),
    [
        (limited(3600), SourceUnavailable, "asks to wait 3600 s", 1),
        (TransientFailure("it said 503", overloaded=True, wait_seconds=3600), SourceUnavailable, "503.*wait 3600 s", 1),
        (TransientFailure("it said 502"), SourceUnavailable, r"Reading failed 4 times: it said 502\.", 4),
        (SourceGone("gone"), SourceGone, "gone", 1),
    ],
)
async def test_a_failure_that_may_pass_soon_is_repeated_a_bounded_number_of_times(
    failure: Exception, error: type[RepoSyncError], message: str, calls: int
) -> None:
    watched, call = Watched(), Failing(failure)
    with pytest.raises(error, match=message) as raised:
        await client(watched).retry(call, doing="Reading")
    assert (call.calls, watched.waits) == (calls, [])
    assert raised.value.retry_after_seconds == getattr(failure, "wait_seconds", None)


async def test_a_wait_of_ten_years_is_one_of_an_hour() -> None:
    with pytest.raises(SourceUnavailable, match="asks to wait 315360000 s") as raised:
        await client().retry(Failing(limited(315_360_000)), doing="Reading")
    assert raised.value.retry_after_seconds == 3600


async def test_an_answer_that_used_up_the_time_of_its_call_is_not_requested_again() -> None:
    call = Failing(TransientFailure("the answer did not end within 20 s", overloaded=True, endless=True))
    with pytest.raises(SourceUnavailable, match="Reading failed: the answer did not end within 20 s"):
        await client().retry(call, doing="Reading")
    assert call.calls == 1


async def test_a_rate_limit_that_never_ends_ends_the_call_after_the_longest_wait() -> None:
    watched = Watched()
    call = Failing(TransientFailure("the rate limit is reached", rate_limited=True))

    with pytest.raises(SourceUnavailable, match="rate limit"):
        await client(watched).retry(call, doing="Reading", policy=RetryPolicy(4, 0.01, 0.02, max_wait_seconds=0.3))

    assert 0 < sum(watched.waits) <= 0.3


@pytest.mark.parametrize(("wait_seconds", "is_kept"), [(0.3, True), (3600, False)])
async def test_a_bearable_pause_is_kept_by_all_calls_of_a_client(wait_seconds: float, is_kept: bool) -> None:
    shared, first, second = client(), Failing(limited(wait_seconds), times=1), Failing(limited(0), times=0)
    started = time.monotonic()
    asking = asyncio.create_task(shared.retry(first, doing="Reading"))
    while not first.calls:
        await asyncio.sleep(0)

    assert await shared.retry(second, doing="Reading") == "answer"

    assert (time.monotonic() - started >= wait_seconds) == is_kept
    await asyncio.wait({asking})
    assert (asking.exception() is None) == is_kept


async def test_short_rate_limits_are_waited_for_more_often_than_errors_are_repeated() -> None:
    watched = Watched()

    assert await client(watched).retry(Failing(limited(0.01), times=9), doing="Reading") == "answer"

    assert watched.waits == [0.01] * 9


@pytest.mark.parametrize("wait_seconds", [0.0, None, 0.0001])
async def test_a_rate_limit_without_a_wait_is_met_a_bounded_number_of_times_with_pauses(
    wait_seconds: float | None,
) -> None:
    watched = Watched()
    call = Failing(TransientFailure("the rate limit is reached", rate_limited=True, wait_seconds=wait_seconds))

    with pytest.raises(SourceUnavailable, match="Reading failed 16 times: the rate limit is reached"):
        await client(watched).retry(call, doing="Reading")

    assert call.calls == 16
    assert min(watched.waits) >= QUICK.first_delay_seconds / 2

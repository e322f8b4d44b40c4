"""The HTTP client for GitLab, git and embedding servers: one set of bounds, redirects, retries and error messages.

httpx with the rules of `outgoing`. Every failure becomes a TransientFailure, which `retry` repeats, an HttpRefused, or
a final error of the kinds that the owner names.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import urljoin

import httpx

from reposync import __version__
from reposync.errors import NEXT_RUN, RepoSyncError
from reposync.outgoing import (
    LONGEST_WAIT_SECONDS,
    OtherServer,
    RequestObserver,
    RetryPolicy,
    Timeouts,
    TooLarge,
    client_options,
    origin,
    printable,
    same_origin,
)

T = TypeVar("T")

_CERTIFICATE = re.compile(r"certificate verify failed: (.+?)\.?(?: \(_ssl|$)")
MAX_REDIRECTS = 5
MAX_ERROR_BYTES = 64 * 1024
TOTAL_FACTOR = 10
"""A body must be complete within so many read time-outs. What sends a byte now and then never does: it costs this time
once, and no further attempt."""
DECOMPRESSED_FREE_BYTES = 16 * 1024 * 1024
MAX_DECOMPRESSION_RATIO = 100
"""Checked above DECOMPRESSED_FREE_BYTES. JSON listings decompress to ten times their size, gzipped zeros to 1,000."""
RATE_LIMIT_FACTOR = 4
"""If a 429 names no wait, the delay is so many times that of an error: retrying soon makes it worse. And so many times
as many attempts are made: a server that limits its rate works."""

CONNECTION_LIMITS = httpx.Limits(max_connections=32, max_keepalive_connections=16, keepalive_expiry=60)
"""httpx keeps idle connections for 5 s; a new one for each request to Qdrant costs more than the request."""


@dataclass(slots=True, eq=False)
class TransientFailure(Exception):
    """A call failed in a way that may pass. `reason` completes "... failed: ". `overloaded`: the server was reached and
    gave up, so that a smaller request may work; `corrupt`: it answered, but not what it should; `endless`: the answer
    used up the time of its call; `status` and `body`: of an error status."""

    reason: str
    rate_limited: bool = False
    wait_seconds: float | None = None
    overloaded: bool = False
    corrupt: bool = False
    endless: bool = False
    status: int | None = None
    body: bytes = b""

    def __str__(self) -> str:
        return self.reason


class HttpRefused(Exception):
    """The server answered with a status that a retry does not change. `text`: the body as one printable line."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.body = body
        self.text = printable(body)


@dataclass(frozen=True, slots=True)
class ErrorKinds:
    """The errors that an HttpClient raises: final, unavailable for now, and damaged answers."""

    final: type[RepoSyncError]
    unavailable: type[RepoSyncError]
    corrupt: type[RepoSyncError]


@dataclass(slots=True)
class HttpClient:
    """Requests to the server of `url`, called `name` in messages. Opens no connection before the first request."""

    url: str
    errors: ErrorKinds
    name: str = ""
    ca_file: Path | None = None
    ca_setting: str = "ca_file"
    timeouts: Timeouts = field(default_factory=Timeouts)
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    observer: RequestObserver | None = None
    headers: dict[str, str] = field(default_factory=dict)
    auth: httpx.Auth | None = None
    transport: httpx.AsyncBaseTransport | None = None
    """Replaces the connections that `ca_file` and the environment describe."""
    _client: httpx.AsyncClient | None = field(default=None, init=False)
    _connecting: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _paused_until: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.name = self.name or origin(self.url)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        kind: str = "",
        headers: dict[str, str] | None = None,
        content: bytes | None = None,
        follow_redirects: bool = True,
        within_seconds: float | None = None,
        body_seconds: float | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """The response to a request, status 2xx; read its body in this context, with `body` or `read`.

        Redirects of GET and HEAD are followed on the same server. `within_seconds` bounds head and body together,
        `body_seconds` the body alone (TOTAL_FACTOR). Raises TransientFailure, HttpRefused, OtherServer, and the final
        error.
        """
        most_seconds = within_seconds or self.timeouts.connect_seconds + 2 * self.timeouts.read_seconds
        try:
            # The time-outs of httpx are between two bytes.
            async with asyncio.timeout(most_seconds) as limit:
                stack = contextlib.AsyncExitStack()
                try:
                    response = await self._send(stack, method, url, kind, headers or {}, content, follow_redirects)
                    if within_seconds is None:
                        most_seconds = body_seconds or TOTAL_FACTOR * self.timeouts.read_seconds
                        limit.reschedule(asyncio.get_running_loop().time() + most_seconds)
                    if not response.is_success:
                        await self._refuse(response)
                    yield response
                finally:
                    # A cancellation while httpx closes the response would leave its connection open.
                    await asyncio.shield(stack.aclose())
        except TooLarge as error:
            raise self.errors.final(f"{self.name} sends more than is accepted: {error}.") from error
        except (httpx.HTTPError, TimeoutError) as error:
            if limit.expired() and within_seconds is None:
                what = f"the answer did not end within {most_seconds:g} s"
                raise TransientFailure(what, overloaded=True, endless=True) from error
            raise self._broken(error) from error

    async def body(self, response: httpx.Response, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """The decompressed body in pieces, within `stream`. A piece may be 64 MB, of 64 kB that were received."""
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "deflate"):
            raise httpx.DecodingError(f"unknown encoding {encoding[:30]!r}", request=response.request)
        size_bytes = 0
        async for piece in response.aiter_bytes():
            size_bytes += len(piece)
            received_bytes = response.num_bytes_downloaded
            if size_bytes > max(DECOMPRESSED_FREE_BYTES, MAX_DECOMPRESSION_RATIO * received_bytes):
                raise TooLarge(f"{received_bytes:,} bytes that decompress to more than {size_bytes:,}")
            if size_bytes > max_bytes:
                raise TooLarge(f"more than {max_bytes:,} bytes")
            yield piece

    async def read(self, response: httpx.Response, max_bytes: int) -> bytes:
        """The whole body, within `stream`."""
        received = bytearray()
        async for piece in self.body(response, max_bytes):
            received += piece
        return bytes(received)

    async def retry(
        self,
        call: Callable[[], Awaitable[T]],
        *,
        doing: str,
        policy: RetryPolicy | None = None,
        on_attempt: Callable[[int], None] = lambda attempt: None,
        remedy: str | None = NEXT_RUN,
    ) -> T:
        """The result of `call`, repeated after a TransientFailure. A wait that a server requests is kept by all calls,
        which do not continue at the same moment.

        Raises the unavailable (or corrupt) error with the last reason; `doing` says what was tried, as in "Reading the
        tree of group/project".
        """
        policy = policy or self.policy
        waited_seconds, errors, attempt = 0.0, 0, 0
        try:
            async with asyncio.timeout(policy.within_seconds) as limit:
                while True:
                    attempt += 1
                    on_attempt(attempt)
                    while (pause := self._paused_until - time.monotonic()) > 0:  # noqa: ASYNC110 - others extend it
                        await asyncio.sleep(_spread(pause))
                    try:
                        return await call()
                    except TransientFailure as failure:
                        errors += not failure.rate_limited
                        delay = _delay_seconds(policy, attempt, failure)
                        is_bearable = delay <= policy.longest_wait_seconds
                        if failure.wait_seconds is not None and is_bearable:
                            self._paused_until = max(self._paused_until, time.monotonic() + delay)
                        is_last = errors >= policy.attempts or attempt >= RATE_LIMIT_FACTOR * policy.attempts
                        is_over = is_last or waited_seconds + delay > policy.max_wait_seconds
                        if is_over or failure.endless or not is_bearable:
                            times = f" {attempt} times" if attempt > 1 else ""
                            raise self._given_up(failure, f"{doing} failed{times}", remedy) from failure
                        if failure.rate_limited and self.observer is not None:
                            self.observer.rate_limited(delay)
                        waited_seconds += delay
                        await asyncio.sleep(_spread(delay))
        except TimeoutError as error:
            if not limit.expired():
                raise
            text = f"{doing} failed: no answer within {policy.within_seconds:g} s."
            raise self.errors.unavailable(text, remedy=remedy) from error

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _send(
        self,
        stack: contextlib.AsyncExitStack,
        method: str,
        url: str,
        kind: str,
        headers: dict[str, str],
        content: bytes | None,
        follow_redirects: bool,
    ) -> httpx.Response:
        client = await self._connected()
        previous, leads_to = self.url, "names an address on"
        for _ in range(MAX_REDIRECTS + 1):
            if not same_origin(previous, url):
                raise OtherServer(
                    f"{self.name} {leads_to} a different server, {origin(url)}; nothing was sent there.",
                    remedy="If that is the right one, write its address into the configuration.",
                )
            if self.observer is not None:
                self.observer.request(kind)
            request = client.stream(method, url, content=content, headers=headers, auth=self.auth)
            response = await stack.enter_async_context(request)
            if not (follow_redirects and response.has_redirect_location and method in ("GET", "HEAD")):
                return response
            previous, url, leads_to = url, urljoin(url, response.headers["Location"]), "redirects to"
        raise self.errors.final(f"{self.name} redirects in a circle.", remedy="Check its URL.")

    async def _connected(self) -> httpx.AsyncClient:
        async with self._connecting:
            if self._client is None:
                if self.transport is None:
                    options = await asyncio.to_thread(client_options, self.url, self.ca_file, limits=CONNECTION_LIMITS)
                else:
                    options = {"transport": self.transport, "trust_env": False}
                self._client = httpx.AsyncClient(
                    headers={"User-Agent": f"reposync/{__version__}"} | self.headers,
                    timeout=httpx.Timeout(self.timeouts.read_seconds, connect=self.timeouts.connect_seconds),
                    follow_redirects=False,
                    **options,
                )
            return self._client

    async def _refuse(self, response: httpx.Response) -> None:
        text = b""
        with contextlib.suppress(TooLarge):
            async for piece in self.body(response, MAX_ERROR_BYTES):
                text += piece
        status, headers = response.status_code, response.headers
        if status == 429:
            wait = retry_after_seconds(headers.get("Retry-After"), headers.get("RateLimit-Reset"), headers.get("Date"))
            raise TransientFailure("the rate limit is reached (429)", True, wait, status=status, body=text)
        if status >= 500 or status in (408, 425):
            wait = retry_after_seconds(headers.get("Retry-After"), date=headers.get("Date"))
            reason = f"the server answered {status}"
            raise TransientFailure(reason, wait_seconds=wait, overloaded=True, status=status, body=text)
        raise HttpRefused(status, text)

    def _broken(self, error: Exception) -> Exception:
        """The failure of a request that got no whole answer, or an error if a retry does not help."""
        if rejected := _CERTIFICATE.search(str(error)):
            return self.errors.final(
                f"The certificate of {self.name} is not trusted: {rejected[1]}.",
                remedy=f"If its authority is your own, name its certificate as {self.ca_setting}.",
            )
        is_connected = not isinstance(error, httpx.ConnectTimeout | httpx.ConnectError | httpx.ProxyError)
        if isinstance(error, httpx.TimeoutException | TimeoutError):
            what = "no answer within the time-out" if is_connected else "no connection within the time-out"
            return TransientFailure(what, overloaded=is_connected)
        if isinstance(error, httpx.DecodingError):
            return TransientFailure(f"the answer cannot be decoded ({error})", corrupt=True)
        what = "the connection broke" if is_connected else "the connection failed"
        return TransientFailure(f"{what} ({error or type(error).__name__})", overloaded=is_connected)

    def _given_up(self, failure: TransientFailure, tried: str, remedy: str | None) -> RepoSyncError:
        if failure.corrupt:
            return self.errors.corrupt(f"{tried}: {failure.reason}.")
        wait = "" if failure.wait_seconds is None else f" The server asks to wait {failure.wait_seconds:.0f} s."
        text = f"{tried}: {failure.reason}.{wait}"
        wait_seconds = None if failure.wait_seconds is None else min(failure.wait_seconds, LONGEST_WAIT_SECONDS)
        return self.errors.unavailable(text, remedy=remedy, retry_after_seconds=wait_seconds)


def _delay_seconds(policy: RetryPolicy, attempt: int, failure: TransientFailure) -> float:
    """Doubled each time, with jitter; what the server requests if that is more."""
    ceiling = min(policy.max_delay_seconds, policy.first_delay_seconds * 2.0 ** min(attempt - 1, 30))
    delay = random.uniform(ceiling / 2, ceiling)  # noqa: S311 - spreads load
    if failure.wait_seconds is not None:
        return max(delay, failure.wait_seconds)
    return min(delay * RATE_LIMIT_FACTOR, policy.longest_wait_seconds) if failure.rate_limited else delay


def _spread(seconds: float) -> float:
    return seconds + random.uniform(0, seconds / 10)  # noqa: S311 - spreads load


def retry_after_seconds(header: str | None, reset: str | None = None, date: str | None = None) -> float | None:
    """The wait that `Retry-After` (seconds or an HTTP date) or `RateLimit-Reset` (Unix time) requests, if any. Times
    are compared with the answer's `Date`, because the clocks of the server and of this machine may differ."""
    now = _moment(date) or time.time()
    if header is not None:
        text = header.strip()
        if text.isascii() and text.replace(".", "", 1).isdigit():
            return float(text[:9])
        if (moment := _moment(text)) is not None:
            return max(0.0, moment - now)
    if reset is not None and reset.strip().isascii() and reset.strip().isdigit():
        return max(0.0, float(reset.strip()[:12]) - now)
    return None


def _moment(date: str | None) -> float | None:
    """The Unix time of an HTTP date."""
    if date is not None:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            return parsedate_to_datetime(date.strip()).timestamp()
    return None

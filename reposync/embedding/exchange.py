"""One request to an embedding server: its turn, its retries, who is told that it waits, and what a refusal means."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import orjson

from reposync.config.sections import EmbeddingConfig
from reposync.embedding.port import OnWait
from reposync.embedding.settings import TextKind
from reposync.errors import EmbeddingAnswerUnreadable, EmbeddingError, EmbeddingInputRefused, EmbeddingUnavailable
from reposync.http_client import ErrorKinds, HttpClient, HttpRefused, TransientFailure
from reposync.outgoing import IN_PLACE_SECONDS, RetryPolicy, Timeouts, validate_transport

DEFAULT_CONCURRENCY: Final = 4
TIMEOUT_SECONDS, ATTEMPTS = 90.0, 3
"""4.5 minutes in all: a batch takes a CPU half a minute."""
NOTICE_SECONDS: Final = 5.0
"""Waits are reported after so long, and again every so often."""
MAX_ANSWER_BYTES: Final = 64 << 20
_FIRST_DELAY_SECONDS: Final = 2.0
_QUERY_ATTEMPTS, _QUERY_SECONDS = 2, 15.0
_too_large = re.compile(
    r"too (?:long|large|many tokens)|(?:context|input|sequence)[ _](?:length|size|window)"
    r"|max\w*[ _](?:context|model|input|sequence|tokens)|less than \d+ tokens|exceed\w* .*(?:context|token)",
    re.IGNORECASE,
)


class TooLarge(Exception):
    """The texts of the request are too long, or too many."""


class NotFound(EmbeddingError):
    """The server does not know the path or the model."""


@dataclass(frozen=True, slots=True)
class Priority:
    """Queries do not queue behind the batches of a sync, and give up sooner: a person waits for the answer."""

    kind: TextKind
    slots: asyncio.Semaphore
    retry: RetryPolicy
    timeout_seconds: float
    on_wait: OnWait | None = None

    @classmethod
    def of(cls, config: EmbeddingConfig, kind: TextKind) -> Priority:
        attempts = config.attempts or ATTEMPTS
        timeout_seconds = config.timeout_seconds or TIMEOUT_SECONDS
        if kind == "query":
            attempts, timeout_seconds = min(_QUERY_ATTEMPTS, attempts), min(_QUERY_SECONDS, timeout_seconds)
        retry = RetryPolicy(
            attempts=attempts,
            first_delay_seconds=_FIRST_DELAY_SECONDS,
            max_delay_seconds=IN_PLACE_SECONDS,
            longest_wait_seconds=IN_PLACE_SECONDS,
            max_wait_seconds=attempts * IN_PLACE_SECONDS,
            within_seconds=attempts * timeout_seconds,
        )
        return cls(kind, asyncio.Semaphore(config.concurrency or DEFAULT_CONCURRENCY), retry, timeout_seconds)


class EmbeddingServer:
    """The server that takes texts at `url`."""

    def __init__(self, config: EmbeddingConfig, url: str) -> None:
        self._api_key = config.api_key.get_secret_value() if config.api_key is not None else ""
        self._host = urlsplit(url).netloc
        self.url = url
        headers = {"Accept": "application/json", "Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        validate_transport(url, config.ca_file)
        self._http = HttpClient(
            url,
            ErrorKinds(EmbeddingError, EmbeddingUnavailable, EmbeddingAnswerUnreadable),
            name=f"the embedding server at {self.url}",
            ca_file=config.ca_file,
            ca_setting="embedding.ca_file",
            timeouts=Timeouts(read_seconds=config.timeout_seconds or TIMEOUT_SECONDS),
            headers=headers,
        )

    async def close(self) -> None:
        await self._http.close()

    async def exchange(self, method: str, url: str, body: Callable[[], bytes], priority: Priority) -> bytes:
        """The body of a successful answer. `body` is called when it is sent: waiting batches cost no memory. Raises
        TooLarge, and subclasses of EmbeddingError."""

        async def once() -> bytes:
            request = self._http.stream(
                method, url, content=content, follow_redirects=False, within_seconds=priority.timeout_seconds
            )
            try:
                async with request as response:
                    return await self._http.read(response, MAX_ANSWER_BYTES)
            except HttpRefused as refused:
                raise self._refusal(refused.status, self._complaint(refused.body)) from refused
            except TransientFailure as failure:
                complaint = self._complaint(failure.body)
                if _too_large.search(complaint):
                    raise TooLarge(complaint) from failure
                failure.reason += complaint
                raise

        async with self._reported(priority) as attempts, priority.slots:
            content = body()
            return await self._http.retry(
                once,
                doing=f"A request to the embedding server at {self.url}",
                policy=priority.retry,
                on_attempt=attempts.append,
                remedy="Check embedding.url, and that the server runs and is not overloaded (lower "
                "embedding.concurrency or embedding.batch, or raise embedding.timeout_seconds).",
            )

    @asynccontextmanager
    async def _reported(self, priority: Priority) -> AsyncIterator[list[int]]:
        """Reports a wait that lasts, and None when it is over. Yields a list for the numbers of the attempts."""
        attempts: list[int] = []
        if (on_wait := priority.on_wait) is None:
            yield attempts
            return
        is_reported = False

        async def report() -> None:
            nonlocal is_reported
            while True:
                await asyncio.sleep(NOTICE_SECONDS)
                state = (
                    f"attempt {attempts[-1]} of {priority.retry.attempts}" if attempts else "other requests are first"
                )
                on_wait(f"the embedding server at {self._host}: {state}")
                is_reported = True

        reporting = asyncio.create_task(report(), name=f"waiting for {self._host}")
        try:
            yield attempts
        finally:
            reporting.cancel()
            if is_reported:
                on_wait(None)

    def _refusal(self, status: int, complaint: str) -> Exception:
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or (status >= 400 and _too_large.search(complaint)):
            return TooLarge(complaint)
        what = f"The embedding server at {self.url} answered {status}"
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):  # bodies quote parts of the key
            return EmbeddingError(f"{what}: it refuses the API key.", remedy="Check embedding.api_key.")
        if 300 <= status < 400:
            return EmbeddingError(
                f"{what}, a redirect, which is not followed.", remedy="Set embedding.url to the final address."
            )
        if status == HTTPStatus.NOT_FOUND:
            return NotFound(f"{what}{complaint}.", remedy="Check embedding.url and embedding.model.")
        return EmbeddingInputRefused(f"{what}{complaint}.")

    def _complaint(self, body: bytes) -> str:
        """The server's error message after a colon, if it has one. Not the body: some quote the input, or the key."""
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            return ""
        for key in ("error", "message", "detail"):
            if isinstance(document, dict) and key in document:
                document = document[key]
        sentence = " ".join(document.split()).rstrip(".") if isinstance(document, str) else ""
        shown = sentence.replace(self._api_key, "***") if self._api_key else sentence
        return f": {shown[:200]}" if shown else ""

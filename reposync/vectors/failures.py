"""What can go wrong with Qdrant, in words for a person; and trying again what may pass."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

import httpx
from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from reposync.errors import IndexAnswerUnreadable, IndexUnavailable, IndexUnsupported, VectorIndexError
from reposync.outgoing import certificate_reason, parse_json
from reposync.vectors.port import CollectionMissing

T = TypeVar("T")

_FIRST_WAIT_SECONDS = 0.2
_MAX_MESSAGE_CHARS = 500


class AlreadyExists(VectorIndexError):
    """409: somebody else made it first."""


@dataclass(frozen=True, slots=True)
class Patience:
    """`where` names the server or folder in messages; it holds no secret. `within_seconds`: how long a call may take
    with all its attempts; None: as long as these take."""

    where: str
    attempts: int
    longest_wait_seconds: float
    within_seconds: float | None = None

    async def call(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of `attempt`, tried again while Qdrant is unavailable. Every request of ours may be repeated.

        Raises VectorIndexError and its kinds.
        """
        try:
            async with asyncio.timeout(self.within_seconds) as bound:
                return await self._call(what, attempt)
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise IndexUnavailable(
                f"{self.where} did not answer within {self.within_seconds:.0f} s: could not {what}.",
                remedy="Its log, index/engine.log, may say why.",
            ) from error

    async def _call(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.attempts),
            wait=self._wait,
            retry=retry_if_exception(self._is_bearable),
            reraise=True,
        )
        async for each in retrying:
            with each:
                try:
                    return await attempt()
                except (ApiException, QdrantException, httpx.HTTPError, ValueError, RecursionError) as error:
                    raise self._failure(what, error) from error
        raise AssertionError("tenacity ends with a result or an exception")

    def _is_bearable(self, error: BaseException) -> bool:
        """Whether it may pass within a wait that is waited for."""
        return isinstance(error, IndexUnavailable) and (error.retry_after_seconds or 0.0) <= self.longest_wait_seconds

    def _wait(self, state: RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome else None
        asked = failure.retry_after_seconds if isinstance(failure, IndexUnavailable) else None
        return self.wait_seconds(state.attempt_number, asked)

    def wait_seconds(self, attempt: int, asked_seconds: float | None) -> float:
        """What the server asks for and a little more, else doubling with jitter; capped either way."""
        if asked_seconds is not None:
            asked = min(asked_seconds, self.longest_wait_seconds)
            return asked + random.uniform(0, 0.1 + asked / 10)  # noqa: S311 - spreads load
        ceiling = min(self.longest_wait_seconds, _FIRST_WAIT_SECONDS * 2.0 ** (attempt - 1))
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311 - spreads load

    def _failure(self, what: str, error: Exception) -> VectorIndexError:
        while isinstance(error, ResponseHandlingException) and isinstance(error.source, Exception):
            error = error.source
        if isinstance(error, VectorIndexError):
            return error
        if isinstance(error, ResourceExhaustedResponse):
            message = f"{self.where} is overloaded: could not {what}."
            return IndexUnavailable(message, retry_after_seconds=float(error.retry_after_s))
        if isinstance(error, QdrantException):  # a Retry-After that is a date: the client reads seconds alone
            return IndexUnavailable(f"{self.where} is overloaded: could not {what}.")
        if isinstance(error, UnexpectedResponse):
            return self._refused(what, error.status_code or 0, _message(error.content))
        if isinstance(error, httpx.TimeoutException):
            return IndexUnavailable(f"{self.where} did not answer in time: could not {what}.")
        if isinstance(error, httpx.TransportError) and (reason := certificate_reason(error)):
            return VectorIndexError(
                f"The certificate of {self.where} is not trusted: {reason}.",
                remedy="If its authority is your own, name its certificate as qdrant.ca_file.",
            )
        if isinstance(error, httpx.TransportError):
            return IndexUnavailable(
                f"{self.where} cannot be reached: could not {what} ({error or type(error).__name__})."
            )
        return IndexAnswerUnreadable(
            f"{self.where} answered what is no answer of Qdrant: could not {what}.",
            remedy="If this goes on, check qdrant.url and the proxies between.",
        )

    def _refused(self, what: str, status: int, message: str) -> VectorIndexError:
        said = f"could not {what}: {message or HTTPStatus(status).phrase} (HTTP {status})."
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            remedy = "Check QDRANT_API_KEY and what that key may do."
            return VectorIndexError(f"{self.where} refuses the API key, {said}", remedy=remedy)
        if status == HTTPStatus.NOT_FOUND and "ollection" in message:
            return CollectionMissing(f"{self.where}: {said}", remedy="A sync makes the collection.")
        if "cannot be opened: " in message:  # the embedded engine: further attempts meet the same files
            return VectorIndexError(f"{self.where}: {said}")
        if status == HTTPStatus.CONFLICT or "already exists" in message:
            return AlreadyExists(f"{self.where}: {said}")
        if status == HTTPStatus.NOT_IMPLEMENTED:
            return IndexUnsupported(f"{self.where}: {said}")
        if (
            status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
            or status >= HTTPStatus.INTERNAL_SERVER_ERROR
        ):
            return IndexUnavailable(f"{self.where}: {said}")
        return VectorIndexError(f"{self.where}: {said}")


def _message(content: bytes) -> str:
    """Qdrant's own words, from `{"status": {"error": ...}}`; an answer of a proxy is cut short."""
    try:
        status = parse_json(content)["status"]
        text = status["error"] if isinstance(status, dict) else str(status)
    except (ValueError, KeyError, TypeError):
        text = content.decode(errors="replace")
    return " ".join(str(text).split())[:_MAX_MESSAGE_CHARS].rstrip(".")

"""Embedding by a server. What the dialects share: batches, limits, time-outs, patience, and distrust of answers."""

from __future__ import annotations

import asyncio
import copy
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final

import httpx
import numpy as np
import orjson
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, stop_before_delay

from reposync.embedding.dialect import Answer, Dialect, NoJson, Nonsense, ServedModel
from reposync.embedding.patience import Cooldown, Tell, Transient, Wait, retry_after_seconds
from reposync.embedding.port import EmbeddingSpec, Matrix
from reposync.embedding.settings import EmbedderConfig
from reposync.embedding.truncation import looks_cut, same_vector, with_another_ending
from reposync.embedding.windows import readable_windows, windows
from reposync.errors import EmbeddingAnswerUnreadable, EmbeddingError, EmbeddingInputRefused, EmbeddingUnavailable
from reposync.outgoing import Pace, TooLarge, certificate_reason, client_options, pieces

DEFAULT_BATCH: Final = 32
"""Inputs a request; also the most that TEI takes unless told otherwise."""
DEFAULT_CONCURRENCY: Final = 4
PROBE: Final = "dimension"
"""What is embedded once to learn the dimension where the configuration does not give it."""

_MOST_ANSWER_BYTES: Final = 64 << 20
_QUERY_ATTEMPTS: Final = 2
_QUERY_SECONDS: Final = 15.0
_TRANSIENT_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
_too_large = re.compile(
    r"too (?:long|large|many tokens)|(?:context|input|sequence)[ _](?:length|size|window)"
    r"|max\w*[ _](?:context|model|input|sequence|tokens)|less than \d+ tokens|exceed\w* .*(?:context|token)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Lane:
    """Queries do not queue behind the batches of a sync, and give up sooner: somebody waits for the answer."""

    places: asyncio.Semaphore
    attempts: int
    timeout_seconds: float
    tell: Tell | None = None


@dataclass(slots=True)
class _Knowledge:
    """What the server said of itself, once for all who use the embedder."""

    dimension: int | None
    spec: EmbeddingSpec | None = None
    served: ServedModel | None = None
    proven_chars: int = 0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    proving: asyncio.Lock = field(default_factory=asyncio.Lock)


class HttpEmbedder:
    """The Embedder on a server that speaks `dialect`.

    At most `concurrency` requests run at a time, over all calls, and a call holds no more than its own texts and
    vectors. With `window` set, a window that the server still finds too long is halved until it fits; without it, that
    is an error: nothing is ever cut off.
    """

    def __init__(self, dialect: Dialect, config: EmbedderConfig) -> None:
        config.check()
        self._dialect = dialect
        self._config = config
        self._where = _public_address(dialect.endpoint)
        concurrency = config.concurrency or DEFAULT_CONCURRENCY
        self._bulk = _Lane(asyncio.Semaphore(concurrency), config.attempts, config.timeout_seconds)
        self._query = _Lane(
            asyncio.Semaphore(concurrency),
            min(_QUERY_ATTEMPTS, config.attempts),
            min(_QUERY_SECONDS, config.timeout_seconds),
        )
        self._cooldown = Cooldown(config.longest_wait_seconds)
        self._known = _Knowledge(config.dimensions)
        headers = {"Accept": "application/json", "Content-Type": "application/json", "Accept-Encoding": "identity"}
        if config.api_key:
            headers["Authorization"] = f"Bearer {config.api_key}"
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(config.timeout_seconds, connect=config.connect_timeout_seconds),
            follow_redirects=False,  # the key would travel along
            **client_options(dialect.endpoint, config.ca_file),
        )

    def watched(self, tell: Tell) -> HttpEmbedder:
        view = copy.copy(self)  # of the same client, places and knowledge
        view._bulk = replace(self._bulk, tell=tell)
        return view

    async def spec(self, recorded: EmbeddingSpec | None = None) -> EmbeddingSpec:
        return await self._learned(self._bulk, recorded)

    async def _learned(self, lane: _Lane, recorded: EmbeddingSpec | None = None) -> EmbeddingSpec:
        known = self._known
        async with self._waits(lane):
            await known.asking.acquire()
        try:
            if known.spec is None:
                known.served = await self._describe(lane)
                if known.dimension is None and recorded is not None and recorded.dimension:
                    same = (self._dialect.provider, known.served.model, self._config.window)
                    if (recorded.provider, recorded.model, recorded.window_chars) == same:
                        known.dimension = recorded.dimension
                if known.dimension is None:
                    known.dimension = (await self._vectors([PROBE], lane)).shape[1]
                known.spec = EmbeddingSpec(
                    self._dialect.provider, known.served.model, known.dimension, self._config.window
                )
        finally:
            known.asking.release()
        return known.spec

    async def embed(self, texts: Sequence[str]) -> list[Matrix]:
        return await self._embed(texts, self._bulk)

    async def embed_query(self, text: str) -> Matrix:
        """One row: of a query longer than the window, the mean of its windows."""
        (matrix,) = await self._embed([text], self._query)
        return matrix if len(matrix) == 1 else _unit_rows(matrix.mean(axis=0, keepdims=True), self._where)

    async def ping(self) -> None:
        """A server that does not know the address, as some that speak a dialect do not, is there all the same."""
        try:
            await self._once("GET", self._dialect.about, b"", self._query.timeout_seconds)
        except Transient as failure:
            raise failure.error from failure
        except (_NotFound, _Refused):
            return

    async def close(self) -> None:
        await self._client.aclose()

    async def _embed(self, texts: Sequence[str], lane: _Lane) -> list[Matrix]:
        if not texts:
            return []
        await self._learned(lane)
        pieces = [self._pieces(text) for text in texts]
        rows = await self._rows([piece for parts in pieces for piece in parts], lane)
        matrices, start = [], 0
        for parts in pieces:
            own = rows[start : start + len(parts)]
            matrices.append(own[0] if len(own) == 1 else np.concatenate(own))
            start += len(parts)
        return matrices

    def _pieces(self, text: str) -> list[str]:
        """What stands for `text` in requests: itself, or its windows that are not blank."""
        if self._config.window is None:
            return [text or " "]
        return readable_windows(text, self._config.window)

    async def _rows(self, inputs: Sequence[str], lane: _Lane) -> list[Matrix]:
        """A matrix for each input (of several rows where it had to be halved), in order."""
        batches = list(self._batches(inputs))
        if len(batches) == 1:
            return await self._batch(batches[0], lane)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._batch(batch, lane)) for batch in batches]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return [matrix for task in tasks for matrix in task.result()]

    def _batches(self, inputs: Sequence[str]) -> Iterator[Sequence[str]]:
        most = self._config.batch or DEFAULT_BATCH
        if self._known.served is not None and self._known.served.batch is not None:
            most = min(most, self._known.served.batch)
        start = chars = 0
        for position, text in enumerate(inputs):
            if position > start and (position - start >= most or chars + len(text) > self._config.batch_chars):
                yield inputs[start:position]
                start, chars = position, 0
            chars += len(text)
        yield inputs[start:]

    async def _batch(self, inputs: Sequence[str], lane: _Lane) -> list[Matrix]:
        try:
            vectors = await self._vectors(inputs, lane)
        except _TooLarge as refusal:
            if len(inputs) == 1:
                return [await self._halves(inputs[0], refusal, lane)]
        else:
            return [vectors[row : row + 1] for row in range(len(inputs))]
        middle = len(inputs) // 2
        return await self._batch(inputs[:middle], lane) + await self._batch(inputs[middle:], lane)

    async def _halves(self, text: str, refusal: _TooLarge, lane: _Lane) -> Matrix:
        if self._config.window is None:
            raise EmbeddingError(
                f"A text of {len(text)} characters is too long for the model behind {self._where}{refusal.reason}.",
                remedy=f"Set embedding.window to what the model reads at once, in characters{self._window_hint()}.",
            ) from refusal
        if len(text) < 2:
            raise EmbeddingError(f"The server at {self._where} finds a single character too long.") from refusal
        halves = windows(text, (len(text) + 1) // 2)
        return np.concatenate([row for half in halves for row in await self._batch([half], lane)])

    def _window_hint(self) -> str:
        tokens = self._known.served.input_tokens if self._known.served is not None else None
        # Source code has about 3 characters a token.
        return f" (the server reads {tokens} tokens: {tokens * 5 // 2} is a good value)" if tokens else ""

    # One request ---------------------------------------------------------------------------------------------------

    async def _describe(self, lane: _Lane) -> ServedModel:
        async def get(url: str) -> bytes:
            async with self._waits(lane) as wait, lane.places:
                return await self._patiently("GET", url, b"", lane, wait)

        try:
            return await self._dialect.describe(get)
        except Nonsense as error:
            raise self._unreadable("describes itself", error) from error

    def _unreadable(self, does: str, nonsense: Nonsense) -> EmbeddingError:
        kind = EmbeddingAnswerUnreadable if isinstance(nonsense, NoJson) else EmbeddingError
        return kind(f"The server at {self._where} {does} with {nonsense}.")

    async def _vectors(self, inputs: Sequence[str], lane: _Lane, *, proof: bool = False) -> Matrix:
        """Unit rows, one an input. Raises _TooLarge."""
        async with self._waits(lane) as wait, lane.places:  # before the body: waiting batches cost no memory
            body = self._request(inputs)
            try:
                received = await self._patiently("POST", self._dialect.endpoint, body, lane, wait)
            except _Refused as refusal:
                self._dialect.concede(refusal.complaint)
                rephrased = self._request(inputs)
                if rephrased == body:
                    raise
                received = await self._patiently("POST", self._dialect.endpoint, rephrased, lane, wait)
        try:
            answer = self._dialect.answer(received)
        except Nonsense as error:
            raise self._unreadable("answered", error) from error
        vectors = self._checked(answer, len(inputs))
        if not proof and answer.tokens is not None and looks_cut(inputs, answer.tokens):
            await self._prove_whole(inputs, vectors, lane)
        return vectors

    async def _prove_whole(self, inputs: Sequence[str], vectors: Matrix, lane: _Lane) -> None:
        """Costs one input more, once for a length. Raises EmbeddingError where the end of a text is not read."""
        longest = max(range(len(inputs)), key=lambda position: len(inputs[position]))
        length = len(inputs[longest])
        async with self._known.proving:
            if length <= self._known.proven_chars:
                return
            (other,) = await self._vectors([with_another_ending(inputs[longest])], lane, proof=True)
            if same_vector(vectors[longest], other):
                raise EmbeddingError(
                    f"The server at {self._where} silently cuts long texts: it does not read the end of one of {length}"
                    " characters.",
                    remedy=f"Set embedding.window to what the model reads at once, in characters{self._window_hint()}.",
                )
            self._known.proven_chars = length

    def _request(self, inputs: Sequence[str]) -> bytes:
        try:
            return self._dialect.request(inputs)
        except orjson.JSONEncodeError:  # lone surrogates, from a path or a terminal
            return self._dialect.request([text.encode("utf-8", "replace").decode() for text in inputs])

    def _checked(self, answer: Answer, count: int) -> Matrix:
        rows, columns = answer.vectors.shape
        if rows != count:
            raise EmbeddingError(f"The server at {self._where} answered {rows} vectors to {count} texts.")
        if columns == 0 or (self._known.dimension is not None and columns != self._known.dimension):
            raise EmbeddingError(
                f"The server at {self._where} answered vectors of {columns} dimensions instead of "
                f"{self._known.dimension}.",
                remedy="Check embedding.model and embedding.dimensions.",
            )
        return _unit_rows(answer.vectors, self._where)

    def _waits(self, lane: _Lane) -> Wait:
        return Wait(lane.tell, f"the embedding server at {httpx.URL(self._where).netloc.decode()}", lane.attempts)

    async def _patiently(self, method: str, url: str, body: bytes, lane: _Lane, wait: Wait) -> bytes:
        """The body of a 200 answer. Raises what `_refusal` makes of any other, once all attempts are spent, or the time
        for all of them, or the server asks for a longer pause than is waited for."""
        deadline = time.monotonic() + lane.attempts * lane.timeout_seconds
        retrying = AsyncRetrying(
            stop=stop_after_attempt(lane.attempts) | stop_before_delay(lane.attempts * lane.timeout_seconds),
            wait=self._cooldown.wait,
            retry=retry_if_exception(self._cooldown.is_bearable),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    wait.attempt = attempt.retry_state.attempt_number
                    await self._cooldown.over()
                    left = max(0.0, deadline - time.monotonic())
                    return await self._once(method, url, body, min(left, lane.timeout_seconds))
        except Transient as failure:
            raise failure.error from failure
        raise AssertionError("tenacity ends with an answer or with an error")

    async def _once(self, method: str, url: str, body: bytes, timeout_seconds: float) -> bytes:
        pace = Pace(timeout_seconds, timeout_seconds)
        try:
            # The client's own time-outs are between two bytes.
            async with asyncio.timeout(timeout_seconds), self._client.stream(method, url, content=body) as response:
                received = await _read(response, pace, self._where)
        except (httpx.TimeoutException, TimeoutError) as error:
            raise Transient(
                EmbeddingUnavailable(
                    f"The embedding server at {self._where} did not answer in time ({_limit(error, timeout_seconds)}).",
                    remedy="Check its load, lower embedding.batch, or raise embedding.timeout_seconds.",
                )
            ) from error
        except httpx.TransportError as error:
            if reason := certificate_reason(error):
                raise EmbeddingError(
                    f"The certificate of the embedding server at {self._where} is not trusted: {reason}.",
                    remedy="If its authority is your own, name its certificate as embedding.ca_file.",
                ) from error
            raise Transient(
                EmbeddingUnavailable(
                    f"The embedding server at {self._where} cannot be reached ({error or type(error).__name__}).",
                    remedy="Check embedding.url, and that the server runs.",
                )
            ) from error
        if response.status_code == HTTPStatus.OK:
            return received
        raise self._refusal(response, received)

    def _refusal(self, response: httpx.Response, body: bytes) -> Exception:
        status = response.status_code
        complaint = _complaint(body, self._config.api_key)
        reason = f": {complaint}" if complaint else ""
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or (status >= 400 and _too_large.search(complaint)):
            return _TooLarge(reason)
        what = f"The embedding server at {self._where} answered {status}"
        if status in _TRANSIENT_STATUS:
            waits = retry_after_seconds(response.headers.get("Retry-After"))
            if waits is not None:
                self._cooldown.asked(waits)
            remedy = "It is overloaded or not ready: try again later, or lower embedding.concurrency."
            if waits is not None and waits > self._config.longest_wait_seconds:
                remedy = f"It asks to wait {waits:.0f} s. Lower embedding.concurrency, or ask for a higher limit."
            return Transient(EmbeddingUnavailable(f"{what}{reason}.", remedy=remedy, retry_after_seconds=waits))
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):  # bodies quote parts of the key
            return EmbeddingError(f"{what}: it refuses the API key.", remedy="Check embedding.api_key.")
        if 300 <= status < 400:
            return EmbeddingError(
                f"{what}, a redirect, which is not followed.", remedy="Set embedding.url to the final address."
            )
        if status == HTTPStatus.NOT_FOUND:
            return _NotFound(f"{what}{reason}.", remedy="Check embedding.url and embedding.model.")
        return _Refused(f"{what}{reason}.", complaint)


def _limit(error: Exception, timeout_seconds: float) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return "it took no connection"
    return f"{timeout_seconds:.3g} s"


class _TooLarge(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _NotFound(EmbeddingError):
    pass


class _Refused(EmbeddingInputRefused):
    def __init__(self, message: str, complaint: str) -> None:
        super().__init__(message)
        self.complaint = complaint


async def _read(response: httpx.Response, pace: Pace, where: str) -> bytes:
    received = bytearray()
    try:
        async for part in pieces(response, pace, _MOST_ANSWER_BYTES):
            received += part
    except TooLarge as error:
        raise EmbeddingError(f"The server at {where} answered more than is taken: {error}.") from error
    except httpx.DecodingError as error:
        raise EmbeddingError(f"The answer of the server at {where} cannot be unpacked: {error}.") from error
    return bytes(received)


def _complaint(body: bytes, secret: str | None) -> str:
    """The server's own sentence, in its usual places. Never the whole body: some quote the input, or the key."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    for key in ("error", "message", "detail"):
        if isinstance(document, dict) and key in document:
            document = document[key]
    if not isinstance(document, str):
        return ""
    sentence = " ".join(document.split()).rstrip(".")
    if secret:
        sentence = sentence.replace(secret, "***")
    return sentence[:200]


def _public_address(url: str) -> str:
    """Without user, password and query: those may be secrets."""
    parts = httpx.URL(url)
    return f"{parts.scheme}://{parts.netloc.decode()}{parts.path}"


def _unit_rows(vectors: Matrix, where: str) -> Matrix:
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise EmbeddingError(f"The server at {where} answered a vector that is zero or holds no finite numbers.")
    unit: Matrix = (vectors / norms[:, None]).astype(np.float32)
    return unit

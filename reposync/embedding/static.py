"""The embedded default: vectors from a table of words. Content workers compute those of files as they read them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from reposync.config.sections import EmbeddingConfig
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
from reposync.embedding.settings import STATIC_DIMENSION, STATIC_MODEL, STATIC_WINDOW

if TYPE_CHECKING:  # a sync without changes embeds nothing, and saves the import of numpy
    from reposync.embedding.word_table import WordTable


class StaticEmbedder(Embedder):
    """What it is asked for here is little: a question, or files whose source is gone."""

    def __init__(self, config: EmbeddingConfig, on_use: OnUse = no_use) -> None:
        self._on_use = on_use
        self._window = config.window or STATIC_WINDOW

    async def spec(self, recorded: EmbeddingSpec | None = None) -> EmbeddingSpec:
        return EmbeddingSpec("static", STATIC_MODEL, STATIC_DIMENSION, self._window)

    async def window_of_workers(self) -> int | None:
        await self.ping()
        return self._window

    async def embed(
        self, texts: Sequence[str], rows: WindowRows | None = None, on_share: OnShare = no_share
    ) -> list[Matrix]:
        """`rows` is not used: to compute a window is as fast as to look for it."""
        table = await _table()
        began = time.monotonic()
        matrices = await asyncio.to_thread(lambda: [table.matrix(text, self._window) for text in texts])
        self._used("document", began, texts)
        on_share(1.0)
        return matrices

    async def split(self, texts: Sequence[str]) -> list[list[str]]:
        from reposync.embedding.windows import readable_windows

        return [readable_windows(text, self._window) for text in texts]

    async def embed_queries(self, texts: Sequence[str]) -> list[Matrix]:
        """No row for a text of which no word is known."""
        import numpy as np

        table = await _table()
        began = time.monotonic()
        questions = await asyncio.to_thread(lambda: [table.question(text) for text in texts])
        self._used("query", began, texts)
        nothing = np.empty((0, STATIC_DIMENSION), np.float32)
        return [nothing if question is None else question for question in questions]

    async def ping(self) -> None:
        await _table()

    def _used(self, kind: str, began: float, texts: Sequence[str]) -> None:
        self._on_use(EmbeddingUse("static", kind, time.monotonic() - began, sum(map(len, texts))))


async def _table() -> WordTable:
    """Raises EmbeddingError."""

    def load() -> WordTable:
        from reposync.embedding.word_table import load_table

        return load_table()

    return await asyncio.to_thread(load)

"""What a run keeps of vectors while it embeds."""

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from reposync.content.model import content_hash
from reposync.embedding.port import EmbeddingSpec, SparseVector
from reposync.errors import EmbeddingInputRefused
from reposync.sync.pipeline import DenseVectors
from reposync.sync.prepare import PreparedFile
from reposync.sync.progress import RunProgress
from reposync.vectors.port import PointWrite

POISON = "poison"
NO_TERMS = SparseVector(np.empty(0, np.uint32), np.empty(0, np.float32))


class Refusing:
    """A model that refuses one text."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.made: list[Any] = []

    async def embed(self, texts: Sequence[str], rows: object = None, report: Any = lambda share: None) -> list[Any]:
        self.asked += texts
        if POISON in texts:
            raise EmbeddingInputRefused("It is refused.")
        matrices = [np.zeros((1, 8), np.float32) for _ in texts]
        self.made += map(weakref.ref, matrices)
        return matrices


def file(path: str, *texts: str) -> PreparedFile:
    chunks = [
        PointWrite(number, text, 1, 1, content_hash(text), None, None, NO_TERMS) for number, text in enumerate(texts)
    ]
    return PreparedFile(path, 0o100644, "a" * 40, 10, None, tuple(chunks))


class EmptyIndex:
    async def known(self, hashes: Sequence[str]) -> dict[str, Any]:
        return {}


async def test_the_other_vectors_of_a_file_with_a_refused_text_are_not_kept_until_the_run_ends() -> None:
    model: Any = Refusing()
    index: Any = EmptyIndex()
    spec = EmbeddingSpec("test", "test", 8, None)
    vectors = DenseVectors(model, spec, index, RunProgress())

    batch = [file("a.py", "one", "two", POISON)]
    (refused,) = await vectors.embed(batch)
    vectors.stored(chunk.content_hash for file in batch for chunk in file.chunks)
    gc.collect()

    assert refused.is_failed
    assert [each() for each in model.made if each() is not None] == []
    model.asked.clear()
    (again,) = await vectors.embed([file("b.py", POISON)])
    assert again.is_failed and model.asked == [], "what was refused is not asked for again"

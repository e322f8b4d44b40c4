"""What a run keeps of vectors while it embeds."""

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from reposync.content.model import Chunk
from reposync.embedding.port import EmbeddingSpec
from reposync.errors import EmbeddingInputRefused
from reposync.store.run import RunFigures
from reposync.sync.pipeline import DenseVectors
from reposync.sync.prepare import ContentSettings, Job, PreparedFile, StoredFile, prepare
from reposync.sync.progress import RunProgress

POISON = "poison"


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
    chunks = [Chunk(text, 1, 1, 0) for text in texts]
    stored = StoredFile(path, 0o100644, "a" * 40, 10, None, chunks, [[] for _ in texts])
    return prepare(Job([stored], ContentSettings(7000, 1500, 1_000_000))).files[0]


async def test_the_other_vectors_of_a_file_with_a_refused_text_are_not_kept_until_the_run_ends() -> None:
    model: Any = Refusing()
    index: Any = None  # of a first sync: it is not asked
    spec = EmbeddingSpec("test", "test", 8, None)
    vectors = DenseVectors(model, spec, index, index_holds_points=False, figures=RunFigures(), progress=RunProgress())

    (refused,) = await vectors.embed([file("a.py", "one", "two", POISON)])
    vectors.stored([refused])
    gc.collect()

    assert refused.is_failed
    assert [each() for each in model.made if each() is not None] == []
    model.asked.clear()
    (again,) = await vectors.embed([file("b.py", POISON)])
    assert again.is_failed and model.asked == [], "what was refused is not asked for again"

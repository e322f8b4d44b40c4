"""The docstring benchmark through the product's index: names weigh in sparse vectors, hits are fused, ranked and joined
as in a search."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reposync.content.model import Chunk
from reposync.content.symbols import OverBudget, definitions, symbols_of_chunks
from reposync.embedding.port import EmbeddingSpec, Matrix
from reposync.embedding.sparse import document_vector, query_vector
from reposync.search.ranking import Question as Asked
from reposync.search.ranking import ranked, telling_words
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import (
    Candidate,
    FileWrite,
    IndexQuery,
    IndexSettings,
    PointWrite,
    Rank,
    SearchHit,
    WriteScope,
)

if TYPE_CHECKING:
    from benchmarks.retrieval import Passage, Question

# Name: whether the model takes part, and whether candidates are ranked.
WAYS = {
    "search, words, plain": (False, False),
    "search, words": (False, True),
    "search, plain": (True, False),
    "search": (True, True),
}


async def ranks_of_searches(
    passages: Sequence[Passage], questions: Sequence[Question], dense: Sequence[Matrix], spec: EmbeddingSpec
) -> dict[str, list[float]]:
    """For each way, 1 / rank of the first hit that holds the line of an answer, 0 if none of ten does. `dense`: of the
    passages, then of the questions."""
    rows = dense[len(passages) :]
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        index = QdrantIndex(IndexSettings("code", Path(folder)))
        try:
            await index.ensure(spec)
            await _fill(index, passages, dense)
            for name, (by_meaning, is_ranked) in WAYS.items():
                found[name] = []
                for question, row in zip(questions, rows, strict=True):
                    rank = _order(question.text) if is_ranked else None
                    sparse = query_vector(telling_words(question.text))
                    query = IndexQuery(sparse, row if by_meaning and len(row) else None, rank=rank)
                    found[name].append(_reciprocal_rank(question, await index.search(query)))
        finally:
            await index.close()
    return found


def _order(question: str) -> Rank:
    """As a search in a repository without commits."""
    asked = Asked(question)

    async def rank(found: Sequence[Candidate]) -> Sequence[Candidate]:
        return ranked(asked, found)

    return rank


def _reciprocal_rank(question: Question, hits: Sequence[SearchHit]) -> float:
    for rank, hit in enumerate(hits, start=1):
        if any(path == hit.path and hit.start_line <= line <= hit.end_line for path, line in question.places):
            return 1 / rank
    return 0.0


async def _fill(index: QdrantIndex, passages: Sequence[Passage], dense: Sequence[Matrix]) -> None:
    files: defaultdict[str, list[int]] = defaultdict(list)
    for number, passage in enumerate(passages):
        files[passage.path].append(number)
    writes = [
        FileWrite(path, passages[at[0]].language, f"{at[0]:040x}", list(_points(passages, at, dense)), replaces=False)
        for path, at in files.items()
    ]
    await index.replace_files(WriteScope("1", "documented", "c" * 40, epoch=1), writes)


def _points(passages: Sequence[Passage], numbers: Sequence[int], dense: Sequence[Matrix]) -> Iterator[PointWrite]:
    for number in numbers:
        each = passages[number]
        lines = range(each.start_line, each.start_line + each.text.count("\n") + 1)
        whole = Chunk(each.text, each.start_line, each.end_line)
        try:
            found = definitions(each.text, each.language)
        except OverBudget:  # a file is stored without definitions then
            found = []
        symbols = symbols_of_chunks(found, [whole], lines)[0]
        sparse = document_vector(each.text, path=each.path, names=[symbol.name for symbol in symbols])
        yield PointWrite(
            number, each.text, each.start_line, each.end_line, f"{number:032x}", None, dense[number], sparse, symbols
        )

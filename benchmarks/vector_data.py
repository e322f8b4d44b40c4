"""Chunks, vectors and queries for `benchmarks.vector_search`: real ones, and as many as wanted that are made from them.

The base is real source code, as a sync cuts and embeds it; docstrings are taken out of it, and their first sentences
are the queries. With the static model all chunks may be real. The transformer is slow (about 50 windows a second on two
cores), and recall on random vectors says nothing: so the other chunks are made from the base. A made chunk has the
windows of a real one, each moved a random part of the way to one of its nearest windows of other chunks, then by noise;
the text of a window, for the sparse vector, is that of the nearer of the two. So a made chunk lies between real
neighbours, not anywhere.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from benchmarks.corpus import source_files
from benchmarks.retrieval import without_docstrings
from reposync.config.sections import EmbeddingConfig
from reposync.content.chunking import chunk_text
from reposync.embedding.factory import open_embedder
from reposync.embedding.port import EmbeddingSpec, Matrix
from reposync.embedding.sparse import document_vector
from reposync.embedding.windows import readable_windows
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import FileWrite, PointWrite, WriteScope

MOST_QUERIES = 300
NEIGHBOURS = 8
REPOSITORIES = 10
_SAME = 0.999  # cosine; the overlap of two chunks has the same window twice
_LARGEST_FILE_BYTES = 1_000_000
_EMBEDDED_AT_ONCE = 64
_WRITTEN_AT_ONCE = 512


@dataclass(frozen=True)
class Base:
    """Real chunks. `windows`: the texts of each chunk's windows; `rows`: their vectors, one after the other.
    `queries` and `query_rows`: sentences, and one vector each."""

    windows: list[list[str]]
    rows: Matrix
    queries: list[str]
    query_rows: Matrix

    @property
    def starts(self) -> list[int]:
        """The first row of each chunk."""
        return np.cumsum([0, *map(len, self.windows[:-1])]).tolist()


@dataclass(frozen=True)
class MadeChunk:
    """`base`: the number of the real chunk that it is, or was made from."""

    base: int
    text: str
    dense: Matrix


async def load_base(spec: EmbeddingSpec, folder: Path | None, windows: int, cache: Path) -> Base:
    """From `cache` if that was made of the same texts, else embedded and kept there."""
    chunks, sentences = read_sources(folder, windows, spec.window_chars or 0)
    texts = orjson.dumps([chunks, sentences])
    if cache.exists():
        kept = np.load(cache)
        if kept["texts"].tobytes() == texts:
            return Base(chunks, kept["rows"], sentences, kept["query_rows"])
    started = time.perf_counter()
    embedder = open_embedder(EmbeddingConfig(provider=spec.provider))
    try:
        flat = [window for parts in chunks for window in parts]
        matrices: list[Matrix] = []
        for start in range(0, len(flat), _EMBEDDED_AT_ONCE):
            # A window of many tokens is halved by the transformer: its first half is enough here.
            matrices += [each[:1] for each in await embedder.embed(flat[start : start + _EMBEDDED_AT_ONCE])]
        asked = {sentence: await embedder.embed_query(sentence) for sentence in sentences}
    finally:
        await embedder.close()
    print(f"embedded {len(flat):,} windows in {time.perf_counter() - started:.0f} s", flush=True)
    sentences = [sentence for sentence in sentences if len(asked[sentence])]  # with a word that the table knows
    base = Base(chunks, np.concatenate(matrices), sentences, np.concatenate([asked[each] for each in sentences]))
    cache.parent.mkdir(parents=True, exist_ok=True)
    with cache.open("wb") as file:
        np.savez(file, texts=np.frombuffer(texts, np.uint8), rows=base.rows, query_rows=base.query_rows)
    return base


def read_sources(folder: Path | None, windows: int, window_chars: int) -> tuple[list[list[str]], list[str]]:
    """The windows of each chunk of whole Python files, drawn at random until there are `windows` and a sentence;
    sentences of these files that are in none of the chunks. None: the standard library and the installed packages."""
    paths = [path for path in (folder.rglob("*.py") if folder else source_files()) if path.suffix == ".py"]
    paths.sort()
    random.Random(11).shuffle(paths)
    chunks: list[list[str]] = []
    sentences: set[str] = set()
    for path in paths:
        if sentences and sum(map(len, chunks)) >= windows:
            break
        if path.is_symlink() or path.stat().st_size > _LARGEST_FILE_BYTES:
            continue
        try:
            code, documented = without_docstrings(path.read_text("utf-8"))
        except (UnicodeDecodeError, SyntaxError):
            continue
        chunks += [readable_windows(chunk.text, window_chars) for chunk in chunk_text(code, "python")]
        sentences.update(sentence for sentence, _ in documented)
    return chunks, random.Random(7).sample(sorted(sentences), min(MOST_QUERIES, len(sentences)))


def neighbours(base: Base) -> np.ndarray:
    """For each row the numbers of its nearest rows of other chunks."""
    chunk_of = np.repeat(np.arange(len(base.windows)), [len(each) for each in base.windows])
    found = []
    for start in range(0, len(base.rows), 1000):
        cosines = base.rows[start : start + 1000] @ base.rows.T
        cosines[(chunk_of[start : start + 1000, None] == chunk_of) | (cosines > _SAME)] = -1
        # A copy: a view would keep the numbers of all rows, 28 GB with 60,000 windows.
        found.append(np.argpartition(-cosines, NEIGHBOURS, axis=1)[:, :NEIGHBOURS].astype(np.int32))
    return np.concatenate(found)


def make_chunks(base: Base, count: int, noise: float) -> Iterator[MadeChunk]:
    """The real chunks first, then made ones. `noise`: its length, in parts of the distance to the neighbour."""
    starts = base.starts
    for number, parts in enumerate(base.windows[:count]):
        yield MadeChunk(number, "".join(parts), base.rows[starts[number] :][: len(parts)])
    if count <= len(base.windows):
        return
    near, generator = neighbours(base), np.random.default_rng(5)
    texts = [text for parts in base.windows for text in parts]
    for _ in range(count - len(base.windows)):
        number = int(generator.integers(len(base.windows)))
        rows = np.arange(starts[number], starts[number] + len(base.windows[number]))
        others = near[rows, generator.integers(NEIGHBOURS, size=len(rows))]
        part = generator.random(len(rows), np.float32)
        yield MadeChunk(
            number,
            "".join(texts[row if each < 0.5 else other] for row, other, each in zip(rows, others, part, strict=True)),
            _between(base.rows[rows], base.rows[others], part[:, None], noise, generator),
        )


def _between(ones: Matrix, others: Matrix, part: Matrix, noise: float, generator: np.random.Generator) -> Matrix:
    step = others - ones
    length = noise * np.linalg.norm(step, axis=1, keepdims=True) / np.sqrt(ones.shape[1])
    rows = ones + part * step + length * generator.standard_normal(ones.shape, np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


async def fill(index: QdrantIndex, base: Base, chunks: Iterable[MadeChunk]) -> None:
    """One chunk a file, in the repository of the real chunk that it is or was made from: a tenth of the real ones."""
    numbered = enumerate(chunks)
    while batch := list(itertools.islice(numbered, _WRITTEN_AT_ONCE)):
        points: dict[int, list[PointWrite]] = {}
        for number, chunk in batch:
            repository = chunk.base * REPOSITORIES // len(base.windows)
            sparse = document_vector(chunk.text)
            point = PointWrite(0, chunk.text, number, number, f"{number:032x}", None, chunk.dense, sparse)
            points.setdefault(repository, []).append(point)
        for repository, some in points.items():
            scope = WriteScope(str(repository), f"r{repository}", "c" * 40, epoch=1)
            files = [
                FileWrite(f"src/m{each.start_line}.py", "python", f"{each.start_line:040x}", [each], replaces=False)
                for each in some
            ]
            await index.replace_files(scope, files)


def quartiles(numbers: Sequence[float]) -> str:
    """Median, and between which values the middle half is."""
    low, middle, high = np.percentile(numbers, [25, 50, 75])
    return f"median {middle:g}, middle half {low:g} to {high:g}"

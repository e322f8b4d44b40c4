"""How well a question in words finds the code that answers it: MRR@10 and recall@10 on the installed standard library.

The code is the library's, without tests and with all docstrings taken out, in chunks as a sync makes them; some of them
are drawn at random. A question is the first sentence of a docstring, of at least 6 words, of a function with at least 3
lines of its own; a chunk is right if it holds the line that defines the function. BM25 alone, the local model alone
(MaxSim over windows) and both fused by ranks run on the embedded Qdrant engine itself, with terms of the text and the
path alone; the last four rows are searches of the product, with symbols, its fusion and its ranking.

python -m benchmarks.retrieval [--chunks 690] [--queries 700] [--whole-modules] [--without-paths]
    [--go DIR] [--java DIR] [--typescript DIR] [--static] [--former]

The model is the transformer; --static: the one of the static table. With --former the transformer of 0.1.0 runs too:
mean difference and standard error, paired by question.

With --whole-modules the chunks are those of modules drawn at random: harder, since the neighbours of the right chunk
are all there. With a folder of Go, Java or TypeScript, that is measured in place of the library, by the same rules: the
first sentence of a doc comment, and all comments taken out (`benchmarks/documented.py`). Vectors are kept in the
temporary directory: only the first run is slow.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import hashlib
import platform
import random
import sysconfig
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import qdrant_edge as edge

from benchmarks import documented
from benchmarks.documented import Module
from benchmarks.retrieval_search import ranks_of_searches
from reposync.config.sections import EmbeddingConfig
from reposync.content.chunking import chunk_text
from reposync.embedding.factory import open_embedder
from reposync.embedding.port import Embedder, Matrix
from reposync.embedding.settings import FORMER_LOCAL_MODEL, LOCAL_MODEL
from reposync.embedding.sparse import document_vector, query_vector
from reposync.embedding.windows import readable_windows

CACHE = Path(tempfile.gettempdir()) / "reposync-benchmarks"
TOP = 10
PREFETCH = 100


@dataclass(frozen=True)
class Passage:
    """A chunk: `language` and lines as in its file."""

    path: str
    text: str
    language: str
    start_line: int
    end_line: int


@dataclass(frozen=True)
class Question:
    text: str
    right: frozenset[int]  # numbers of passages
    places: frozenset[tuple[str, int]]  # paths and lines of the definitions


def library_modules() -> Iterator[Module]:
    """The library without its tests, in an order that is mixed and always the same."""
    library = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"test", "tests", "idlelib", "site-packages", "lib2to3", "turtledemo", "__pycache__", "ensurepip"}
    paths = [path for path in sorted(library.rglob("*.py")) if not left_out & set(path.relative_to(library).parts)]
    random.Random(11).shuffle(paths)
    for path in paths:
        try:
            code, documented = without_docstrings(path.read_text("utf-8"))
        except (UnicodeDecodeError, SyntaxError):
            continue
        yield Module(path.relative_to(library).as_posix(), "python", code, documented)


def make_corpus(
    modules: Iterable[Module], chunks: int, queries: int, *, whole_modules: bool
) -> tuple[list[Passage], list[Question]]:
    passages: list[Passage] = []
    right: defaultdict[str, set[int]] = defaultdict(set)  # a sentence may be in several places: all are right
    places: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
    for module in modules:
        cut = chunk_text(module.code, module.language)
        if whole_modules and len(passages) + len(cut) > chunks:
            continue
        for sentence, line in module.documented:
            places[sentence].add((module.path, line))
            right[sentence].update(
                len(passages) + n for n, chunk in enumerate(cut) if chunk.start_line <= line <= chunk.end_line
            )
        passages += [
            Passage(module.path, chunk.text, module.language, chunk.start_line, chunk.end_line) for chunk in cut
        ]
    drawn = sorted(random.Random(1).sample(range(len(passages)), min(chunks, len(passages))))
    new_number = {old: new for new, old in enumerate(drawn)}
    questions = [
        Question(sentence, found, frozenset(places[sentence]))
        for sentence, numbers in sorted(right.items())
        if (found := frozenset(new_number[number] for number in numbers if number in new_number))
    ]
    return [passages[n] for n in drawn], random.Random(7).sample(questions, min(queries, len(questions)))


def without_docstrings(source: str) -> tuple[str, list[tuple[str, int]]]:
    """The code, and each documented function's first sentence with the line of its `def` in that code."""
    tree = ast.parse(source)
    lines = source.split("\n")
    dropped: set[int] = set()
    documented: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text is None:
            continue
        literal = node.body[0]
        dropped.update(range(literal.lineno, (literal.end_lineno or literal.lineno) + 1))
        sentence = first_sentence(text)
        if isinstance(node, ast.Module | ast.ClassDef) or not 6 <= len(sentence.split()) <= 40:
            continue
        if (node.end_lineno or 0) - (literal.end_lineno or 0) >= 3:
            documented.append((sentence, node.lineno))
    kept = [number for number in range(1, len(lines) + 1) if number not in dropped]
    new_number = {old: new for new, old in enumerate(kept, start=1)}
    documented = [(sentence, new_number[line]) for sentence, line in documented if line in new_number]
    return "\n".join(lines[number - 1] for number in kept), documented


def first_sentence(docstring: str) -> str:
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".")


async def dense_vectors(embedder: Embedder, passages: Sequence[Passage], questions: Sequence[Question]) -> list[Matrix]:
    """A matrix for each passage, then one for each question."""
    spec = await embedder.spec()
    texts = [passage.text for passage in passages] + [question.text for question in questions]
    cut = [window for text in texts for window in readable_windows(text, spec.window_chars or len(text) + 1)]
    key = hashlib.sha256("\0".join([repr(spec), *cut]).encode()).hexdigest()[:24]
    kept = CACHE / f"vectors-{key}.npz"
    if not kept.exists():
        started = time.perf_counter()
        matrices = await embedder.embed([passage.text for passage in passages])
        print(f"embedded {len(passages)} chunks in {time.perf_counter() - started:.0f} s", flush=True)
        matrices += [await embedder.embed_query(question.text) for question in questions]
        CACHE.mkdir(parents=True, exist_ok=True)
        np.savez(kept, rows=np.concatenate(matrices), counts=[len(matrix) for matrix in matrices])
    stored = np.load(kept)
    return np.split(stored["rows"], np.cumsum(stored["counts"])[:-1])


def make_index(folder: str, passages: Sequence[Passage], dense: Sequence[Matrix], *, paths: bool) -> edge.EdgeShard:
    comparator = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
    shard = edge.EdgeShard.create(
        folder,
        edge.EdgeConfig(
            vectors={
                "dense": edge.EdgeVectorParams(dense[0].shape[1], edge.Distance.Cosine, multivector_config=comparator)
            },
            sparse_vectors={"sparse": edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)},
        ),
    )
    for number, passage in enumerate(passages):
        sparse = document_vector(passage.text, path=passage.path if paths else None)
        vectors = {
            "dense": dense[number].tolist(),
            "sparse": edge.SparseVector(sparse.indices.tolist(), sparse.values.tolist()),
        }
        shard.update(edge.UpdateOperation.upsert_points([edge.Point(number, vectors)]))
    return shard


def searches(shard: edge.EdgeShard) -> dict[str, Callable[[str, Matrix], Iterator[int]]]:
    """Each way to search: the numbers of the passages found, best first."""

    def sparse_query(text: str) -> edge.Query:
        sparse = query_vector(text)
        return edge.Query.Nearest(edge.SparseVector(sparse.indices.tolist(), sparse.values.tolist()), using="sparse")

    def dense_query(row: Matrix) -> edge.Query:
        return edge.Query.Nearest(row.tolist(), using="dense")

    def found(query: Any, prefetches: list[edge.Prefetch] | None = None) -> Iterator[int]:
        for point in shard.query(edge.QueryRequest(limit=TOP, query=query, prefetches=prefetches)):
            yield int(point.id)

    def by_both(text: str, row: Matrix) -> Iterator[int]:
        queries = [sparse_query(text), *([dense_query(row)] if len(row) else [])]
        return found(edge.Fusion.Rrf(k=2), [edge.Prefetch(limit=PREFETCH, query=each) for each in queries])

    # The static model has no vector for a question of which it knows no word.
    return {
        "BM25": lambda text, row: found(sparse_query(text)),
        "model": lambda text, row: found(dense_query(row)) if len(row) else iter(()),
        "both (RRF)": by_both,
    }


def reciprocal_ranks(
    search: Callable[[str, Matrix], Iterator[int]], questions: Sequence[Question], rows: Sequence[Matrix]
) -> list[float]:
    """1 / rank of the first right passage, 0 if none is among the ten."""
    return [
        next((1 / rank for rank, number in enumerate(search(each.text, row), start=1) if number in each.right), 0.0)
        for each, row in zip(questions, rows, strict=True)
    ]


async def measure(arguments: argparse.Namespace, modules: Iterable[Module]) -> None:
    passages, questions = make_corpus(
        modules, arguments.chunks, arguments.queries, whole_modules=arguments.whole_modules
    )
    print(f"{platform.machine()}, {platform.python_implementation()} {platform.python_version()}")
    ranks: defaultdict[str, list[list[float]]] = defaultdict(list)  # of each way to search, by model
    transformers = [LOCAL_MODEL, *([FORMER_LOCAL_MODEL] if arguments.former else [])]
    configured = [EmbeddingConfig(provider="local").model_copy(update={"model": each}) for each in transformers]
    for config in [EmbeddingConfig(provider="static")] if arguments.static else configured:
        embedder = open_embedder(config)
        try:
            dense = await dense_vectors(embedder, passages, questions)
            spec = await embedder.spec()
        finally:
            await embedder.close()
        windows = sum(map(len, dense[: len(passages)]))
        print(f"{spec.model}: {len(passages)} chunks, {windows} windows, {len(questions)} questions")
        with tempfile.TemporaryDirectory() as folder:
            shard = make_index(folder, passages, dense, paths=not arguments.without_paths)
            for name, search in searches(shard).items():
                found = reciprocal_ranks(search, questions, dense[len(passages) :])
                ranks[name].append(found)
                recall = np.mean([value > 0 for value in found])
                print(f"{name:20} MRR@10 {np.mean(found):.3f}  recall@10 {recall:.3f}", flush=True)
            shard.close()
        for name, found in (await ranks_of_searches(passages, questions, dense, spec)).items():
            recall = np.mean([value > 0 for value in found])
            print(f"{name:20} MRR@10 {np.mean(found):.3f}  recall@10 {recall:.3f}", flush=True)
    for name, (now, *former) in ranks.items():
        for before in former:
            change = np.subtract(now, before)
            print(f"{name:20} MRR@10 {change.mean():+.4f} +- {change.std() / len(change) ** 0.5:.4f} against 0.1.0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=690)
    parser.add_argument("--queries", type=int, default=700)
    parser.add_argument("--whole-modules", action="store_true", help="chunks of whole modules, not single ones")
    parser.add_argument("--without-paths", action="store_true", help="leave the path's terms out of sparse vectors")
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--former", action="store_true", help="compare with the local model of 0.1.0")
    for option in ("--go", "--java", "--typescript"):
        parser.add_argument(option, type=Path, metavar="DIR", help="a folder of sources, in place of the library")
    arguments = parser.parse_args()
    folders = {language: getattr(arguments, language) for language in documented.SUFFIXES}
    sources = {each: documented.modules(folder, each) for each, folder in folders.items() if folder is not None}
    for language, modules in (sources or {"python": library_modules()}).items():
        print(f"\n{language}")
        asyncio.run(measure(arguments, modules))


if __name__ == "__main__":
    main()

"""How many of the best chunks other layouts of the vectors would let a server see, without a server.

    python -m benchmarks.vector_layouts [--windows 60000] [--repository DIR]

Of each question the ten best chunks by the best of their windows (MaxSim) are wanted. Candidates of a layout: those
that it finds first, which would then be ranked by their windows. `means`: so many vectors a chunk, each the mean of
windows that are alike (k-means); one is the mean of all. `words`: as many candidates by their words beside them, as the
hybrid search has. Exact searches: a graph finds fewer.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.measure import machine
from benchmarks.vector_collection import SPECS
from benchmarks.vector_data import Base, load_base
from reposync.embedding.port import Matrix
from reposync.embedding.sparse import document_vector, query_vector

TOP = 10
CANDIDATES = (100, 200, 500)
MEANS = (1, 2, 3)
_ROUNDS = 8


def cluster_means(windows: Matrix, count: int) -> Matrix:
    """At most `count` unit vectors. k-means from windows that are far from each other."""
    chosen = [0]
    while len(chosen) < min(count, len(windows)):
        chosen.append(int(np.argmin((windows @ windows[chosen].T).max(axis=1))))
    means = windows[chosen]
    for _ in range(_ROUNDS):
        nearest = np.argmax(windows @ means.T, axis=1)
        means = np.stack(
            [windows[nearest == at].mean(axis=0) if (nearest == at).any() else means[at] for at in range(len(means))]
        )
        means /= np.linalg.norm(means, axis=1, keepdims=True)
    return means


def scores(questions: Matrix, vectors: Sequence[Matrix]) -> Matrix:
    """Of each question and chunk, that of the chunk's best vector."""
    starts = np.cumsum([0, *map(len, vectors[:-1])])
    every = np.concatenate(vectors)
    return np.stack([np.maximum.reduceat(every @ question, starts) for question in questions])


def word_scores(questions: Sequence[str], base: Base) -> Matrix:
    """By the terms that they share, weighted by how rare these are, as the server does."""
    documents = [document_vector("".join(parts)) for parts in base.windows]
    terms, places, weights = (
        np.concatenate([each.indices for each in documents]),
        np.repeat(np.arange(len(documents)), [len(each.indices) for each in documents]),
        np.concatenate([each.values for each in documents]),
    )
    order = np.argsort(terms, kind="stable")
    terms, places, weights = terms[order], places[order], weights[order]
    found = np.zeros((len(questions), len(documents)), np.float32)
    for number, question in enumerate(questions):
        asked = query_vector(question)
        for term, weight in zip(asked.indices, asked.values, strict=True):
            low, high = np.searchsorted(terms, term), np.searchsorted(terms, term, "right")
            rarity = np.log((len(documents) - (high - low) + 0.5) / (high - low + 0.5) + 1)
            found[number, places[low:high]] += weight * rarity * weights[low:high]
    return found


def best(found: Matrix, count: int) -> Sequence[set[int]]:
    count = min(count, found.shape[1])
    return [set(row) for row in np.argpartition(-found, count - 1, axis=1)[:, :count].tolist()]


def share(wanted: Sequence[set[int]], candidates: Sequence[set[int]]) -> float:
    return float(np.mean([len(right & seen) / len(right) for right, seen in zip(wanted, candidates, strict=True)]))


async def run(options: argparse.Namespace) -> None:
    base = await load_base(SPECS["static"], options.repository, options.windows, options.cache)
    windows = [base.rows[start : start + len(parts)] for start, parts in zip(base.starts, base.windows, strict=True)]
    wanted = best(scores(base.query_rows, windows), TOP)
    by_words = word_scores(base.queries, base)
    print(f"{machine()}\n{len(windows):,} chunks, {len(base.rows):,} windows, {len(base.queries)} questions\n")
    print(f"| | vectors a chunk | {' | '.join(f'of {count} candidates' for count in CANDIDATES)} |")
    print(f"|---|---|{'---|' * len(CANDIDATES)}")
    for count in MEANS:
        means = [cluster_means(each, count) for each in windows]
        of_means = scores(base.query_rows, means)
        for words in (False, True):
            cells = []
            for candidates in CANDIDATES:
                seen = best(of_means, candidates)
                if words:
                    seen = [one | other for one, other in zip(seen, best(by_words, candidates), strict=True)]
                cells.append(f"{share(wanted, seen):.3f}")
            name = f"means: {count}" + (", and words" if words else "")
            print(f"| {name} | {np.mean([len(each) for each in means]):.1f} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=60_000, help="real windows")
    parser.add_argument("--repository", type=Path, help="folder of Python files; default: the installed ones")
    cache = Path(tempfile.gettempdir()) / "reposync-benchmarks" / "vector-layouts.npz"
    parser.add_argument("--cache", type=Path, default=cache, help="keeps the vectors of the windows")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

"""Quality, speed and memory of searches on a real Qdrant server, for each way to store the vectors, or in the engine.

    python -m benchmarks.vector_search --server /usr/local/bin/qdrant [--chunks 100000] [--json]
    python -m benchmarks.vector_search --url http://127.0.0.1:6333 [--pid PID]
    python -m benchmarks.vector_search --embedded --settings none --ef 0

The HNSW index and the choice of a quantization exist only on a server. The collection is made, filled and searched by
reposync itself: multivectors of the static model or of the transformer, hybrid with sparse vectors.
`benchmarks/vector_data.py` says what is in it.

recall@10: of the 10 best chunks by dense vectors alone, how many are among the 10 of an exact search. agreement@10: the
same for the hybrid search, which ranks 100 candidates of each kind; chunks with the score of the exact tenth count as
among them, since the server orders equal scores by chance. Latency: the hybrid search as reposync executes it, in this
process, on the same machine. "one repository": a filter that a tenth of the chunks match.

With --server each setting gets a server of its own, restarted after indexing: memory is then what it needs to serve,
after all searches. With --url the memory includes what the server had allocated before. Collections are deleted, but
with --keep: the next run finds them filled, and only searches. Other settings are then made of a copy of the kept
collection without quantization, by changing its configuration: no second upload, and the same chunks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import orjson

from benchmarks.measure import machine, percentile
from benchmarks.qdrant_program import Engine, Server, memory, until_green, until_ready
from benchmarks.vector_collection import (
    COLLECTION,
    CONCURRENT,
    SETTINGS,
    SPECS,
    Parameters,
    Setting,
    convert_collection,
    fill_collection,
    opened,
)
from benchmarks.vector_data import REPOSITORIES, Base, load_base, quartiles
from reposync.embedding.port import SparseVector
from reposync.embedding.sparse import query_vector
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import IndexQuery

TOP = 10
# The most that the product ranks with the same number of candidates as for TOP.
_WITH_TIES = 12
NO_TERMS = SparseVector(np.empty(0, np.uint32), np.empty(0, np.float32))


@dataclass(frozen=True)
class Stored:
    """What a collection costs. Memory is None if unknown; `file`: pages of mapped files, which the kernel may drop."""

    setting: str
    upload_seconds: float
    indexing_seconds: float
    indexed_vectors: int
    anonymous_bytes: int | None
    file_bytes: int | None
    disk_bytes: int | None


@dataclass(frozen=True)
class Searched:
    """Of all queries, with a filter by one repository or without. Milliseconds."""

    setting: str
    rescored: str
    hnsw_ef: int | None
    one_repository: bool
    recall: float
    agreement: float
    p50: float
    p95: float
    concurrent_p50: float
    concurrent_p95: float


def queries(base: Base, *, dense_only: bool, one_repository: bool, limit: int = TOP) -> list[IndexQuery]:
    return [
        IndexQuery(
            NO_TERMS if dense_only else query_vector(text),
            row[None],
            versions=[str(number % REPOSITORIES)] if one_repository else [],
            limit=limit,
        )
        for number, (text, row) in enumerate(zip(base.queries, base.query_rows, strict=True))
    ]


@dataclass(frozen=True)
class Best:
    """For each query the numbers of the chunks that an exact search may return."""

    dense: list[set[int]]
    hybrid: list[set[int]]


async def exact(index: QdrantIndex, transport: Parameters, base: Base, *, one_repository: bool) -> Best:
    transport.params = {"exact": True}
    found: list[list[set[int]]] = []
    for dense_only in (True, False):
        asked = queries(base, dense_only=dense_only, one_repository=one_repository, limit=_WITH_TIES)
        best = [await index.search(query) for query in asked]
        tenth = [min((hit.score for hit in hits[:TOP]), default=0.0) for hits in best]
        found.append(
            [{hit.start_line for hit in hits if hit.score >= low} for hits, low in zip(best, tenth, strict=True)]
        )
    return Best(*found)


async def found_share(index: QdrantIndex, asked: Sequence[IndexQuery], best: Sequence[set[int]]) -> float:
    """The mean share of the best TOP that the search returns."""
    shares = []
    for query, right in zip(asked, best, strict=True):
        hits = {hit.start_line for hit in await index.search(query)}
        shares.append(len(hits & right) / min(TOP, max(1, len(right))))
    return float(np.mean(shares))


async def latencies(index: QdrantIndex, asked: Sequence[IndexQuery], at_once: int) -> list[float]:
    """Milliseconds of each search."""
    remaining = iter(asked)
    taken: list[float] = []

    async def ask() -> None:
        for query in remaining:
            started = time.perf_counter()
            await index.search(query)
            taken.append((time.perf_counter() - started) * 1000)

    await asyncio.gather(*(ask() for _ in range(at_once)))
    return taken


async def search_all(
    index: QdrantIndex, transport: Parameters, base: Base, setting: Setting, efs: Sequence[int | None]
) -> AsyncIterator[Searched]:
    for one_repository in (False, True):
        best = await exact(index, transport, base, one_repository=one_repository)
        dense = queries(base, dense_only=True, one_repository=one_repository)
        hybrid = queries(base, dense_only=False, one_repository=one_repository)
        for (rescored, params), ef in itertools.product(setting.ways.items(), efs):
            transport.params = dict(params) | ({"hnsw_ef": ef} if ef else {})
            recall = await found_share(index, dense, best.dense)
            agreement = await found_share(index, hybrid, best.hybrid)
            one, many = await latencies(index, hybrid, 1), await latencies(index, hybrid * 2, CONCURRENT)
            times = [percentile(taken, part) for taken in (one, many) for part in (0.5, 0.95)]
            yield Searched(setting.name, rescored, ef, one_repository, recall, agreement, *times)


# One setting after the other ------------------------------------------------------------------------------------------


async def measure(options: argparse.Namespace, base: Base, setting: Setting) -> tuple[Stored, list[Searched], str]:
    """Also returns the server's version."""
    with contextlib.ExitStack() as stack:
        own: Server | None = None
        url, kept, folder = options.url, None, Path("unused")
        if url is None:
            folder = kept_folder(options, setting) or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            own, kept = Engine(folder) if options.embedded else Server(options.server, folder), folder / "filled.json"
            url = own.url
        if kept is None or not kept.exists():
            # A datatype cannot be changed.
            unquantized = options.keep and kept_folder(options, SETTINGS[setting.unquantized])
            if own is not None and unquantized and (unquantized / "filled.json").exists():
                filled = await convert_collection(SPECS[options.model], unquantized, own, setting, folder)
            else:
                with own or contextlib.nullcontext():
                    filled = await fill_collection(options, base, setting, url, folder)
            if kept is not None:
                kept.write_bytes(orjson.dumps(filled))
        else:
            filled = orjson.loads(kept.read_bytes())
        with own or contextlib.nullcontext():
            async with opened(url, setting, folder) as (index, transport, client):
                version = await until_ready(client)
                await until_green(client, COLLECTION)
                searched = [each async for each in search_all(index, transport, base, setting, options.ef)]
                used = await memory(client, own.pid if own is not None else options.pid)
                disk = own.disk_bytes() if own is not None else None
                if own is None:
                    await client.delete(f"/collections/{COLLECTION}")
    return Stored(setting.name, *filled, *used, disk), searched, version


def kept_folder(options: argparse.Namespace, setting: Setting) -> Path | None:
    if options.keep is None:
        return None
    folder: Path = options.keep / f"{options.model}-{setting.name}-{options.chunks}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# Output ---------------------------------------------------------------------------------------------------------------


def storage_table(stored: Sequence[Stored]) -> Iterator[str]:
    yield "| setting | upload | until indexed | memory | mapped files | disk |"
    yield "|---|---|---|---|---|---|"
    for each in stored:
        sizes = (each.anonymous_bytes, each.file_bytes, each.disk_bytes)
        shown = [f"{size / 1e6:,.0f} MB" if size is not None else "" for size in sizes]
        seconds = (each.upload_seconds, each.indexing_seconds)
        yield f"| {' | '.join([each.setting, *(f'{value:.0f} s' for value in seconds), *shown])} |"


def search_table(searched: Sequence[Searched]) -> Iterator[str]:
    """A row has both scopes: all repositories, one repository."""
    yield (
        "| setting | rescored | `hnsw_ef` | recall@10: all, one repository | agreement@10 | p50, p95 in all "
        "| in one repository | 8 at once, in all | in one repository |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    narrow = {(each.setting, each.rescored, each.hnsw_ef): each for each in searched if each.one_repository}
    for each in searched:
        if each.one_repository:
            continue
        both = (each, narrow[each.setting, each.rescored, each.hnsw_ef])
        cells = [
            each.setting,
            each.rescored,
            str(each.hnsw_ef or "default"),
            ", ".join(f"{one.recall:.3f}" for one in both),
            ", ".join(f"{one.agreement:.3f}" for one in both),
            *(f"{one.p50:.1f}, {one.p95:.1f} ms" for one in both),
            *(f"{one.concurrent_p50:.0f}, {one.concurrent_p95:.0f} ms" for one in both),
        ]
        yield f"| {' | '.join(cells)} |"


async def run(options: argparse.Namespace) -> None:
    base = await load_base(SPECS[options.model], options.repository, options.windows, options.cache)
    base = replace(base, queries=base.queries[: options.queries], query_rows=base.query_rows[: options.queries])
    per_chunk = quartiles([len(each) for each in base.windows])
    real = f"{len(base.windows):,} real chunks, {len(base.rows):,} windows, per chunk {per_chunk}"
    stored: list[Stored] = []
    searched: list[Searched] = []
    for name in options.settings:
        print(f"{time.strftime('%H:%M:%S')} {name}, load average {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        storage, searches, version = await measure(options, base, SETTINGS[name])
        stored.append(storage)
        searched += searches
        where = f"{machine()}, Qdrant {version}"
        lines = [f"{where}\n{options.chunks:,} chunks made from {real}; {len(base.queries)} queries", ""]
        text = "\n".join([*lines, *storage_table(stored), "", *search_table(searched)])
        document = {"machine": where, "chunks": options.chunks, "base": real, "noise": options.noise}
        document |= {"stored": [asdict(each) for each in stored], "searched": [asdict(each) for each in searched]}
    print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() if options.json else text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--url", help="a server that runs")
    place.add_argument("--server", type=Path, help="the program of a server, started for each setting")
    place.add_argument("--embedded", action="store_true", help="the embedded engine")
    parser.add_argument("--pid", type=int, help="with --url: the server's process, if it is on this machine")
    parser.add_argument("--keep", type=Path, help="without --url: folder in which the storage stays")
    parser.add_argument("--model", choices=SPECS, default="static")
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=100, help="at most 300")
    parser.add_argument("--windows", type=int, default=8_000, help="real windows to embed")
    parser.add_argument("--noise", type=float, default=0.6, help="in parts of the distance to the neighbour")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--ef", nargs="+", type=int, default=[0, 64, 128, 256], help="0: the server's default")
    parser.add_argument("--repository", type=Path, help="folder of Python files; default: the installed ones")
    cache = Path(tempfile.gettempdir()) / "reposync-benchmarks" / "vector-search.npz"
    parser.add_argument("--cache", type=Path, default=cache, help="keeps the vectors of the real windows")
    parser.add_argument("--json", action="store_true")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

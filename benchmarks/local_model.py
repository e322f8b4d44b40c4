"""The local embedder: CPU seconds for a chunk and chunks a second, against the model of 0.1.0, which computed in
float32 with the same weights, and against the model called directly.

Directly: the same windows one after another, longest first, in one session with a thread a core. Each round runs all,
so that a busy machine slows them alike; ratios are medians over the rounds.

python -m benchmarks.local_model [--chunks 16] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import statistics
import sysconfig
import time
from collections import defaultdict
from pathlib import Path

from reposync.config.sections import EmbeddingConfig
from reposync.content.chunking import chunk_text
from reposync.embedding.local import LocalEmbedder
from reposync.embedding.local_model import load_model
from reposync.embedding.settings import FORMER_LOCAL_MODEL, LOCAL_WINDOW
from reposync.embedding.windows import readable_windows


def sample_chunks(count: int) -> list[str]:
    """Full chunks of the standard library, always the same."""
    library = Path(sysconfig.get_paths()["stdlib"])
    chunks = [
        chunk.text
        for path in sorted(library.glob("*.py"))
        for chunk in chunk_text(path.read_text("utf-8", "replace"), "python")
        if len(chunk.text) > 6000
    ]
    return random.Random(3).sample(chunks, count)


async def measure(count: int, rounds: int) -> None:
    chunks = sample_chunks(count)
    cut = sorted((w for chunk in chunks for w in readable_windows(chunk, LOCAL_WINDOW)), key=len, reverse=True)
    cores = len(os.sched_getaffinity(0))
    started = time.process_time()
    model = load_model(threads=cores)
    print(f"loaded in {time.process_time() - started:.2f} CPU s, the tokenizer and the checksum included")
    embedder, former = (
        LocalEmbedder(EmbeddingConfig()),
        LocalEmbedder(EmbeddingConfig().model_copy(update={"model": FORMER_LOCAL_MODEL})),
    )
    for each in (embedder, former):
        await each.embed(chunks[:1])
    model.vector(cut[0])
    print(
        f"{platform.machine()}, {cores} cores, CPython {platform.python_version()}, {count} chunks, {len(cut)} windows"
    )

    rates: defaultdict[str, list[float]] = defaultdict(list)
    costs: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, run in (
            ("0.1.0", lambda: former.embed(chunks)),
            ("embedder", lambda: embedder.embed(chunks)),
            ("model", lambda: asyncio.to_thread(lambda: [model.vector(window) for window in cut])),
        ):
            wall, cpu = time.perf_counter(), time.process_time()
            await run()
            rates[name].append(count / (time.perf_counter() - wall))
            costs[name].append((time.process_time() - cpu) / count)
    await embedder.close()
    await former.close()

    for name, each in rates.items():
        print(
            f"{name:10} {statistics.median(each):6.2f} chunks/s, median ({min(each):.2f} to {max(each):.2f}), "
            f"{statistics.median(costs[name]):.3f} CPU s a chunk ({min(costs[name]):.3f} to {max(costs[name]):.3f})"
        )
    print(f"0.1.0 / embedder, CPU    {ratio(costs['0.1.0'], costs['embedder']):.2f}")
    print(f"embedder / 0.1.0, rate   {ratio(rates['embedder'], rates['0.1.0']):.2f}")
    print(f"embedder / model, rate   {ratio(rates['embedder'], rates['model']):.2f}")


def ratio(one: list[float], other: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.chunks, arguments.rounds))


if __name__ == "__main__":
    main()

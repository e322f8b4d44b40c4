"""What the local embedder costs beside its model: chunks a second, against the model called directly.

Directly: the same windows one after another, longest first, in one session with a thread a core. Each round runs both,
so that a busy machine slows them alike.

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

import numpy as np

from reposync.content.chunking import chunk_text
from reposync.embedding.local import LocalEmbedder
from reposync.embedding.local_model import load_model
from reposync.embedding.settings import LOCAL_WINDOW, EmbedderConfig
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
    model = load_model(threads=cores)
    embedder = LocalEmbedder(EmbedderConfig())
    await embedder.embed(chunks[:1])
    model.vector(cut[0])
    print(
        f"{platform.machine()}, {cores} cores, CPython {platform.python_version()}, {count} chunks, {len(cut)} windows"
    )

    rates: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        started = time.perf_counter()
        rows = await asyncio.to_thread(lambda: [model.vector(window) for window in cut])
        rates["model"].append(count / (time.perf_counter() - started))
        assert len(rows) == len(cut)
        started = time.perf_counter()
        matrices = await embedder.embed(chunks)
        rates["embedder"].append(count / (time.perf_counter() - started))
        assert np.concatenate(matrices).shape == (len(cut), 384)
    await embedder.close()

    for name, each in rates.items():
        print(f"{name:20} {statistics.median(each):6.2f} chunks/s, median ({min(each):.2f} to {max(each):.2f})")
    print(f"embedder / model     {statistics.median(rates['embedder']) / statistics.median(rates['model']):6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.chunks, arguments.rounds))


if __name__ == "__main__":
    main()

"""What docs/sizing.md needs besides the other figures: bytes on disk after a first sync, memory with the local model.

    python -m benchmarks.sizing [--files 10000] [--dimension 384] [--local-files 30] [--at-once 4] [--each 5000]

Disk: the embedded engine, dense vectors of an embedding server and sparse ones, SQLite; bytes that the file system has
given out. Memory: proportional set size of a process and all that it started, the highest that was seen: of a
`reposync sync` with the model that is in the package; of a daemon that syncs several repositories for the first time at
the same time, with an embedding server that answers at once and a Qdrant endpoint of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from benchmarks.corpus import make_corpus
from benchmarks.measure import machine, measure
from reposync.config.database_url import sqlite_url
from tests.fixtures.embedding_server import MODEL, EmbeddingServer
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.qdrant_server import QdrantServer

SYNC = [sys.executable, "-m", "reposync", "sync"]
APPLY = [sys.executable, "-m", "reposync", "apply"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--local-files", type=int, default=30)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--each", type=int, default=5_000)
    options = parser.parse_args()
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as name:
        disk(Path(name), options.files, options.dimension)
    with tempfile.TemporaryDirectory() as name:
        local_model(Path(name), options.local_files)
    with tempfile.TemporaryDirectory() as name:
        daemon(Path(name), options.at_once, options.each, options.dimension)


def disk(folder: Path, files: int, dimension: int) -> None:
    written, size = make_corpus(folder / "corpus.git", files, files * 0.0053)
    with EmbeddingServer(dimension=dimension, instant=True) as server:
        (folder / "repositories.yaml").write_text(
            f"embedding: {{provider: openai, url: '{server.url}', model: '{MODEL}', dimensions: {dimension}}}\n"
            f"repositories: [{{name: corpus, path: '{folder}/corpus.git'}}]\n"
        )
        variables = {**os.environ, "REPOSYNC_CONFIG": str(folder / "repositories.yaml"), **state_of(folder)}
        subprocess.run(APPLY, env=variables, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(SYNC, env=variables, check=True, stderr=subprocess.DEVNULL)
    state = folder / "state"
    with sqlite3.connect(state / "reposync.db") as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (chunks,) = database.execute("SELECT sum(chunks) FROM indexed_files").fetchone()
    whole, rows = used(state), used(state / "reposync.db")
    print(f"{written:,} files, {size / 1e6:.1f} MB, {dimension} dimensions: {chunks:,} chunks")
    print(f"database  {rows / 1e6:.1f} MB, {rows / written:,.0f} bytes a file")
    print(f"index     {(whole - rows) / 1e6:.1f} MB, {(whole - rows) / chunks:,.0f} bytes a chunk\n")


def local_model(folder: Path, files: int) -> None:
    written, size = make_corpus(folder / "corpus.git", files, files * 0.0053)
    usage = measure([*SYNC, str(folder / "corpus.git")], {"REPOSYNC_CONFIG": "", **state_of(folder)})
    print(f"local model, {written:,} files, {size / 1e6:.2f} MB: {usage}")


def daemon(folder: Path, at_once: int, files: int, dimension: int) -> None:
    """Each repository has a collection of its own, so that none reuses the vectors of a different one."""
    make_corpus(folder / "corpus.git", files, files * 0.0053)
    entries = "".join(
        f"  - {{name: r{number}, path: '{folder}/corpus.git', collection: c{number}, schedule: yearly}}\n"
        for number in range(at_once)
    )
    highest = 0
    with EmbeddingServer(dimension=dimension, instant=True) as server, QdrantServer(folder / "qdrant") as qdrant:
        (folder / "repositories.yaml").write_text(
            f"embedding: {{provider: openai, url: '{server.url}', model: '{MODEL}', dimensions: {dimension}}}\n"
            f"daemon: {{concurrency: {at_once}, fair_share_seconds: 3600}}\nrepositories:\n{entries}"
        )
        log = ExecutionLog(sqlite_url(folder / "state" / "reposync.db"))
        with Pod("pod", folder, {"REPOSYNC_QDRANT_URL": qdrant.url}) as pod:
            root = psutil.Process(pod.pid)

            def done() -> bool:
                nonlocal highest
                with contextlib.suppress(psutil.Error):
                    highest = max(highest, sum(each.memory_full_info().pss for each in [root, *root.children(True)]))
                return all(log.ended(f"r{number}") for number in range(at_once))

            until(done, 600, pod.log_tail)
    print(f"a daemon with {at_once} first syncs of {files:,} files at the same time: {highest / 1e6:.0f} MB")


def state_of(folder: Path) -> dict[str, str]:
    return {"REPOSYNC_STATE_DIR": str(folder / "state"), "REPOSYNC_ENGINE_IDLE_SECONDS": "1"}


def used(path: Path) -> int:
    paths = [path, *path.rglob("*")] if path.is_dir() else [path]
    return sum(each.lstat().st_blocks * 512 for each in paths)


if __name__ == "__main__":
    main()

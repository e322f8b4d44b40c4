"""First sync of 10,000 real source files, then no change, one changed file, 2% renamed, 1% deleted; and a plain loop.

    python -m benchmarks.first_sync [--files 10000] [--megabytes 53] [--repeat 1] [--embedding server|static|none]

The embedding server answers at once (384 dimensions), unless the static model or none is measured, and the Qdrant
endpoint is the embedded engine over HTTP: both are processes of their own. The engine's CPU stands beside that of the
command; the embedding server counts in no figure. Everything is measured in this run, on this machine.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from benchmarks.corpus import make_corpus
from benchmarks.measure import Usage, machine, measure
from tests.fixtures.qdrant_server import QdrantServer

EMBEDDINGS = {
    "server": '{{provider: openai, url: "{url}", model: test/words, dimensions: 384, batch: 256}}',
    "static": "{{provider: static}}",
    "none": "{{provider: none}}",
}
CONFIGURATION = """
embedding: {embedding}
qdrant: {{url: "{qdrant}"}}
defaults: {{max_file_bytes: 10000000}}
repositories:
  - {{name: corpus, path: "{repository}"}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--megabytes", type=float, default=53.0)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--corpus", type=Path, help="a repository made by benchmarks.corpus, in place of a new one")
    parser.add_argument("--no-plain", action="store_true", help="leave the plain loop out")
    parser.add_argument("--embedding", choices=EMBEDDINGS, default="server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files, size = options.files, int(options.megabytes * 1e6)
        if options.corpus is None:
            files, size = make_corpus(folder / "corpus.git", options.files, options.megabytes)
        print(f"{machine()}\n{files:,} files, {size / 1e6:.1f} MB\n", flush=True)
        for turn in range(options.repeat):
            original = options.corpus or folder / "corpus.git"
            one_turn(folder / f"turn{turn}", original, files, options.embedding, plain=not options.no_plain)


def one_turn(folder: Path, original: Path, files: int, model: str, *, plain: bool) -> None:
    renamed, deleted = max(1, files // 50), max(1, files // 100)
    folder.mkdir()
    repository = folder / "corpus.git"
    subprocess.run(["cp", "-r", str(original), str(repository)], check=True)
    (folder / "plain").mkdir()
    floor, floor_engine = None, 0.0
    if plain:
        with QdrantServer(folder / "plain") as server:
            floor = measure([sys.executable, "-m", "benchmarks.plain_loop", str(repository), server.url])
            floor_engine = cpu_seconds(server.pid)
            report("plain loop", floor, floor_engine, f"{floor.stdout.strip()} points")
        (folder / "peer").mkdir()
        with embedding_server() as embeddings, QdrantServer(folder / "peer") as server:
            command = [sys.executable, "-m", "benchmarks.peer_langchain", str(repository), server.url, embeddings]
            peer = measure(command)
            details = f"{inputs(embeddings):,} inputs; {peer.stdout.strip()} points"
            report("LangChain", peer, cpu_seconds(server.pid), details)
    with embedding_server() as embeddings, QdrantServer(folder / "qdrant") as server:
        configuration = folder / "repositories.yaml"
        embedding = EMBEDDINGS[model].format(url=embeddings)
        configuration.write_text(CONFIGURATION.format(embedding=embedding, qdrant=server.url, repository=repository))
        environment = {"REPOSYNC_CONFIG": str(configuration), "REPOSYNC_STATE_DIR": str(folder / "state")}

        measure([sys.executable, "-m", "reposync", "apply"], environment)

        def sync(what: str) -> tuple[Usage, float]:
            before, engine_before = inputs(embeddings), cpu_seconds(server.pid)
            usage = measure([sys.executable, "-m", "reposync", "sync", "--json"], environment)
            (run,) = json.loads(usage.stdout)["items"]
            details = (
                f"{run['files_processed']:,} files, {run['files_deleted']:,} deleted, {run['chunks_reused']:,} reused"
            )
            engine = cpu_seconds(server.pid) - engine_before
            report(
                what,
                usage,
                engine,
                f"{inputs(embeddings) - before:,} inputs; {details}; in the run {run['duration_seconds']:.2f} s",
            )
            assert run["status"] == "completed", run
            return usage, engine

        first, engine = sync("first sync")
        sync("no change")
        change(repository, rename=0, delete=0, edit=1)
        sync("one file")
        change(repository, rename=renamed, delete=0, edit=0)
        sync(f"{renamed} renamed")
        change(repository, rename=0, delete=deleted, edit=0)
        sync(f"{deleted} deleted")
        check_exact(server.url, repository)
    if floor is not None:
        wall, cpu = first.wall_seconds / floor.wall_seconds, first.cpu_seconds / floor.cpu_seconds
        ratio = f"{wall:.2f} wall, {cpu:.2f} CPU, {engine / floor_engine:.2f} CPU of the engine"
        print(f"\nfirst sync / plain loop: {ratio}\n", flush=True)


def report(what: str, usage: Usage, engine: float, details: str) -> None:
    if usage.returncode:
        raise SystemExit(f"{what} ended with {usage.returncode}: {usage.stdout}")
    print(f"{what:<12} {usage}   engine {engine:6.2f} s CPU   {details}", flush=True)


def cpu_seconds(pid: int) -> float:
    """User and system, of the process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@contextmanager
def embedding_server() -> Iterator[str]:
    """The tests' server in its instant mode, as a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.fixtures.embedding_server", "--port", str(port)]
    process = subprocess.Popen([*command, "--instant", "--dimension", "384"], stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            try:
                httpx.get(url, timeout=1)
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait()


def inputs(url: str) -> int:
    return int(httpx.get(f"{url}/count", timeout=5).json()["inputs"])


def change(repository: Path, *, rename: int, delete: int, edit: int) -> None:
    """One more commit on main: the first files that there are are renamed, deleted or edited."""

    def git(*arguments: str, stdin: bytes | None = None) -> bytes:
        return subprocess.run(
            ["git", "-C", str(repository), *arguments], check=True, capture_output=True, input=stdin
        ).stdout

    rows = git("ls-tree", "-r", "-z", "main").split(b"\0")[:-1]
    commands = [b"feature done\ncommit refs/heads/main\ncommitter B <b@example.com> 1700000001 +0000\ndata 1\nx\n"]
    commands.append(b"from refs/heads/main^0\n")
    for row in rows[:rename]:
        path = row.partition(b"\t")[2]
        commands.append(b"R %s %s\n" % (quoted(path), quoted(b"moved/" + path)))
    for row in rows[-delete:] if delete else []:
        commands.append(b"D %s\n" % row.partition(b"\t")[2])
    for row in rows[len(rows) // 2 : len(rows) // 2 + edit]:
        content = git("cat-file", "blob", row.split()[2].decode()) + b"\n# one more line\n"
        commands.append(b"M 100644 inline %s\ndata %d\n" % (row.partition(b"\t")[2], len(content)) + content + b"\n")
    git("fast-import", "--quiet", "--done", stdin=b"".join([*commands, b"done\n"]))


def quoted(path: bytes) -> bytes:
    return b'"' + path.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def check_exact(url: str, repository: Path) -> None:
    """Stale, missing and doubled (path, blob) pairs of the index against git."""
    listing = subprocess.run(
        ["git", "-C", str(repository), "ls-tree", "-r", "-z", "main"], check=True, capture_output=True
    )
    expected = {
        (row.partition(b"\t")[2].decode("utf-8", "replace"), row.split()[2].decode())
        for row in listing.stdout.split(b"\0")[:-1]
    }
    found: set[tuple[str, str]] = set()
    chunks: set[tuple[str, int]] = set()
    doubled = 0
    offset = None
    while True:
        body = {"limit": 2000, "offset": offset, "with_payload": ["metadata"]}
        page = httpx.post(f"{url}/collections/code/points/scroll", json=body, timeout=60).json()["result"]
        for point in page["points"]:
            each = point["payload"]["metadata"]
            found.add((each["path"], each["blob_sha"]))
            doubled += (each["path"], each["chunk_index"]) in chunks
            chunks.add((each["path"], each["chunk_index"]))
        offset = page["next_page_offset"]
        if offset is None:
            break
    missing = {path for path, _ in expected - found}
    print(
        f"exactness    {len(found - expected)} stale, {doubled} doubled, {len(missing)} not indexed "
        f"(skipped, with their reasons in the history), {len(chunks):,} chunks"
    )


if __name__ == "__main__":
    main()

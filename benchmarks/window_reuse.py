"""How many windows a sync of each commit embeds, and how many it would without their reuse: replays a history.

The product's own code decides (rules for paths, chunks, windows, `DenseVectors`); the model is replaced by zeros, and
the index by a dictionary. Without reuse, each window of a chunk whose text no point has is embedded. Commits of the
first parent, oldest first, each synced for itself; the first sync is that of the commit before them.

python -m benchmarks.window_reuse --repository DIR [--commits 150] [--megabytes 24]
"""

from __future__ import annotations

import argparse
import asyncio
import posixpath
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from reposync.content.documents import make_document
from reposync.content.model import Skipped, content_hash
from reposync.content.rules import PathRules
from reposync.embedding.local import DIMENSION
from reposync.embedding.port import EmbeddingSpec, Matrix, OnShare, SparseVector, WindowRows, no_share
from reposync.embedding.settings import LOCAL_MODEL, LOCAL_WINDOW
from reposync.embedding.windows import embed_windows, readable_windows
from reposync.store.manifest import ManifestRow
from reposync.sync.pipeline import BATCH_BYTES, DenseVectors
from reposync.sync.prepare import PreparedFile
from reposync.sync.progress import RunProgress
from reposync.vectors.port import PointWrite, StoredPoint, point_id

SPEC = EmbeddingSpec("local", LOCAL_MODEL, DIMENSION, LOCAL_WINDOW)
NO_TERMS = SparseVector(np.empty(0, np.uint32), np.empty(0, np.float32))
VERSION = "benchmark"


class History:
    """A local git repository, bare or not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def git(self, *arguments: str, sent: bytes | None = None) -> bytes:
        command = ["git", "-C", str(self._folder), *arguments]
        return subprocess.run(command, input=sent, capture_output=True, check=True).stdout

    def commits(self, count: int) -> list[str]:
        return self.git("log", "--first-parent", f"-n{count + 1}", "--format=%H").decode().split()[::-1]

    def changes(self, before: str | None, after: str) -> Iterator[tuple[str, int, str]]:
        """(path, mode, blob); a deleted path has mode 0."""
        if before is None:
            for line in self.git("ls-tree", "-r", "-z", after).split(b"\0")[:-1]:
                facts, path = line.split(b"\t", 1)
                mode, _, sha = facts.split()
                yield path.decode("utf-8", "surrogateescape"), int(mode, 8), sha.decode()
            return
        parts = self.git("diff-tree", "-r", "-z", "--no-renames", before, after).split(b"\0")[:-1]
        for facts, path in zip(parts[::2], parts[1::2], strict=True):
            _, mode, _, sha, _ = facts.split()
            yield path.decode("utf-8", "surrogateescape"), int(mode, 8), sha.decode()

    def blobs(self, shas: Sequence[str]) -> dict[str, bytes]:
        """Those that this copy of the repository has."""
        answer = self.git("cat-file", "--batch", sent="\n".join(shas).encode() + b"\n")
        found, at = {}, 0
        for sha in shas:
            end = answer.index(b"\n", at)
            words = answer[at:end].split()
            at = end + 1
            if words[1] != b"missing":
                found[sha] = answer[at : at + int(words[2])]
                at += int(words[2]) + 1
        return found


class Points:
    """The index: what `DenseVectors` asks for."""

    def __init__(self) -> None:
        self.files: dict[str, PreparedFile] = {}
        self._hashes: Counter[str] = Counter()

    def replace(self, file: PreparedFile) -> None:
        if (old := self.files.pop(file.path, None)) is not None:
            self._hashes.subtract(chunk.content_hash for chunk in old.chunks)
        if file.chunks:
            self.files[file.path] = file
            self._hashes.update(chunk.content_hash for chunk in file.chunks)

    def has(self, content_hash: str) -> bool:
        return self._hashes[content_hash] > 0

    async def known(self, hashes: Sequence[str]) -> Mapping[str, Matrix]:
        return {each: zeros(1) for each in hashes if self.has(each)}

    async def chunks(
        self, version_id: str, paths: Sequence[str], *, with_dense: bool
    ) -> AsyncIterator[Sequence[StoredPoint]]:
        for path in paths:
            file = self.files[path]
            yield [
                StoredPoint(
                    point_id(version_id, path, file.sha, chunk.chunk_index),
                    {
                        "page_content": chunk.text,
                        "metadata": {
                            "path": path,
                            "blob_sha": file.sha,
                            "chunk_index": chunk.chunk_index,
                            "content_hash": chunk.content_hash,
                        },
                    },
                    zeros(len(readable_windows(chunk.text, LOCAL_WINDOW))),
                )
                for chunk in file.chunks
            ]


class Counting:
    """The embedder. `without_reuse`: windows of the texts that it got."""

    def __init__(self) -> None:
        self.without_reuse = self.characters_without_reuse = self.characters = 0

    async def split(self, texts: Sequence[str]) -> list[list[str]]:
        return [readable_windows(text, LOCAL_WINDOW) for text in texts]

    async def embed(
        self, texts: Sequence[str], rows: WindowRows | None = None, on_share: OnShare = no_share
    ) -> list[Matrix]:
        split = await self.split(texts)
        self.without_reuse += sum(map(len, split))
        self.characters_without_reuse += sum(len(window) for parts in split for window in parts)
        return await embed_windows(split, rows, self._embed)

    async def _embed(self, windows: Sequence[str], done: Callable[[int], None]) -> Sequence[Matrix]:
        self.characters += sum(map(len, windows))
        return [zeros(1)] * len(windows)


def zeros(rows: int) -> Matrix:
    return np.broadcast_to(np.zeros((1, DIMENSION), np.float32), (rows, DIMENSION))


def prepared(path: str, mode: int, sha: str, content: bytes) -> PreparedFile:
    raw = path.encode("utf-8", "surrogateescape")
    file = PreparedFile(path, mode, sha, len(content))
    if PathRules((), ()).decide(raw, mode) is not None:
        return file
    document = make_document(raw, content, len(content))
    if isinstance(document, Skipped):
        return file
    chunks = [
        PointWrite(number, each.text, each.start_line, each.end_line, content_hash(each.text), None, None, NO_TERMS)
        for number, each in enumerate(document.chunks)
    ]
    return PreparedFile(path, mode, sha, len(content), document.language, tuple(chunks))


def batches(files: Iterable[PreparedFile]) -> Iterator[list[PreparedFile]]:
    batch: list[PreparedFile] = []
    for file in files:
        batch.append(file)
        if sum(each.size_bytes or 0 for each in batch) >= BATCH_BYTES:
            yield batch
            batch = []
    yield batch


async def sync(history: History, points: Points, embedder: Counting, before: str | None, after: str, most: int) -> int:
    """Returns the windows that were embedded."""
    changed = list(history.changes(before, after))
    contents = history.blobs([sha for _, mode, sha in changed if mode & 0o100000 and not mode & 0o020000])
    rows = {
        path: ManifestRow(path, file.sha, file.mode, file.size_bytes, len(file.chunks), None, file.language, 1)
        for path, file in points.files.items()
    }
    removed = [path for path, mode, _ in changed if not mode and path in rows]
    vectors = DenseVectors(
        embedder,
        SPEC,
        points,
        RunProgress(),
        version_id=VERSION,
        recorded=rows,
        removed={posixpath.basename(path): path for path in removed},
    )
    vectors.windows = WindowRows(most)
    for batch in batches(prepared(*each, contents.get(each[2], b"")) for each in changed if each[1]):
        await vectors.embed(batch)
        for file in batch:
            points.replace(file)
        vectors.stored(chunk.content_hash for chunks in (file.chunks for file in batch) for chunk in chunks)
    for path in removed:
        points.replace(PreparedFile(path, 0, "", None))
    return vectors.windows.embedded


async def measure(folder: Path, commits: int, most: int) -> None:
    history, points = History(folder), Points()
    before: str | None = None
    first, *later = history.commits(commits)
    for name, part in (("first sync", [first]), (f"{len(later)} commits", later)):
        embedder, embedded = Counting(), 0
        for commit in part:
            embedded += await sync(history, points, embedder, before, commit, most)
            before = commit
        print(
            f"{name:12} {embedder.without_reuse:8,} windows without reuse, {embedded:8,} embedded: "
            f"{embedder.without_reuse / max(1, embedded):.2f} x fewer "
            f"({embedder.characters_without_reuse / max(1, embedder.characters):.2f} x characters)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--commits", type=int, default=150)
    parser.add_argument("--megabytes", type=int, default=24, help="what the windows of a run may take in memory")
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.repository, arguments.commits, arguments.megabytes << 20))


if __name__ == "__main__":
    main()

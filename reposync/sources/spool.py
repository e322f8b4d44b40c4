"""A pack received from a server, on disk while it is needed."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

from reposync.errors import SourceUnavailable
from reposync.sources.deltas import BaseCache
from reposync.sources.objects import BLOB, COMMIT, MAX_TREE_BYTES, TREE, hash_name, object_sha, parse_commit, walk_tree
from reposync.sources.packs import PackDamaged, PackedObject, PackFile
from reposync.sources.port import Blob, Commit, TreeEntry

FLUSH_BYTES = 1024 * 1024


class SpoolFull(Exception):
    """The pack exceeds the disk space granted to it. `only_blob_bytes`: if it consists of one blob, the size in its
    header."""

    def __init__(self, only_blob_bytes: int | None) -> None:
        super().__init__("the pack is too large")
        self.only_blob_bytes = only_blob_bytes


@contextlib.contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceUnavailable(
            f"A pack of the server cannot be written to disk: {error.strerror}.",
            remedy=f"Make room in {tempfile.gettempdir()}, or set TMPDIR to a different folder.",
        ) from error


class Spool:
    """Collects a pack in an unnamed temporary file, which disappears with the process, and computes its checksum.

    `write` blocks on the disk: call it in a thread.
    """

    def __init__(self, *, oid_bytes: int, max_bytes: int) -> None:
        """Raises SourceUnavailable if the disk is full, as `write` and `finish` do."""
        with _on_disk():
            self._file: IO[bytes] = tempfile.TemporaryFile(prefix="reposync-pack-")  # noqa: SIM115 - closed by the owner
        self._oid_bytes = oid_bytes
        self._hash_name = hash_name("0" * (oid_bytes * 2))
        self._running = hashlib.new(self._hash_name, usedforsecurity=False)
        self._tail = b""
        self._max_bytes = max_bytes
        self.size_bytes = 0

    def write(self, piece: bytes) -> None:
        """Raises SpoolFull."""
        self.size_bytes += len(piece)
        with _on_disk():
            self._file.write(piece)
        # The last bytes are the checksum itself, and only the end of the stream shows which those are.
        joined = self._tail + piece
        self._running.update(joined[: -self._oid_bytes])
        self._tail = joined[-self._oid_bytes :]
        if self.size_bytes > self._max_bytes:
            raise SpoolFull(self._only_blob_bytes())

    def finish(self) -> ReceivedPack:
        """The complete pack. Raises PackDamaged if its checksum is wrong, as it is if the pack was cut."""
        with _on_disk():
            self._file.flush()
        if self.size_bytes < 12 + self._oid_bytes or self._running.digest() != self._tail:
            raise PackDamaged("the pack was cut short or changed in transit")
        return ReceivedPack(self._file, oid_bytes=self._oid_bytes, hash_name=self._hash_name)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # buffered data, on a full disk
            self._file.close()

    def _only_blob_bytes(self) -> int | None:
        with _on_disk():
            self._file.flush()
        pack = PackFile(self._file.fileno(), oid_bytes=0, cache=BaseCache(0))
        try:
            first = pack.read(12, max_bytes=-1)
            return first.size_bytes if first.kind == BLOB and pack.object_count() == 1 else None
        except PackDamaged:
            return None


class ReceivedPack:
    """A complete pack. Not thread-safe, except `close`; blocks on the disk: use it in a thread, one at a time."""

    def __init__(self, file: IO[bytes], *, oid_bytes: int, hash_name: str) -> None:
        self._file = file
        self._hash_name = hash_name
        self._cache = BaseCache()
        self._pack = PackFile(file.fileno(), oid_bytes=oid_bytes, cache=self._cache)
        self._offsets: dict[bytes, int] | None = None

    def blobs(self, wanted: set[str], *, max_bytes: int) -> Iterator[Blob]:
        """The blobs in `wanted`, in one pass over the file: their names are their content's hashes, so each is
        verified. Takes what it yields out of `wanted`. Raises PackDamaged."""
        for found in self._pack.scan(max_bytes=max_bytes, hash_name=self._hash_name):
            sha = found.sha.hex()
            if found.kind == BLOB and sha in wanted:
                wanted.discard(sha)
                yield Blob(sha, found.size_bytes, found.content)

    def contents(self, shas: Sequence[str], kind: int) -> dict[str, bytes]:
        """Commits or trees by name, verified. Raises PackDamaged, KeyError for what is not in the pack."""
        found: dict[str, bytes] = {}
        for sha in sorted(shas, key=self._offset):
            item = self._pack.read(self._offset(sha), max_bytes=MAX_TREE_BYTES)
            if item.content is None or item.kind != kind or object_sha(kind, item.content, self._hash_name) != sha:
                raise PackDamaged(f"object {sha} is not what it should be")
            found[sha] = item.content
        return found

    def commit(self, sha: str) -> tuple[Commit, str]:
        """The commit and the sha of its root tree. Raises PackDamaged, KeyError, SourceCorrupt."""
        return parse_commit(sha, self.contents([sha], COMMIT)[sha])

    def tree(self, sha: str) -> list[TreeEntry]:
        """The entries of the commit `sha`. Raises as `commit`."""
        return walk_tree(self.commit(sha)[1], lambda shas: self.contents(shas, TREE))

    def blob(self, sha: str, *, max_bytes: int) -> Blob:
        """One blob, verified. Raises PackDamaged, KeyError for one that is not in the pack."""
        item = self._pack.read(self._offset(sha), max_bytes=max_bytes)
        if item.kind != BLOB or (item.content is not None and object_sha(BLOB, item.content, self._hash_name) != sha):
            raise PackDamaged(f"object {sha} is not what it should be")
        return Blob(sha, item.size_bytes, item.content)

    def holds(self, sha: str) -> bool:
        return bytes.fromhex(sha) in self._index()

    def in_file_order(self, shas: Sequence[str]) -> list[str]:
        """Those of `shas` that are in the pack, in file order."""
        return sorted((sha for sha in shas if self.holds(sha)), key=self._offset)

    def close(self) -> None:
        """Also stops a read in a thread."""
        self._pack.stop()
        self._cache.close()
        self._file.close()

    def _offset(self, sha: str) -> int:
        return self._index()[bytes.fromhex(sha)]

    def _index(self) -> dict[bytes, int]:
        if self._offsets is None:
            scan: Iterator[PackedObject] = self._pack.scan(max_bytes=0, hash_name=self._hash_name)
            self._offsets = {found.sha: found.offset for found in scan}
        return self._offsets

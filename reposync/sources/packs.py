"""Reading git's pack files piece by piece.

dulwich inflates whole objects and maps whole packs. Here sizes are known before anything is inflated, an object over
the limit never enters memory (nor as the base or result of a delta, see `deltas`), and files are read with `pread`:
mapped pages would count as our memory, and a pack that shrinks under a mapping kills the process.
Format: https://git-scm.com/docs/gitformat-pack
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from reposync.sources.deltas import MEMORY_BYTES, BaseCache, Content, Spill, applied, in_memory, pieces_of
from reposync.sources.objects import BLOB, COMMIT, TAG, TREE, object_hash

OFS_DELTA, REF_DELTA = 6, 7

WINDOW_BYTES = 32 * 1024
INFLATE_STEP_BYTES = 256 * 1024
# Git itself never makes deltas of objects over core.bigFileThreshold (512 MiB), so no honest chain needs more.
MAX_DELTA_BASE_BYTES = 512 * 1024 * 1024
MAX_CHAIN = 10_000  # git writes chains of 50 (4,095 at most); the bound stops a cycle of REF_DELTAs

_pack_numbers = count()  # keys of a shared cache: the id() of a closed pack may be reused


class PackDamaged(Exception):
    """An object or a whole pack is damaged. Callers that know the path raise SourceCorrupt."""


@dataclass(frozen=True, slots=True)
class PackedObject:
    """An object of a pack. `content` is None if `size_bytes` is over the limit; `sha` is its binary name after a scan,
    empty after a look-up."""

    offset: int
    kind: int
    size_bytes: int
    content: bytes | None
    sha: bytes = b""


@dataclass(slots=True)
class _Header:
    kind: int
    size_bytes: int
    data_at: int
    base: int | bytes | None


class PackFile:
    """A pack on disk, opened for reading. Not thread-safe, except `stop`; the caller closes the file descriptor."""

    def __init__(
        self, fd: int, *, oid_bytes: int, cache: BaseCache, find: Callable[[bytes], int | None] | None = None
    ) -> None:
        """`find` gives the offset of an object of this pack by its binary name, for deltas that name their base."""
        self._fd = fd
        self._size_bytes = os.fstat(fd).st_size
        self._oid_bytes = oid_bytes
        self._cache = cache
        self._key = next(_pack_numbers)
        self._find = find or (lambda sha: None)
        self._window = b""
        self._window_at = 0
        self._stopped = False

    def stop(self) -> None:
        """Make a method that runs in a different thread raise PackDamaged soon, also within an object."""
        self._stopped = True

    def object_count(self) -> int:
        """The object count in the header. Raises PackDamaged if this is no pack."""
        head = bytes(self._bytes_at(0, 12))
        if head[:4] != b"PACK" or head[4:8] not in (b"\0\0\0\2", b"\0\0\0\3"):
            raise PackDamaged("it does not start as a pack does")
        return int.from_bytes(head[8:12], "big")

    def read(self, offset: int, *, max_bytes: int) -> PackedObject:
        """The object at `offset`, resolved. Raises PackDamaged."""
        header = self._header(offset)
        if header.kind in (OFS_DELTA, REF_DELTA):
            kind, size_bytes, resolved = self._resolve(offset, header, max_bytes)
            return PackedObject(offset, kind, size_bytes, None if resolved is None else in_memory(resolved))
        if header.size_bytes > max_bytes:
            return PackedObject(offset, header.kind, header.size_bytes, None)
        cached = self._cache.get(self._key, offset)
        if cached is not None:
            return PackedObject(offset, cached[0], len(cached[1]), in_memory(cached[1]))
        content, _ = self._inflate(header)
        self._cache.put(self._key, offset, header.kind, content)
        return PackedObject(offset, header.kind, header.size_bytes, content)

    def scan(self, *, max_bytes: int, hash_name: str) -> Iterator[PackedObject]:
        """Every object with its binary sha: first in file order those whose base is cached, then the other deltas, each
        after its base. Objects over `max_bytes` are hashed while they are inflated and not kept. Raises PackDamaged."""
        seen: dict[bytes, int] = {}
        self._find = seen.get
        # Deltas by the offset or the name of their base.
        waiting: dict[int | bytes | None, list[tuple[int, _Header]]] = {}
        at = 12
        for _ in range(self.object_count()):
            header = self._header(at)
            offset = at
            if header.kind in (OFS_DELTA, REF_DELTA):
                at = self._skip(header)
                base_at = seen.get(header.base) if isinstance(header.base, bytes) else header.base
                if base_at is None or self._cache.get(self._key, base_at) is None:
                    waiting.setdefault(header.base, []).append((offset, header))
                    continue
                found = self._scanned_delta(offset, header, max_bytes, hash_name)
            elif header.size_bytes > max_bytes:
                running = object_hash(header.kind, header.size_bytes, hash_name)
                at = self._inflate_into(header, running.update)
                found = PackedObject(offset, header.kind, header.size_bytes, None, running.digest())
            else:
                content, at = self._inflate(header)
                running = object_hash(header.kind, header.size_bytes, hash_name)
                running.update(content)
                self._cache.put(self._key, offset, header.kind, content)
                found = PackedObject(offset, header.kind, header.size_bytes, content, running.digest())
            seen[found.sha] = offset
            yield found
        # Depth first: the base of each is then usually the one resolved last.
        ready: list[tuple[int, _Header]] = []
        for sha, offset in list(seen.items()) if waiting else ():
            ready += waiting.pop(sha, []) + waiting.pop(offset, [])
            while ready:
                found = self._scanned_delta(*ready.pop(), max_bytes, hash_name)
                seen[found.sha] = found.offset
                yield found
                ready += waiting.pop(found.sha, []) + waiting.pop(found.offset, [])
        if waiting:
            raise PackDamaged("it contains a delta whose base is missing")

    # One object --------------------------------------------------------------------------------------------------

    def _scanned_delta(self, offset: int, header: _Header, max_bytes: int, hash_name: str) -> PackedObject:
        # Its name is the hash of the result, so the result is needed even if it is large.
        kind, size_bytes, content = self._resolve(offset, header, MAX_DELTA_BASE_BYTES)
        if content is None:
            raise PackDamaged(f"it contains a delta that expands to {size_bytes:,} bytes")
        running = object_hash(kind, size_bytes, hash_name)
        for piece in pieces_of(content):
            running.update(piece)
        kept = in_memory(content) if size_bytes <= max_bytes else None
        return PackedObject(offset, kind, size_bytes, kept, running.digest())

    def _resolve(self, offset: int, header: _Header, max_bytes: int) -> tuple[int, int, Content | None]:
        """Kind, size and content of a delta's result; no content if the declared size is over `max_bytes`."""
        size_bytes = self._result_size(header)
        chain: list[tuple[int, _Header]] = []
        at, current = offset, header
        while (cached := self._cache.get(self._key, at)) is None and current.kind in (OFS_DELTA, REF_DELTA):
            chain.append((at, current))
            if len(chain) > MAX_CHAIN:
                raise PackDamaged(f"the chain of deltas at {offset} does not end")
            at = self._base_offset(at, current)
            current = self._header(at)
        kind = current.kind if cached is None else cached[0]
        if size_bytes > max_bytes:
            return kind, size_bytes, None
        content = self._whole(at, current) if cached is None else cached[1]
        for delta_at, delta_header in reversed(chain):
            result_bytes = self._result_size(delta_header)
            if max(delta_header.size_bytes, result_bytes) > MAX_DELTA_BASE_BYTES:
                raise PackDamaged(f"a delta at {delta_at} expands to more than {MAX_DELTA_BASE_BYTES:,} bytes")
            delta = self._content(delta_header)
            try:
                content = applied(content, delta, result_bytes)
            except ValueError as error:
                raise PackDamaged(f"the delta at {delta_at} does not fit its base: {error}") from error
            finally:
                if isinstance(delta, Spill):
                    delta.close()
            self._cache.put(self._key, delta_at, kind, content)
        return kind, len(content), content

    def _whole(self, at: int, header: _Header) -> Content:
        """An object as the base of a delta."""
        if header.size_bytes > MAX_DELTA_BASE_BYTES:
            raise PackDamaged(f"the base of a delta at {at} has {header.size_bytes:,} bytes")
        content = self._content(header)
        self._cache.put(self._key, at, header.kind, content)
        return content

    def _content(self, header: _Header) -> Content:
        if header.size_bytes <= MEMORY_BYTES:
            return self._inflate(header)[0]
        spill = Spill()
        try:
            self._inflate_into(header, spill.write)
        except BaseException:
            spill.close()
            raise
        return spill

    def _base_offset(self, offset: int, header: _Header) -> int:
        if isinstance(header.base, int):
            return header.base
        found = self._find(header.base or b"")
        if found is None:
            raise PackDamaged(f"the base of the delta at {offset} is missing")
        return found

    def _result_size(self, header: _Header) -> int:
        """The size of a delta's result: the second number at its start."""
        # A deflate block's own tables take up to 600 bytes before the first byte comes out.
        try:
            start = zlib.decompressobj().decompress(self._bytes_at(header.data_at, 1024), 32)
        except zlib.error as error:
            raise PackDamaged(f"the delta at {header.data_at} does not inflate: {error}") from error
        at = 0
        for _ in range(2):
            size = shift = 0
            while True:
                if at >= len(start):
                    raise PackDamaged(f"the delta at {header.data_at} is cut short")
                byte = start[at]
                at += 1
                size |= (byte & 0x7F) << shift
                shift += 7
                if not byte & 0x80:
                    break
        return size

    def _check_stopped(self) -> None:
        if self._stopped:
            raise PackDamaged("the read was stopped")

    def _header(self, offset: int) -> _Header:
        self._check_stopped()
        if not 12 <= offset < self._size_bytes - self._oid_bytes:
            raise PackDamaged(f"an object would start at {offset}, outside the pack")
        head = self._bytes_at(offset, 64)
        try:
            byte = head[0]
            at, kind, size, shift = 1, (byte >> 4) & 7, byte & 15, 4
            while byte & 0x80:
                byte = head[at]
                size |= (byte & 0x7F) << shift
                shift += 7
                at += 1
            base: int | bytes | None = None
            if kind == OFS_DELTA:
                byte = head[at]
                at += 1
                back = byte & 0x7F
                while byte & 0x80:
                    byte = head[at]
                    at += 1
                    back = ((back + 1) << 7) | (byte & 0x7F)
                if back == 0:
                    raise PackDamaged(f"the delta at {offset} is based on itself")
                base = offset - back
            elif kind == REF_DELTA:
                base = bytes(head[at : at + self._oid_bytes])
                at += self._oid_bytes
            elif kind not in (COMMIT, TREE, BLOB, TAG):
                raise PackDamaged(f"the object at {offset} is of no known kind")
        except IndexError as error:
            raise PackDamaged(f"the object at {offset} is cut short") from error
        return _Header(kind, size, offset + at, base)

    # Bytes -------------------------------------------------------------------------------------------------------

    def _bytes_at(self, offset: int, count: int) -> memoryview:
        """Up to `count` bytes from `offset`: fewer at the end of the file."""
        start = offset - self._window_at
        if start < 0 or start + count > len(self._window):
            self._window = os.pread(self._fd, max(count, WINDOW_BYTES), offset)
            self._window_at, start = offset, 0
        return memoryview(self._window)[start : start + count]

    def _inflate(self, header: _Header) -> tuple[bytes, int]:
        """The inflated bytes and the offset behind them."""
        # Deflated data is at most this long, so most objects are one call, with little excess input.
        first = self._bytes_at(header.data_at, min(header.size_bytes + (header.size_bytes >> 8) + 64, WINDOW_BYTES))
        inflater = zlib.decompressobj()
        try:
            content = inflater.decompress(first, header.size_bytes + 1)
        except zlib.error as error:
            raise PackDamaged(f"the object at {header.data_at} does not inflate: {error}") from error
        if inflater.eof and len(content) == header.size_bytes:
            return content, header.data_at + len(first) - len(inflater.unused_data)
        pieces: list[bytes] = []
        end = self._inflate_into(header, pieces.append)
        return b"".join(pieces), end

    def _skip(self, header: _Header) -> int:
        return self._inflate_into(header, lambda piece: None)

    def _inflate_into(self, header: _Header, take: Callable[[bytes], object]) -> int:
        """Pass the inflated bytes to `take` in bounded pieces; returns the offset behind the object."""
        inflater = zlib.decompressobj()
        at, left = header.data_at, header.size_bytes
        pending: bytes | memoryview = b""
        try:
            while not inflater.eof:
                self._check_stopped()
                if not pending:
                    pending = self._bytes_at(at, WINDOW_BYTES)
                    at += len(pending)
                    if not pending:
                        raise PackDamaged(f"the object at {header.data_at} is cut short")
                # One byte more than is left: the end of the stream is only detected by reading past the content.
                piece = inflater.decompress(pending, min(left + 1, INFLATE_STEP_BYTES))
                pending = inflater.unconsumed_tail
                left -= len(piece)
                if left < 0:
                    raise PackDamaged(f"the object at {header.data_at} is longer than its header says")
                if piece:
                    take(piece)
        except zlib.error as error:
            raise PackDamaged(f"the object at {header.data_at} does not inflate: {error}") from error
        if left:
            raise PackDamaged(f"the object at {header.data_at} is shorter than its header says")
        return at - len(inflater.unused_data)  # at the end zlib repeats these bytes in unconsumed_tail

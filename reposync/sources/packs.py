"""Reads git's pack files piece by piece: https://git-scm.com/docs/gitformat-pack

dulwich inflates whole objects and maps whole packs. Here sizes are known before anything is inflated, an object over
the limit never enters memory (nor as the base or result of a delta), and files are read with `pread`: mapped pages
would count as our memory, and a pack that shrinks under a mapping kills the process.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dulwich.lru_cache import LRUSizeCache
from dulwich.pack import apply_delta

from reposync.sources.objects import BLOB, COMMIT, TAG, TREE, object_hash

OFS_DELTA, REF_DELTA = 6, 7

WINDOW_BYTES = 32 * 1024
STEP_BYTES = 256 * 1024
# Larger content is in a file. A delta, its base and its result are in memory at the same time, each up to this size.
MEMORY_BYTES = 16 * 1024 * 1024
# A checkout is read as fast with 8 MB; the largest content that is kept in memory must fit into 80% of it.
CACHE_BYTES = 20 * 1024 * 1024
# Git itself never makes deltas of objects over core.bigFileThreshold (512 MiB), so no honest chain needs more.
MAX_DELTA_BASE_BYTES = 512 * 1024 * 1024
MAX_CHAIN = 10_000  # git writes chains of 50 (4,095 at most); the bound stops a cycle of REF_DELTAs


class PackDamaged(Exception):
    """An object or a whole pack is damaged. Callers that know the path raise SourceCorrupt."""


class ObjectMissing(PackDamaged):
    """There is no such object."""


class Spill:
    """Large content in an unnamed temporary file, which disappears with the process; sliced like bytes."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="reposync-delta-")  # noqa: SIM115 - closed by __del__
        self._size_bytes = 0

    def __len__(self) -> int:
        return self._size_bytes

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._size_bytes += len(piece)

    def __getitem__(self, span: slice) -> bytes:
        self._file.flush()
        return os.pread(self._file.fileno(), span.stop - span.start, span.start)

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # a full disk raises in the constructor
            self._file.close()


Content = bytes | Spill


def pieces_of(content: Content) -> Iterator[bytes]:
    return (content[at : at + STEP_BYTES] for at in range(0, len(content), STEP_BYTES))


def _applied(base: Content, delta: Content, result_bytes: int) -> Content:
    """`base` with `delta` applied, which declares `result_bytes`. Raises ValueError if they do not fit."""
    if isinstance(base, bytes) and isinstance(delta, bytes) and result_bytes <= MEMORY_BYTES:
        try:
            return b"".join(apply_delta(base, delta))
        except Exception as error:  # the extension raises several kinds
            raise ValueError(str(error)) from error
    result = Spill()
    try:
        for piece in _result_pieces(base, delta, result_bytes):
            result.write(piece)
    except IndexError as error:
        raise ValueError("it is cut short") from error
    return result


def _result_pieces(base: Content, delta: Content, result_bytes: int) -> Iterator[bytes]:
    """The result of a delta, in pieces of at most 16 MB."""
    base_bytes, at = _number(delta, 0)
    declared_bytes, at = _number(delta, at)
    if (base_bytes, declared_bytes) != (len(base), result_bytes):
        raise ValueError("it is for a base of a different size")
    left = result_bytes
    while at < len(delta):
        instruction = delta[at : at + 8]
        count = instruction[0]
        at += 1
        if count & 0x80:  # copy: the low seven bits say which bytes of offset and count follow
            fields, used = bytearray(7), 1
            for bit in range(7):
                if instruction[0] >> bit & 1:
                    fields[bit] = instruction[used]
                    used += 1
            at += used - 1
            offset = int.from_bytes(fields[:4], "little")
            count = int.from_bytes(fields[4:], "little") or 0x10000
            piece = base[offset : offset + count]
        else:
            piece = delta[at : at + count]
            at += count
        left -= count
        if count == 0 or len(piece) != count or left < 0:
            raise ValueError("it copies what is not there, or more than declared")
        yield piece
    if left:
        raise ValueError("its result is shorter than declared")


def _number(content: Content, at: int) -> tuple[int, int]:
    """The number at `at`, seven bits a byte, and the place behind it."""
    number = shift = 0
    for byte in content[at : at + 10]:
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if not byte & 0x80:
            return number, at
    raise ValueError("a number is cut short")


def _cost_bytes(cached: tuple[int, Content]) -> int:
    return len(cached[1]) if isinstance(cached[1], bytes) else CACHE_BYTES // 2


@dataclass(frozen=True, slots=True)
class PackedObject:
    """`content` is None if `size_bytes` is over the limit."""

    kind: int
    size_bytes: int
    content: bytes | None


@dataclass(slots=True)
class _Header:
    """`base` is the offset or the name of a delta's base."""

    kind: int
    size_bytes: int
    data_at: int
    base: int | bytes | None


class PackFile:
    """A pack on disk, opened for reading. Not thread-safe, except `stop`; the caller closes the file descriptor."""

    def __init__(self, fd: int, *, oid_bytes: int, find: Callable[[bytes], int | None] = lambda sha: None) -> None:
        """`find` gives the offset of an object of this pack by its binary name, for deltas that name their base."""
        self._fd = fd
        self._size_bytes = os.fstat(fd).st_size
        self._oid_bytes = oid_bytes
        # Kind and content of the last resolved objects by offset, likely bases of the next deltas. Of large contents,
        # in files, it keeps one or two.
        self._cache = LRUSizeCache[int, tuple[int, Content]](CACHE_BYTES, compute_size=_cost_bytes)
        self._find = find
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
        kind, size_bytes, content = self._resolve(offset, max_bytes)
        return PackedObject(kind, size_bytes, None if content is None else content[0 : len(content)])

    def index(self, hash_name: str) -> dict[bytes, int]:
        """The offsets of all objects by their binary names, the hashes of their contents. Raises PackDamaged."""
        offsets: dict[bytes, int] = {}
        self._find = offsets.get
        # Deltas by the offset or the name of their base.
        waiting: dict[int | bytes, list[int]] = {}
        at = 12
        for _ in range(self.object_count()):
            offset, header = at, self._header(at)
            if header.base is not None:
                at = self._inflate_into(header, lambda piece: None)
                waiting.setdefault(header.base, []).append(offset)
                continue
            running = object_hash(header.kind, header.size_bytes, hash_name)
            at = self._inflate_into(header, running.update)
            offsets[running.digest()] = offset
        if at != self._size_bytes - self._oid_bytes:
            raise PackDamaged("it is cut short, or longer than its objects")
        # Depth first: the base of each is then usually the one resolved last.
        ready: list[int] = []
        for sha, offset in list(offsets.items()) if waiting else ():
            ready += waiting.pop(sha, []) + waiting.pop(offset, [])
            while ready:
                delta_at = ready.pop()
                name = self._name_of_delta(delta_at, hash_name)
                offsets[name] = delta_at
                ready += waiting.pop(name, []) + waiting.pop(delta_at, [])
        if waiting:
            raise PackDamaged("it contains a delta whose base is missing")
        return offsets

    def _name_of_delta(self, offset: int, hash_name: str) -> bytes:
        # The name is the hash of the result, so the result is needed even if it is large.
        kind, size_bytes, content = self._resolve(offset, MAX_DELTA_BASE_BYTES)
        if content is None:
            raise PackDamaged(f"it contains a delta that expands to {size_bytes:,} bytes")
        running = object_hash(kind, size_bytes, hash_name)
        for piece in pieces_of(content):
            running.update(piece)
        return running.digest()

    def _resolve(self, offset: int, max_bytes: int) -> tuple[int, int, Content | None]:
        """Kind, size and content; no content if the declared size is over `max_bytes`."""
        at, header = offset, self._header(offset)
        size_bytes = header.size_bytes if header.base is None else self._result_size(header)
        chain: list[tuple[int, _Header]] = []
        while (cached := self._cache.get(at)) is None and header.base is not None:
            chain.append((at, header))
            if len(chain) > MAX_CHAIN:
                raise PackDamaged(f"the chain of deltas at {offset} does not end")
            at = self._base_offset(at, header.base)
            header = self._header(at)
        kind = header.kind if cached is None else cached[0]
        if size_bytes > max_bytes:
            return kind, size_bytes, None
        if cached is not None:
            content = cached[1]
        else:
            if chain and header.size_bytes > MAX_DELTA_BASE_BYTES:
                raise PackDamaged(f"the base of a delta at {at} has {header.size_bytes:,} bytes")
            content = self._content(header)
            self._cache[at] = kind, content
        for delta_at, delta_header in reversed(chain):
            result_bytes = self._result_size(delta_header)
            if max(delta_header.size_bytes, result_bytes) > MAX_DELTA_BASE_BYTES:
                raise PackDamaged(f"a delta at {delta_at} expands to more than {MAX_DELTA_BASE_BYTES:,} bytes")
            try:
                content = _applied(content, self._content(delta_header), result_bytes)
            except ValueError as error:
                raise PackDamaged(f"the delta at {delta_at} does not fit its base: {error}") from error
            self._cache[delta_at] = kind, content
        return kind, len(content), content

    def _content(self, header: _Header) -> Content:
        if header.size_bytes > MEMORY_BYTES:
            spill = Spill()
            self._inflate_into(header, spill.write)
            return spill
        # Deflated data is at most this long, so most objects are one call.
        first = self._bytes_at(header.data_at, min(header.size_bytes + (header.size_bytes >> 8) + 64, WINDOW_BYTES))
        inflater = zlib.decompressobj()
        try:
            content = inflater.decompress(first, header.size_bytes + 1)
        except zlib.error as error:
            raise PackDamaged(f"the object at {header.data_at} does not inflate: {error}") from error
        if inflater.eof and len(content) == header.size_bytes:
            return content
        pieces: list[bytes] = []
        self._inflate_into(header, pieces.append)
        return b"".join(pieces)

    def _base_offset(self, offset: int, base: int | bytes) -> int:
        found = base if isinstance(base, int) else self._find(base)
        if found is None:
            raise PackDamaged(f"the base of the delta at {offset} is missing")
        return found

    def _result_size(self, header: _Header) -> int:
        """The size of a delta's result: the second number at its start."""
        # A deflate block's own tables take up to 600 bytes before the first byte comes out.
        try:
            start = zlib.decompressobj().decompress(self._bytes_at(header.data_at, 1024), 32)
            return _number(start, _number(start, 0)[1])[0]
        except (zlib.error, ValueError) as error:
            raise PackDamaged(f"the delta at {header.data_at} does not inflate: {error}") from error

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

    def _bytes_at(self, offset: int, count: int) -> memoryview:
        """Up to `count` bytes from `offset`: fewer at the end of the file."""
        start = offset - self._window_at
        if start < 0 or start + count > len(self._window):
            self._window = os.pread(self._fd, max(count, WINDOW_BYTES), offset)
            self._window_at, start = offset, 0
        return memoryview(self._window)[start : start + count]

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
                piece = inflater.decompress(pending, min(left + 1, STEP_BYTES))
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

"""Contents for resolving deltas: small ones in memory, large ones in temporary files.

Format: https://git-scm.com/docs/gitformat-pack ("Deltified representation").
"""

from __future__ import annotations

import io
import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from typing import IO

from dulwich.pack import apply_delta

# A delta, its base and its result are in memory at the same time, each up to this size.
MEMORY_BYTES = 16 * 1024 * 1024
STEP_BYTES = 256 * 1024
CACHE_BYTES = 16 * 1024 * 1024
# The next delta is usually based on the last result or on its base.
LARGE_KEPT = 2


class Spill:
    """Content in an unnamed temporary file, which disappears with the process."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="reposync-delta-")  # noqa: SIM115 - closed by the owner
        self._size_bytes = 0

    def __len__(self) -> int:
        return self._size_bytes

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._size_bytes += len(piece)

    def reader(self) -> IO[bytes]:
        """The file at its start; one at a time."""
        self._file.seek(0)
        return self._file

    def pieces(self, offset: int, count: int) -> Iterator[bytes]:
        """`count` bytes from `offset`, which must exist."""
        self._file.flush()
        end = offset + count
        while offset < end:
            piece = os.pread(self._file.fileno(), min(STEP_BYTES, end - offset), offset)
            if not piece:
                raise OSError("a temporary file was cut short")
            offset += len(piece)
            yield piece

    def close(self) -> None:
        self._file.close()


Content = bytes | Spill


def pieces_of(content: Content) -> Iterator[bytes]:
    """The content: in bounded pieces if it is in a file, else in one."""
    return content.pieces(0, len(content)) if isinstance(content, Spill) else iter((content,))


def in_memory(content: Content) -> bytes:
    return b"".join(pieces_of(content))


def applied(base: Content, delta: Content, result_bytes: int) -> Content:
    """`base` with `delta` applied; `result_bytes` is the size that the delta declares. Raises ValueError if they do not
    fit."""
    if isinstance(base, bytes) and isinstance(delta, bytes) and result_bytes <= MEMORY_BYTES:
        try:
            return b"".join(apply_delta(base, delta))
        except Exception as error:  # the extension raises several kinds
            raise ValueError(str(error)) from error
    result: Spill | _Buffer = Spill() if result_bytes > MEMORY_BYTES else _Buffer()
    try:
        _apply(base, delta.reader() if isinstance(delta, Spill) else io.BytesIO(delta), result, result_bytes)
    except BaseException:
        result.close()
        raise
    return result if isinstance(result, Spill) else result.getvalue()


class _Buffer(io.BytesIO):
    def __len__(self) -> int:
        return self.tell()


def _apply(base: Content, delta: IO[bytes], result: Spill | _Buffer, result_bytes: int) -> None:
    if (_size(delta), _size(delta)) != (len(base), result_bytes):
        raise ValueError("it is for a base of a different size")
    while code := delta.read(1):
        if code[0] & 0x80:
            offset, count = _copied(code[0], delta)
            if offset + count > len(base):
                raise ValueError("it copies from beyond the end of its base")
        else:
            count = code[0]
        if count == 0 or len(result) + count > result_bytes:
            raise ValueError("its result is longer than declared")
        if not code[0] & 0x80:
            result.write(_exactly(delta, count))
        elif isinstance(base, Spill):
            for piece in base.pieces(offset, count):
                result.write(piece)
        else:
            result.write(base[offset : offset + count])
    if len(result) != result_bytes:
        raise ValueError("its result is shorter than declared")


def _copied(code: int, delta: IO[bytes]) -> tuple[int, int]:
    """Offset and count of an instruction to copy: bytes that the low seven bits of `code` say are there."""
    packed = iter(_exactly(delta, (code & 0x7F).bit_count()))
    values = [next(packed) if code >> bit & 1 else 0 for bit in range(7)]
    return int.from_bytes(bytes(values[:4]), "little"), int.from_bytes(bytes(values[4:]), "little") or 0x10000


def _size(delta: IO[bytes]) -> int:
    size = shift = 0
    while True:
        [byte] = _exactly(delta, 1)
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return size


def _exactly(delta: IO[bytes], count: int) -> bytes:
    piece = delta.read(count)
    if len(piece) < count:
        raise ValueError("it is cut short")
    return piece


class BaseCache:
    """The last resolved objects, likely bases of the next deltas: small ones bounded in bytes, and the last two large
    ones. A cache may be shared by many packs."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._small: OrderedDict[tuple[int, int], tuple[int, bytes]] = OrderedDict()
        self._large: OrderedDict[tuple[int, int], tuple[int, Content]] = OrderedDict()
        self._kept = LARGE_KEPT

    def get(self, pack: int, offset: int) -> tuple[int, Content] | None:
        key = (pack, offset)
        if (small := self._small.get(key)) is not None:
            self._small.move_to_end(key)
            return small
        if (large := self._large.get(key)) is not None:
            self._large.move_to_end(key)
        return large

    def put(self, pack: int, offset: int, kind: int, content: Content) -> None:
        """A large one is closed when the second one after it is added."""
        key = (pack, offset)
        if key in self._small or key in self._large:
            return
        if isinstance(content, Spill) or len(content) > self._max_bytes // 4:
            if isinstance(content, Spill) or len(content) <= MEMORY_BYTES:
                self._large[key] = (kind, content)
            while len(self._large) > self._kept:
                _close(self._large.popitem(last=False)[1][1])
            return
        self._small[key] = (kind, content)
        self._bytes += len(content)
        while self._bytes > self._max_bytes:
            _, (_, dropped) = self._small.popitem(last=False)
            self._bytes -= len(dropped)

    def close(self) -> None:
        """Close all files, also those that a thread adds later."""
        self._kept = 0
        while self._large:
            _close(self._large.popitem()[1][1])


def _close(content: Content) -> None:
    if isinstance(content, Spill):
        content.close()

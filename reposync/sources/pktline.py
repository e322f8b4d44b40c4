"""Git's framing: lines with their length in front. https://git-scm.com/docs/protocol-common

dulwich's push parser stops at the delimiters of protocol version 2, and its other one reads a blocking stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum


class Mark(Enum):
    """Packets without content."""

    FLUSH = 0
    DELIMITER = 1
    RESPONSE_END = 2


FLUSH_PACKET = b"0000"
DELIMITER_PACKET = b"0001"


class FramingError(Exception):
    """What came is no pkt-line."""


def packet(line: bytes) -> bytes:
    return b"%04x%s" % (len(line) + 4, line)


class PacketReader:
    """Takes an answer apart as it arrives; at most one incomplete packet (65,520 bytes) is held."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes | Mark]:
        """The packets completed by `piece`. Raises FramingError."""
        buffer = self._rest + piece if self._rest else piece
        at = 0
        while len(buffer) - at >= 4:
            try:
                length = int(buffer[at : at + 4], 16)
            except ValueError as error:
                raise FramingError(f"{buffer[at : at + 4]!r} is no packet length") from error
            if length < 4:
                if length == 3:
                    raise FramingError("0003 is no packet length")
                at += 4
                yield Mark(length)
            elif length <= len(buffer) - at:
                yield buffer[at + 4 : at + length]
                at += length
            else:
                break
        self._rest = buffer[at:]

    @property
    def complete(self) -> bool:
        """False in the middle of a packet."""
        return not self._rest

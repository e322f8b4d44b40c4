"""Messages of git's smart protocol, apart from the HTTP that carries them.
https://git-scm.com/docs/protocol-v2, https://git-scm.com/docs/pack-protocol
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from reposync import __version__
from reposync.errors import SourceCorrupt, SourceError
from reposync.http_client import TransientFailure
from reposync.outgoing import printable

AGENT = f"git/reposync-{__version__}"


# Packets: lines with their length in front. dulwich's push parser stops at the delimiters of version 2, and its other
# parser reads a blocking stream. https://git-scm.com/docs/protocol-common


class Mark(Enum):
    """Packets without content."""

    FLUSH = 0
    DELIMITER = 1
    RESPONSE_END = 2


FLUSH_PACKET = b"0000"
DELIMITER_PACKET = b"0001"


class FramingError(Exception):
    """Received bytes are no pkt-line."""


def packet(line: bytes) -> bytes:
    return b"%04x%s" % (len(line) + 4, line)


class PacketReader:
    """Splits an answer into packets as it arrives; buffers at most one incomplete packet (65,520 bytes)."""

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
                raise FramingError(
                    f"the answer is not git's: {bytes(buffer[at : at + 4])!r} is no packet length"
                ) from error
            if length < 4:
                if length == 3:
                    raise FramingError("the answer is not git's: 0003 is no packet length")
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
        """False within a packet."""
        return not self._rest


# Messages -----------------------------------------------------------------------------------------------------------


class FetchRefused(Exception):
    """Git on the server refused a request: a filter is disabled, or an object is missing."""


@dataclass(frozen=True, slots=True)
class Advertisement:
    """A server's capabilities."""

    version: int
    capabilities: dict[str, str]
    refs: dict[bytes, str] = field(default_factory=dict)
    symbolic: dict[bytes, bytes] = field(default_factory=dict)
    """Targets of symbolic refs, in version 0."""

    @property
    def object_format(self) -> str:
        return self.capabilities.get("object-format", "sha1")

    @property
    def filters(self) -> bool:
        """Whether blobs can be left out of a fetch and requested one by one."""
        return self.version == 2 and "filter" in self.capabilities.get("fetch", "").split()


def parse_advertisement(packets: Sequence[bytes | Mark], shown: str) -> Advertisement:
    lines = [line.rstrip(b"\n") for line in packets if isinstance(line, bytes)]
    if lines and lines[0].startswith(b"# service="):
        lines = lines[1:]
    if not lines:
        raise no_git_server(shown, "nothing")
    stop_at_error(lines[0])
    if lines[0] == b"version 2":
        pairs = (line.decode("utf-8", "replace").partition("=") for line in lines[1:])
        return Advertisement(2, {name: value for name, _, value in pairs})
    if lines[0] == b"version 1":
        lines = lines[1:]
    refs: dict[bytes, str] = {}
    symbolic: dict[bytes, bytes] = {}
    capabilities: dict[str, str] = {}
    for line in lines:
        ref, nul, rest = line.partition(b"\0")
        if nul:
            pairs = (word.partition("=") for word in rest.decode("utf-8", "replace").split())
            capabilities = {name: value for name, _, value in pairs}
            # `symref` may come several times.
            links = (word.removeprefix(b"symref=") for word in rest.split() if word.startswith(b"symref="))
            symbolic = {name: target for name, _, target in (link.partition(b":") for link in links)}
        sha, _, name = ref.partition(b" ")
        if name != b"capabilities^{}" and not name.endswith(b"^{}") and not sha.startswith(b"shallow"):
            refs[name] = object_name(sha)
    return Advertisement(0, capabilities, refs, symbolic)


def no_git_server(shown: str, sent: str) -> SourceCorrupt:
    """The error for an answer with status 200 that is not git's: a wrong URL, or a proxy's page (a login, maintenance)
    that will be gone later."""
    what = printable(sent) or "something else"
    return SourceCorrupt(
        f"{shown} did not answer as a git server that speaks smart HTTP: it sent {what}.",
        remedy="If it persists, check the URL (it is the one that `git clone` takes) and the proxies between.",
    )


def parse_refs(packets: Sequence[bytes | Mark]) -> tuple[dict[bytes, str], dict[bytes, bytes]]:
    """The answer to `ls-refs`: refs, and the targets of symbolic ones (unborn branches included)."""
    refs: dict[bytes, str] = {}
    symbolic: dict[bytes, bytes] = {}
    for line in packets:
        if isinstance(line, Mark):
            continue
        stop_at_error(line)
        sha, _, rest = line.rstrip(b"\n").partition(b" ")
        name, *attributes = rest.split(b" ")
        if sha != b"unborn":
            refs[name] = object_name(sha)
        for attribute in attributes:
            if attribute.startswith(b"symref-target:"):
                symbolic[name] = attribute.removeprefix(b"symref-target:")
    return refs, symbolic


def version_2_command(server: Advertisement, name: bytes, arguments: Sequence[bytes]) -> bytes:
    head = [b"command=" + name, b"agent=" + AGENT.encode()]
    if "object-format" in server.capabilities:
        head.append(b"object-format=" + server.object_format.encode())
    packets = [packet(line + b"\n") for line in head]
    return b"".join([*packets, DELIMITER_PACKET, *(packet(line + b"\n") for line in arguments), FLUSH_PACKET])


def fetch_request(
    server: Advertisement,
    wants: Sequence[str],
    *,
    depth: int | None,
    filter_spec: str | None,
) -> bytes:
    """The request body for a pack with `wants`, in the server's version of the protocol (0 without filters)."""
    if server.version != 2:
        return _version_0_fetch(server, wants, depth)
    arguments = [b"ofs-delta", b"no-progress", *(b"want " + sha.encode() for sha in wants)]
    if depth is not None:
        arguments.append(b"deepen %d" % depth)
    if filter_spec is not None:
        arguments.append(b"filter " + filter_spec.encode())
    return version_2_command(server, b"fetch", [*arguments, b"done"])


def _version_0_fetch(server: Advertisement, wants: Sequence[str], depth: int | None) -> bytes:
    known = ("side-band-64k", "ofs-delta", "no-progress")
    if "side-band-64k" not in server.capabilities:
        raise SourceError("The git server is too old: it supports neither protocol version 2 nor side-band-64k.")
    features = [name for name in known if name in server.capabilities] + [f"agent={AGENT}"]
    if server.object_format != "sha1":
        features.append(f"object-format={server.object_format}")
    first, *others = wants
    lines = [packet(f"want {first} {' '.join(features)}\n".encode())]
    lines += [packet(f"want {sha}\n".encode()) for sha in others]
    if depth is not None and "shallow" in server.capabilities:
        lines.append(packet(b"deepen %d\n" % depth))
    return b"".join([*lines, FLUSH_PACKET, packet(b"done\n")])


def stop_at_error(line: bytes) -> None:
    """Raises FetchRefused if the line is an error of git."""
    if line.startswith(b"ERR "):
        raise FetchRefused(printable(line[4:]))


def object_name(text: bytes) -> str:
    if len(text) not in (40, 64) or not all(byte in b"0123456789abcdef" for byte in text):
        raise TransientFailure("the answer is not git's (no object name)", corrupt=True)
    return text.decode("ascii")

"""What git's smart protocol says, apart from the HTTP that carries it.
https://git-scm.com/docs/protocol-v2, https://git-scm.com/docs/pack-protocol
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reposync import __version__
from reposync.errors import SourceCorrupt, SourceError
from reposync.sources.pktline import DELIMITER_PACKET, FLUSH_PACKET, Mark, packet
from reposync.sources.retries import TransientFailure

AGENT = f"git/reposync-{__version__}"


class FetchRefused(Exception):
    """Git itself on the server refused what was asked for: a filter that is off, an object that it does not have."""


@dataclass(frozen=True, slots=True)
class Advertisement:
    """What a server says of itself."""

    version: int
    capabilities: dict[str, str]
    refs: dict[bytes, str] = field(default_factory=dict)
    symbolic: dict[bytes, bytes] = field(default_factory=dict)
    """Where symbolic refs point, as version 0 says it."""

    @property
    def object_format(self) -> str:
        return self.capabilities.get("object-format", "sha1")

    @property
    def filters(self) -> bool:
        """Whether blobs can be left out of a fetch and asked for one by one."""
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
    """The error for an answer with status 200 that is not git's: a wrong URL, or a page of a proxy (a login, work that
    is under way) that will be gone again."""
    what = printable(sent.encode()) or "something else"
    return SourceCorrupt(
        f"{shown} did not answer as a git server that speaks smart HTTP: it sent {what}.",
        remedy="If this goes on, check the URL (it is the one that `git clone` takes) and the proxies between.",
    )


def parse_refs(packets: Sequence[bytes | Mark]) -> tuple[dict[bytes, str], dict[bytes, bytes]]:
    """The answer to `ls-refs`: refs, and where symbolic ones point (unborn branches included)."""
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
    haves: Sequence[str] = (),
    depth: int | None,
    filter_spec: str | None,
) -> bytes:
    """The body that asks for a pack with `wants`, in the words of the server's version (0 knows no filter here). What
    the commits `haves` consist of is left out, with their history (version 2)."""
    if server.version != 2:
        return _version_0_fetch(server, wants, depth)
    arguments = [b"ofs-delta", b"no-progress", *(b"want " + sha.encode() for sha in wants)]
    arguments += [b"have " + sha.encode() for sha in haves]
    if depth is not None:
        arguments.append(b"deepen %d" % depth)
    if filter_spec is not None:
        arguments.append(b"filter " + filter_spec.encode())
    return version_2_command(server, b"fetch", [*arguments, b"done"])


def _version_0_fetch(server: Advertisement, wants: Sequence[str], depth: int | None) -> bytes:
    known = ("side-band-64k", "ofs-delta", "no-progress")
    if "side-band-64k" not in server.capabilities:
        raise SourceError("The git server is too old: it knows neither protocol version 2 nor side-band-64k.")
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
    """Raises FetchRefused where the line is git's error."""
    if line.startswith(b"ERR "):
        raise FetchRefused(printable(line[4:]))


def object_name(text: bytes) -> str:
    if len(text) not in (40, 64) or not all(byte in b"0123456789abcdef" for byte in text):
        raise TransientFailure("the answer is not git's (no object name)", corrupt=True)
    return text.decode("ascii")


def printable(text: bytes) -> str:
    """What a server says, as one line without control characters: it ends up in logs and on terminals."""
    words = " ".join(text.decode("utf-8", "replace").split())
    return "".join(letter for letter in words if letter.isprintable())[:300]

"""Fetching from a git server by smart HTTP, protocol version 2 (and 0 if a server supports no other).

dulwich's client requests the refs again with every fetch: three requests a batch. Here they are requested once, so that
a batch is one request; packs are written to disk as they arrive, and a cancelled task closes its connection.
https://git-scm.com/docs/protocol-v2, https://git-scm.com/docs/http-protocol
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from reposync import __version__
from reposync.errors import SourceCorrupt, SourceError, SourceUnavailable
from reposync.http_client import ErrorKinds, HttpClient, TransientFailure
from reposync.outgoing import MinimumRate, RequestObserver, RetryPolicy, Timeouts, TooLarge, printable
from reposync.sources.object_stores import ReceivedPack, SpoolFull
from reposync.sources.objects import read_steps
from reposync.sources.packs import PackDamaged
from reposync.sources.port import Blob

SOURCE_ERRORS = ErrorKinds(SourceError, SourceUnavailable, SourceCorrupt)

AGENT = f"git/reposync-{__version__}"
ADVERTISEMENT_TYPE = "application/x-git-upload-pack-advertisement"
INFO_REFS = "/info/refs?service=git-upload-pack"
MAX_REFS_BYTES = 128 * 1024 * 1024  # a million refs
MAX_REF_LINES = 2_000_000
MAX_SPOOL_BYTES = 4 * 1024 * 1024 * 1024
# Beside the pack: progress messages.
MAX_CHATTER_BYTES = 64 * 1024 * 1024
FLUSH_BYTES = 1024 * 1024
# While it packs a huge repository a server sends a few bytes every five seconds, for minutes.
PACKING_FACTOR = 10
MAX_FETCH_SECONDS = 6 * 3600.0

# One request each. Of real source files 2,000 make a pack of 3 MB, fetched in 0.5 s; more saves nothing.
BATCH_BLOBS = 2_000
# A server refuses the whole batch for a missing object and names it; so many are left out before giving up.
MAX_MISSING = 25

_NOT_OUR_REF = re.compile(r"not our ref ([0-9a-f]{40,64})")


class FetchRefused(Exception):
    """Git on the server refused a request: a filter is disabled, or an object is missing."""


@dataclass(frozen=True, slots=True)
class Refs:
    """The shas of refs, and the targets of symbolic ones (unborn branches included)."""

    shas: dict[bytes, str] = field(default_factory=dict)
    symbolic: dict[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Advertisement:
    """A server's capabilities; in version 0 its refs, too."""

    version: int
    capabilities: dict[str, str]
    refs: Refs = field(default_factory=Refs)

    @property
    def object_format(self) -> str:
        return self.capabilities.get("object-format", "sha1")

    @property
    def filters(self) -> bool:
        """Whether blobs can be left out of a fetch and requested one by one."""
        return self.version == 2 and "filter" in self.capabilities.get("fetch", "").split()


class UploadPack:
    """One repository on one git server. Every method raises SourceUnavailable after its retries, HttpRefused for 401,
    403, 404 and the like, SourceError if this is no git server."""

    def __init__(
        self,
        url: str,
        *,
        username: str | None,
        password: str | None,
        ca_file: Path | None = None,
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
        observer: RequestObserver | None = None,
        max_spool_bytes: int = MAX_SPOOL_BYTES,
    ) -> None:
        self.shown = url  # holds no secret: see outgoing.parse_address
        self._url = url
        self._max_spool_bytes = max_spool_bytes
        self._http = HttpClient(
            url,
            SOURCE_ERRORS,
            ca_file=ca_file,
            timeouts=timeouts or Timeouts(),
            policy=retry or RetryPolicy(),
            observer=observer,
            headers={"Git-Protocol": "version=2", "User-Agent": AGENT, "Accept-Encoding": "gzip"},
            # Sent with the first request: a server counts every refused attempt as a failed login.
            auth=httpx.BasicAuth(username or "", password or "") if username or password else None,
        )
        self._advertised: Advertisement | None = None

    async def advertised(self) -> Advertisement:
        """Capabilities (and with version 0 the refs), requested once."""
        if self._advertised is None:
            self._advertised = await self._http.retry(
                self._request_advertisement, doing=f"Reading refs of {self.shown}"
            )
            if self._advertised.object_format not in ("sha1", "sha256"):
                raise SourceError(f"{self.shown} uses {self._advertised.object_format} object names; unknown here.")
        return self._advertised

    async def refs(self, prefix: bytes) -> Refs:
        """The refs that start with `prefix`."""
        server = await self.advertised()
        if server.version != 2:
            shas = {name: sha for name, sha in server.refs.shas.items() if name.startswith(prefix)}
            return Refs(shas, server.refs.symbolic)
        arguments = [b"symrefs", b"ref-prefix " + prefix]
        if "unborn" in server.capabilities.get("ls-refs", ""):
            arguments.append(b"unborn")
        body = _command(server, b"ls-refs", arguments)
        return await self._http.retry(lambda: self._request_refs(body), doing=f"Reading refs of {self.shown}")

    async def fetch(
        self, wants: Sequence[str], *, depth: int | None = None, filter_spec: str | None = None
    ) -> ReceivedPack:
        """A pack with the objects `wants`. Raises FetchRefused, SpoolFull; SourceCorrupt if all attempts failed."""
        server = await self.advertised()
        if server.version == 2:
            arguments = [b"ofs-delta", b"no-progress", *(b"want " + sha.encode() for sha in wants)]
            arguments += [b"deepen %d" % depth] if depth is not None else []
            arguments += [b"filter " + filter_spec.encode()] if filter_spec is not None else []
            body = _command(server, b"fetch", [*arguments, b"done"])
        else:
            body = _version_0_fetch(server, wants, depth)
        receive = partial(self._receive, body, server)
        return await self._http.retry(receive, doing=f"Fetching from {self.shown}")

    async def blobs(
        self, shas: Sequence[str], *, max_bytes: int, unreadable: dict[str, str], max_missing: int = MAX_MISSING
    ) -> AsyncGenerator[Blob, None]:
        """The blobs, each verified, in batches; those that are missing on the server go to `unreadable` (sha ->
        reason). Needs protocol version 2.

        Raises what `fetch` raises; FetchRefused if the server sends no objects by name.
        """
        batches = deque(list(shas[at : at + BATCH_BLOBS]) for at in range(0, len(shas), BATCH_BLOBS))
        while batches:
            batch = batches.popleft()
            try:
                pack = await self.fetch(batch)
            except SpoolFull as error:
                if len(batch) > 1:
                    middle = len(batch) // 2
                    batches.extendleft((batch[middle:], batch[:middle]))
                elif error.only_blob_bytes is not None and error.only_blob_bytes > max_bytes:
                    # The only size that is accepted without a hash: gigabytes of this blob were received.
                    yield Blob(batch[0], error.only_blob_bytes, None)
                else:
                    unreadable[batch[0]] = "is too large to be fetched"
                continue
            except FetchRefused as error:
                missing = _NOT_OUR_REF.search(str(error))
                if missing is None or missing[1] not in batch or max_missing <= 0:
                    raise
                max_missing -= 1
                unreadable[missing[1]] = "is missing on the server"
                if left := [sha for sha in batch if sha != missing[1]]:
                    batches.appendleft(left)
                continue
            try:
                found = pack.blobs(batch, max_bytes=max_bytes, unreadable=unreadable)
                async with aclosing(read_steps(found)) as steps:
                    async for blob in steps:
                        yield blob
            finally:
                pack.close()

    async def close(self) -> None:
        await self._http.close()

    # Requests ----------------------------------------------------------------------------------------------------

    async def _request_advertisement(self) -> Advertisement:
        async with self._http.stream("GET", f"{self._url}{INFO_REFS}", kind="git_refs") as response:
            if not (media_type := response.headers.get("Content-Type", "")).startswith(ADVERTISEMENT_TYPE):
                raise _no_git_server(self.shown, media_type.partition(";")[0])
            lines = await self._lines(response)
        url = str(response.url)
        if not url.endswith(INFO_REFS):
            raise SourceError(f"{self.shown} redirects to {url}, which is no git repository.")
        self._url = url.removesuffix(INFO_REFS)
        return parse_advertisement(lines, self.shown)

    async def _request_refs(self, body: bytes) -> Refs:
        async with self._post("git_refs", body) as response:
            return _parse_refs(await self._lines(response))

    async def _receive(self, body: bytes, server: Advertisement) -> ReceivedPack:
        oid_bytes = 32 if server.object_format == "sha256" else 20
        pack = await asyncio.to_thread(ReceivedPack, self.shown, oid_bytes=oid_bytes, max_bytes=self._max_spool_bytes)
        try:
            async with self._post("git_fetch", body) as response:
                rate = MinimumRate(PACKING_FACTOR * self._http.timeouts.read_seconds, MAX_FETCH_SECONDS)
                received = self._http.body(response, self._max_spool_bytes + MAX_CHATTER_BYTES, rate)
                async with aclosing(_pack_pieces(received, server.version)) as pieces:
                    async for piece in pieces:
                        await asyncio.to_thread(pack.write, piece)
            await asyncio.to_thread(pack.finish)
        except BaseException as error:
            pack.close()
            if isinstance(error, PackDamaged):
                raise TransientFailure(f"the pack is damaged: {error}", corrupt=True) from error
            raise
        return pack

    def _post(self, kind: str, body: bytes) -> AbstractAsyncContextManager[httpx.Response]:
        media = "application/x-git-upload-pack-"
        headers = {"Content-Type": f"{media}request", "Accept": f"{media}result"}
        return self._http.stream("POST", f"{self._url}/git-upload-pack", kind=kind, headers=headers, content=body)

    async def _lines(self, response: httpx.Response) -> list[bytes]:
        """The packets of a response that ends with a flush."""
        reader, packets = PacketReader(), list[bytes | None]()
        async for piece in self._http.body(response, MAX_REFS_BYTES):
            packets.extend(reader.feed(piece))
            if len(packets) > MAX_REF_LINES:
                raise TooLarge(f"more than {MAX_REF_LINES:,} lines")
        if not reader.complete or not packets or packets[-1] is not None:
            raise TransientFailure("the answer was cut short", corrupt=True)
        return [line.rstrip(b"\n") for line in packets if line is not None]


async def _pack_pieces(body: AsyncIterator[bytes], version: int) -> AsyncGenerator[bytes, None]:
    """The pack in a fetch's answer (side band 1), about a megabyte at a time."""
    reader, buffered = PacketReader(), bytearray()
    # Version 2 names the section; version 0 sends shallow lines, a flush, ACK or NAK, and then the pack.
    start = (b"packfile",) if version == 2 else (b"NAK", b"ACK")
    in_pack = done = False
    chatter_bytes = 0
    async for piece in body:
        for line in reader.feed(piece):
            if in_pack and line is not None and line[:1] == b"\1":
                buffered += line[1:]
                continue
            chatter_bytes += 4 + len(line or b"")
            if chatter_bytes > MAX_CHATTER_BYTES:
                raise TooLarge(f"more than {MAX_CHATTER_BYTES:,} bytes beside the pack")
            if line is None:
                done = done or in_pack
            elif not in_pack:
                _stop_at_error(line)
                in_pack = line.startswith(start)
            elif line[:1] == b"\3":
                raise FetchRefused(printable(line[1:]))
        if len(buffered) >= FLUSH_BYTES:
            yield bytes(buffered)
            buffered.clear()
    if not done or not reader.complete:
        raise PackDamaged("it was cut short")
    yield bytes(buffered)


# Messages ------------------------------------------------------------------------------------------------------------


def packet(line: bytes) -> bytes:
    return b"%04x%s" % (len(line) + 4, line)


class PacketReader:
    """Splits an answer into packets as it arrives; buffers at most one incomplete packet (65,520 bytes). dulwich's push
    parser stops at the delimiters of version 2, and its other parser reads a blocking stream.
    https://git-scm.com/docs/protocol-common"""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes | None]:
        """The packets completed by `piece`, None for a flush. Raises TransientFailure."""
        buffer = self._rest + piece
        at = 0
        while len(buffer) - at >= 4:
            try:
                length = int(buffer[at : at + 4], 16)
            except ValueError:
                length = 3
            if length == 3:
                shown = bytes(buffer[at : at + 4])
                raise TransientFailure(f"the answer is not git's: {shown!r} is no packet length", corrupt=True)
            if length < 4:  # 0001 and 0002 are delimiters
                if length == 0:
                    yield None
                at += 4
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


def parse_advertisement(lines: Sequence[bytes], shown: str) -> Advertisement:
    if lines and lines[0].startswith(b"# service="):
        lines = lines[1:]
    if not lines:
        raise _no_git_server(shown, "nothing")
    _stop_at_error(lines[0])
    if lines[0] == b"version 2":
        return Advertisement(2, _capabilities(lines[1:]))
    refs, capabilities = Refs(), dict[str, str]()
    for line in lines[1:] if lines[0] == b"version 1" else lines:
        ref, nul, rest = line.partition(b"\0")
        if nul:
            capabilities = _capabilities(rest.split())
            # `symref` may come several times.
            links = (word.removeprefix(b"symref=") for word in rest.split() if word.startswith(b"symref="))
            refs.symbolic.update((name, target) for name, _, target in (link.partition(b":") for link in links))
        sha, _, name = ref.partition(b" ")
        if not name.endswith(b"^{}") and not sha.startswith(b"shallow"):
            refs.shas[name] = _object_name(sha)
    return Advertisement(0, capabilities, refs)


def _capabilities(words: Sequence[bytes]) -> dict[str, str]:
    pairs = (word.decode("utf-8", "replace").partition("=") for word in words)
    return {name: value for name, _, value in pairs}


def _parse_refs(lines: Sequence[bytes]) -> Refs:
    """The answer to `ls-refs`."""
    refs = Refs()
    for line in lines:
        _stop_at_error(line)
        sha, _, rest = line.partition(b" ")
        name, *attributes = rest.split(b" ")
        if sha != b"unborn":
            refs.shas[name] = _object_name(sha)
        for attribute in attributes:
            if attribute.startswith(b"symref-target:"):
                refs.symbolic[name] = attribute.removeprefix(b"symref-target:")
    return refs


def _no_git_server(shown: str, sent: str) -> SourceCorrupt:
    """The error for an answer with status 200 that is not git's: a wrong URL, or a proxy's page (a login, maintenance)
    that will be gone later."""
    what = printable(sent) or "something else"
    return SourceCorrupt(
        f"{shown} did not answer as a git server that speaks smart HTTP: it sent {what}.",
        remedy="If it persists, check the URL (it is the one that `git clone` takes) and the proxies between.",
    )


def _command(server: Advertisement, name: bytes, arguments: Sequence[bytes]) -> bytes:
    """A request of version 2."""
    head = [b"command=" + name, b"agent=" + AGENT.encode()]
    if "object-format" in server.capabilities:
        head.append(b"object-format=" + server.object_format.encode())
    packets = [*(packet(line + b"\n") for line in head), b"0001", *(packet(line + b"\n") for line in arguments)]
    return b"".join([*packets, b"0000"])


def _version_0_fetch(server: Advertisement, wants: Sequence[str], depth: int | None) -> bytes:
    if "side-band-64k" not in server.capabilities:
        raise SourceError("The git server is too old: it supports neither protocol version 2 nor side-band-64k.")
    features = [f"agent={AGENT}"]
    features += [name for name in ("side-band-64k", "ofs-delta", "no-progress") if name in server.capabilities]
    if server.object_format != "sha1":
        features.append(f"object-format={server.object_format}")
    first, *others = wants
    lines = [packet(f"want {first} {' '.join(features)}\n".encode())]
    lines += [packet(f"want {sha}\n".encode()) for sha in others]
    if depth is not None and "shallow" in server.capabilities:
        lines.append(packet(b"deepen %d\n" % depth))
    return b"".join([*lines, b"0000", packet(b"done\n")])


def _stop_at_error(line: bytes) -> None:
    """Raises FetchRefused if the line is an error of git."""
    if line.startswith(b"ERR "):
        raise FetchRefused(printable(line[4:]))


def _object_name(text: bytes) -> str:
    if len(text) not in (40, 64) or not all(byte in b"0123456789abcdef" for byte in text):
        raise TransientFailure("the answer is not git's (no object name)", corrupt=True)
    return text.decode("ascii")

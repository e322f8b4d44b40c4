"""Fetching from a git server by smart HTTP, protocol version 2 (git 2.18, of 2018, or later).

dulwich's client requests the refs again with every fetch: three requests a batch. Here they are requested once, so that
a batch is one request; packs are written to disk as they arrive, and a cancelled task closes its connection.
https://git-scm.com/docs/protocol-v2, https://git-scm.com/docs/http-protocol
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from functools import partial

import httpx

from reposync import __version__
from reposync.errors import SourceCorrupt, SourceError, SourceUnavailable
from reposync.http_client import ErrorKinds, HttpClient, TransientFailure
from reposync.outgoing import (
    RequestObserver,
    TooLarge,
    printable,
    validate_transport,
)
from reposync.sources.history import read_history
from reposync.sources.object_stores import ReceivedPack, SpoolFull
from reposync.sources.objects import read_steps
from reposync.sources.packs import PackDamaged
from reposync.sources.port import Blob, PastCommit, RemoteGit
from reposync.supervision import in_thread

SOURCE_ERRORS = ErrorKinds(SourceError, SourceUnavailable, SourceCorrupt)

AGENT = f"git/reposync-{__version__}"
MEDIA_TYPE = "application/x-git-upload-pack-"
INFO_REFS = "/info/refs?service=git-upload-pack"
MAX_REFS_BYTES = 128 * 1024 * 1024  # a million refs
MAX_REF_LINES = 2_000_000
MAX_SPOOL_BYTES = 4 * 1024 * 1024 * 1024
# Beside the pack: progress messages.
MAX_CHATTER_BYTES = 64 * 1024 * 1024
FLUSH_BYTES = 1024 * 1024
# The largest pack at 600 kB/s. While it packs a huge repository a server sends a few bytes every five seconds.
MAX_FETCH_SECONDS = 2 * 3600.0

# One request each. Of real source files 2,000 make a pack of 3 MB, fetched in 0.5 s; more saves nothing.
BATCH_BLOBS = 2_000
# A server refuses the whole batch for a missing object and names it; so many are left out before giving up.
MAX_MISSING = 25

_NOT_OUR_REF = re.compile(r"not our ref ([0-9a-f]{40,64})")


class FetchRefused(Exception):
    """Git on the server refused a request: it is too old, a filter is disabled, or an object is missing."""


@dataclass(frozen=True, slots=True)
class Refs:
    """The shas of refs, and the targets of symbolic ones (unborn branches included)."""

    shas: dict[bytes, str] = field(default_factory=dict)
    symbolic: dict[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a server says about itself."""

    values: dict[str, str]

    @property
    def object_format(self) -> str:
        return self.values.get("object-format", "sha1")

    @property
    def filters(self) -> bool:
        """Whether blobs can be left out of a fetch and requested one by one."""
        return "filter" in self.values.get("fetch", "").split()

    def command(self, name: bytes, arguments: Sequence[bytes]) -> bytes:
        """The body of a request."""
        head = [b"command=" + name, b"agent=" + AGENT.encode()]
        if "object-format" in self.values:
            head.append(b"object-format=" + self.object_format.encode())
        packets = [*(packet(line + b"\n") for line in head), b"0001", *(packet(line + b"\n") for line in arguments)]
        return b"".join([*packets, b"0000"])


class UploadPack:
    """One repository on one git server. Every method raises SourceUnavailable after its retries, HttpRefused for 401,
    403, 404 and the like, SourceError if this is no git server."""

    def __init__(
        self, spec: RemoteGit, *, observer: RequestObserver | None = None, max_spool_bytes: int = MAX_SPOOL_BYTES
    ) -> None:
        """Opens no connection. Raises ConfigError if the CA file or the proxy cannot be used."""
        self.shown = self._url = spec.url.rstrip("/")
        validate_transport(self._url, spec.ca_file)
        password = spec.password.get_secret_value() if spec.password is not None else None
        self.has_password = password is not None
        self._max_spool_bytes = max_spool_bytes
        self._http = HttpClient(
            self._url,
            SOURCE_ERRORS,
            ca_file=spec.ca_file,
            timeouts=spec.timeouts,
            policy=spec.retry,
            observer=observer,
            headers={"Git-Protocol": "version=2", "User-Agent": AGENT, "Accept-Encoding": "gzip"},
            # Sent with the first request: a server counts every refused attempt as a failed login.
            auth=httpx.BasicAuth(spec.username or "", password or "") if spec.username or password else None,
        )
        self._capabilities: Capabilities | None = None

    async def capabilities(self) -> Capabilities:
        """Requested once."""
        if self._capabilities is None:
            reading = f"Reading refs of {self.shown}"
            self._capabilities = await self._http.retry(self._request_capabilities, doing=reading)
            if self._capabilities.object_format not in ("sha1", "sha256"):
                raise SourceError(f"{self.shown} uses {self._capabilities.object_format} object names; unknown here.")
        return self._capabilities

    async def refs(self, prefix: bytes) -> Refs:
        """The refs that start with `prefix`."""
        server = await self.capabilities()
        arguments = [b"symrefs", b"ref-prefix " + prefix]
        if "unborn" in server.values.get("ls-refs", ""):
            arguments.append(b"unborn")
        request = partial(self._request_refs, server.command(b"ls-refs", arguments))
        return await self._http.retry(request, doing=f"Reading refs of {self.shown}")

    async def fetch(
        self, wants: Sequence[str], *, depth: int | None = None, filter_spec: str | None = None
    ) -> ReceivedPack:
        """A pack with the objects `wants`. Raises FetchRefused, SpoolFull; SourceCorrupt if all attempts failed."""
        server = await self.capabilities()
        arguments = [b"ofs-delta", b"no-progress", *(b"want " + sha.encode() for sha in wants)]
        arguments += [b"deepen %d" % depth] if depth is not None else []
        arguments += [b"filter " + filter_spec.encode()] if filter_spec is not None else []
        oid_bytes = 32 if server.object_format == "sha256" else 20
        receive = partial(self._receive, server.command(b"fetch", [*arguments, b"done"]), oid_bytes)
        return await self._http.retry(receive, doing=f"Fetching from {self.shown}")

    async def blobs(
        self, shas: Sequence[str], *, max_bytes: int, unreadable: dict[str, str], max_missing: int = MAX_MISSING
    ) -> AsyncGenerator[Blob, None]:
        """The blobs, each verified, in batches; missing ones go to `unreadable` (sha -> reason). Raises what `fetch`
        raises; FetchRefused if the server sends no objects by name."""
        batches = deque(list(shas[at : at + BATCH_BLOBS]) for at in range(0, len(shas), BATCH_BLOBS))
        while batches:
            batch = batches.popleft()
            try:
                pack = await self.fetch(batch)
            except SpoolFull:
                if len(batch) > 1:
                    middle = len(batch) // 2
                    batches.extendleft((batch[middle:], batch[:middle]))
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

    async def _request_capabilities(self) -> Capabilities:
        async with self._http.stream("GET", f"{self._url}{INFO_REFS}", kind="git_refs") as response:
            media_type = response.headers.get("Content-Type", "")
            if not media_type.startswith(f"{MEDIA_TYPE}advertisement"):
                raise _no_git_server(self.shown, media_type.partition(";")[0])
            lines = await self._lines(response)
        url = str(response.url)
        if not url.endswith(INFO_REFS):
            raise SourceError(f"{self.shown} redirects to {url}, which is no git repository.")
        self._url = url.removesuffix(INFO_REFS)
        return parse_capabilities(lines, self.shown)

    async def _request_refs(self, body: bytes) -> Refs:
        async with self._post("git_refs", body) as response:
            return _parse_refs(await self._lines(response))

    async def _receive(self, body: bytes, oid_bytes: int) -> ReceivedPack:
        pack = await asyncio.to_thread(ReceivedPack, self.shown, oid_bytes=oid_bytes, max_bytes=self._max_spool_bytes)
        try:
            async with self._post("git_fetch", body) as response:
                received = self._http.body(response, self._max_spool_bytes + MAX_CHATTER_BYTES)
                async with aclosing(_pack_pieces(received)) as pieces:
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
        return self._http.stream(
            "POST",
            f"{self._url}/git-upload-pack",
            kind=kind,
            headers={"Content-Type": f"{MEDIA_TYPE}request", "Accept": f"{MEDIA_TYPE}result"},
            content=body,
            body_seconds=MAX_FETCH_SECONDS if kind == "git_fetch" else None,
        )

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


async def received_history(server: UploadPack, tip: str, most: int, *, contents_too: bool) -> list[PastCommit]:
    """As `Source.history` says, in one request: of commits and trees, if the server can leave out blobs. Raises what
    `fetch` raises."""
    filters = (await server.capabilities()).filters
    if not filters and not contents_too:
        return []
    try:
        pack = await server.fetch([tip], depth=most, filter_spec="blob:none" if filters else None)
    except FetchRefused as error:
        if (missing := _NOT_OUR_REF.search(str(error))) is not None and missing[1] == tip:
            return []
        raise
    stop = threading.Event()
    try:
        return await in_thread(lambda: read_history(pack, tip, most, stop))
    finally:
        stop.set()
        pack.close()


async def _pack_pieces(body: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The pack in a fetch's answer (side band 1 of the section `packfile`), about a megabyte at a time."""
    reader, buffered = PacketReader(), bytearray()
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
                in_pack = line.startswith(b"packfile")
            elif line[:1] == b"\3":
                raise FetchRefused(printable(line[1:]))
        if len(buffered) >= FLUSH_BYTES:
            yield bytes(buffered)
            buffered.clear()
    if not done or not reader.complete:
        raise PackDamaged("it was cut short")
    yield bytes(buffered)


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


def parse_capabilities(lines: Sequence[bytes], shown: str) -> Capabilities:
    if lines and lines[0].startswith(b"# service="):
        lines = lines[1:]
    if not lines:
        raise _no_git_server(shown, "nothing")
    _stop_at_error(lines[0])
    if lines[0] != b"version 2":
        raise FetchRefused("it does not speak version 2 of git's protocol, or a proxy drops the header Git-Protocol")
    pairs = (word.decode("utf-8", "replace").partition("=") for word in lines[1:])
    return Capabilities({name: value for name, _, value in pairs})


def _parse_refs(lines: Sequence[bytes]) -> Refs:
    """The answer to `ls-refs`."""
    refs = Refs()
    for line in lines:
        _stop_at_error(line)
        sha, _, rest = line.partition(b" ")
        name, *attributes = rest.split(b" ")
        if sha != b"unborn":
            if len(sha) not in (40, 64) or not all(byte in b"0123456789abcdef" for byte in sha):
                raise TransientFailure("the answer is not git's (no object name)", corrupt=True)
            refs.shas[name] = sha.decode("ascii")
        for attribute in attributes:
            if attribute.startswith(b"symref-target:"):
                refs.symbolic[name] = attribute.removeprefix(b"symref-target:")
    return refs


def _no_git_server(shown: str, sent: str) -> SourceCorrupt:
    """For an answer with status 200 that is not git's: a wrong URL, or a proxy's page that will be gone later."""
    what = printable(sent) or "something else"
    return SourceCorrupt(
        f"{shown} did not answer as a git server that speaks smart HTTP: it sent {what}.",
        remedy="If it persists, check the URL (it is the one that `git clone` takes) and the proxies between.",
    )


def _stop_at_error(line: bytes) -> None:
    """Raises FetchRefused if the line is an error of git."""
    if line.startswith(b"ERR "):
        raise FetchRefused(printable(line[4:]))

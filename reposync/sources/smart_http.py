"""Fetching from a git server by smart HTTP, protocol version 2 (and 0 if a server supports no other).

dulwich's client requests the refs again with every fetch: three requests a batch. Here they are requested once, so that
a batch is one request; packs are written to disk as they arrive, and a cancelled task closes its connection.
https://git-scm.com/docs/protocol-v2, https://git-scm.com/docs/http-protocol
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from reposync.errors import SourceCorrupt, SourceError, SourceUnavailable
from reposync.http_client import ErrorKinds, HttpClient, TransientFailure
from reposync.outgoing import MinimumRate, RequestObserver, RetryPolicy, Timeouts, TooLarge, printable
from reposync.sources.git_protocol import (
    AGENT,
    Advertisement,
    FetchRefused,
    FramingError,
    Mark,
    PacketReader,
    fetch_request,
    no_git_server,
    parse_advertisement,
    parse_refs,
    stop_at_error,
    version_2_command,
)
from reposync.sources.object_stores import FLUSH_BYTES, ReceivedPack, SpoolFull
from reposync.sources.objects import read_steps
from reposync.sources.packs import PackDamaged
from reposync.sources.port import Blob

SOURCE_ERRORS = ErrorKinds(SourceError, SourceUnavailable, SourceCorrupt)

ADVERTISEMENT_TYPE = "application/x-git-upload-pack-advertisement"
INFO_REFS = "/info/refs?service=git-upload-pack"
MAX_REFS_BYTES = 128 * 1024 * 1024  # a million refs
MAX_REF_LINES = 2_000_000
MAX_SPOOL_BYTES = 4 * 1024 * 1024 * 1024
# Beside the pack: progress messages.
MAX_CHATTER_BYTES = 64 * 1024 * 1024
# While it packs a huge repository a server sends a few bytes every five seconds, for minutes.
PACKING_FACTOR = 10
MAX_FETCH_SECONDS = 6 * 3600.0

# One request each. Of real source files 2,000 make a pack of 3 MB, fetched in 0.5 s; more saves nothing.
BATCH_BLOBS = 2_000
# A server refuses the whole batch for a missing object and names it; so many are left out before giving up.
MAX_MISSING = 25

_NOT_OUR_REF = re.compile(r"not our ref ([0-9a-f]{40,64})")


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
        self._assumed = False

    @property
    def is_assumed(self) -> bool:
        """Whether the server's capabilities are assumed: neither requested nor confirmed by a fetch."""
        return self._assumed

    def assume(self, advertisement: Advertisement | None) -> None:
        """Assume these capabilities, which saves a request; None requests them after all."""
        self._advertised, self._assumed = advertisement, advertisement is not None

    async def advertised(self) -> Advertisement:
        """Capabilities (and with version 0 the refs), requested once."""
        if self._advertised is None:
            self._advertised = await self._http.retry(
                self._request_advertisement, doing=f"Reading refs of {self.shown}"
            )
            if self._advertised.object_format not in ("sha1", "sha256"):
                raise SourceError(f"{self.shown} uses {self._advertised.object_format} object names; unknown here.")
        return self._advertised

    async def refs(self, prefixes: Sequence[bytes]) -> tuple[dict[bytes, str], dict[bytes, bytes]]:
        """The refs that start with one of `prefixes`, and the targets of symbolic ones (unborn branches included)."""
        server = await self.advertised()
        if server.version != 2:
            return {name: sha for name, sha in server.refs.items() if name.startswith(tuple(prefixes))}, server.symbolic
        arguments = [b"symrefs", *(b"ref-prefix " + prefix for prefix in prefixes)]
        if "unborn" in server.capabilities.get("ls-refs", ""):
            arguments.append(b"unborn")
        body = version_2_command(server, b"ls-refs", arguments)
        return await self._http.retry(lambda: self._request_refs(body), doing=f"Reading refs of {self.shown}")

    async def fetch(
        self, wants: Sequence[str], *, depth: int | None = None, filter_spec: str | None = None
    ) -> ReceivedPack:
        """A pack with the objects `wants`. Raises FetchRefused, SpoolFull; SourceCorrupt if all attempts failed."""
        server = await self.advertised()
        body = fetch_request(server, wants, depth=depth, filter_spec=filter_spec)
        receive = partial(self._receive, body, server.version, 32 if server.object_format == "sha256" else 20)
        pack = await self._http.retry(receive, doing=f"Fetching from {self.shown}")
        self._assumed = False
        return pack

    async def close(self) -> None:
        await self._http.close()

    # Requests ----------------------------------------------------------------------------------------------------

    async def _request_advertisement(self) -> Advertisement:
        async with self._http.stream("GET", f"{self._url}{INFO_REFS}", kind="git_refs") as response:
            if not (media_type := response.headers.get("Content-Type", "")).startswith(ADVERTISEMENT_TYPE):
                raise no_git_server(self.shown, media_type.partition(";")[0])
            packets = await self._packets(response)
        url = str(response.url)
        if not url.endswith(INFO_REFS):
            raise SourceError(f"{self.shown} redirects to {url}, which is no git repository.")
        self._url = url.removesuffix(INFO_REFS)
        return parse_advertisement(packets, self.shown)

    async def _request_refs(self, body: bytes) -> tuple[dict[bytes, str], dict[bytes, bytes]]:
        async with self._post("git_refs", body) as response:
            return parse_refs(await self._packets(response))

    async def _receive(self, body: bytes, version: int, oid_bytes: int) -> ReceivedPack:
        pack = await asyncio.to_thread(ReceivedPack, self.shown, oid_bytes=oid_bytes, max_bytes=self._max_spool_bytes)
        try:
            async with self._post("git_fetch", body) as response:
                rate = MinimumRate(PACKING_FACTOR * self._http.timeouts.read_seconds, MAX_FETCH_SECONDS)
                pieces = self._http.body(response, self._max_spool_bytes + MAX_CHATTER_BYTES, rate)
                await _Demultiplexer(pack, version).run(pieces)
            await asyncio.to_thread(pack.finish)
            return pack
        except BaseException as error:
            pack.close()
            if isinstance(error, PackDamaged | FramingError):
                raise TransientFailure(str(error), corrupt=True) from error
            raise

    def _post(self, kind: str, body: bytes) -> AbstractAsyncContextManager[httpx.Response]:
        media = "application/x-git-upload-pack-"
        headers = {"Content-Type": f"{media}request", "Accept": f"{media}result"}
        return self._http.stream("POST", f"{self._url}/git-upload-pack", kind=kind, headers=headers, content=body)

    async def _packets(self, response: httpx.Response) -> list[bytes | Mark]:
        reader, packets = PacketReader(), list[bytes | Mark]()
        async for piece in self._http.body(response, MAX_REFS_BYTES):
            try:
                packets.extend(reader.feed(piece))
            except FramingError as error:
                raise TransientFailure(str(error), corrupt=True) from error
            if len(packets) > MAX_REF_LINES:
                raise TooLarge(f"more than {MAX_REF_LINES:,} lines")
        if not reader.complete or not packets or packets[-1] is not Mark.FLUSH:
            raise TransientFailure("the answer was cut short", corrupt=True)
        return packets


class _Demultiplexer:
    """Writes the pack in a fetch's answer (side band 1) to disk, a megabyte at a time."""

    def __init__(self, pack: ReceivedPack, version: int) -> None:
        self._pack = pack
        # Version 2 names the section; version 0 sends shallow lines, a flush, ACK or NAK, and then the pack.
        self._in_pack = False
        self._version = version
        self._done = False
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0
        self._chatter_bytes = 0

    async def run(self, body: AsyncIterator[bytes]) -> None:
        reader = PacketReader()
        async for piece in body:
            for line in reader.feed(piece):
                self._take(line)
            if self._buffered_bytes >= FLUSH_BYTES:
                await self._flush()
        await self._flush()
        if not self._done or not reader.complete:
            raise PackDamaged("the pack was cut short")

    def _take(self, line: bytes | Mark) -> None:
        if isinstance(line, Mark) or not self._in_pack or line[:1] != b"\1":
            self._chatter_bytes += 4 if isinstance(line, Mark) else 4 + len(line)
            if self._chatter_bytes > MAX_CHATTER_BYTES:
                raise TooLarge(f"more than {MAX_CHATTER_BYTES:,} bytes beside the pack")
        if isinstance(line, Mark):
            self._done = self._done or (self._in_pack and line is Mark.FLUSH)
        elif self._in_pack:
            band = line[:1]
            if band == b"\1":
                self._buffered.append(line[1:])
                self._buffered_bytes += len(line) - 1
            elif band == b"\3":
                raise FetchRefused(printable(line[1:]))
        else:
            stop_at_error(line)
            if self._version == 2:
                self._in_pack = line.rstrip(b"\n") == b"packfile"
            else:
                self._in_pack = line.startswith((b"NAK", b"ACK"))

    async def _flush(self) -> None:
        buffered, self._buffered, self._buffered_bytes = b"".join(self._buffered), [], 0
        if buffered:
            await asyncio.to_thread(self._pack.write, buffered)


# Blobs by name ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A batch and its pack; None if the pack exceeds the disk space, see SpoolFull for `only_blob_bytes`."""

    shas: list[str]
    pack: ReceivedPack | None
    only_blob_bytes: int | None = None


class BlobFetcher:
    """Fetches blobs by name in bounded batches, each while the last one is read. Needs protocol version 2."""

    def __init__(self, server: UploadPack, *, max_missing: int = MAX_MISSING) -> None:
        self._server = server
        self._missing_left = max_missing

    async def read(
        self, shas: Sequence[str], *, max_bytes: int, unreadable: dict[str, str]
    ) -> AsyncGenerator[Blob, None]:
        """The blobs, each verified; those that are missing on the server go to `unreadable` (sha -> reason).

        Raises what UploadPack.fetch raises; FetchRefused if the server sends no objects by name.
        """
        batches = deque(list(shas[at : at + BATCH_BLOBS]) for at in range(0, len(shas), BATCH_BLOBS))
        ahead: asyncio.Task[_Fetched] | None = None
        try:
            while batches or ahead is not None:
                fetched = await (ahead or self._fetch(batches.popleft(), unreadable))
                ahead = None
                if fetched.pack is None:
                    if len(fetched.shas) > 1:
                        middle = len(fetched.shas) // 2
                        batches.extendleft((fetched.shas[middle:], fetched.shas[:middle]))
                    elif fetched.only_blob_bytes is not None and fetched.only_blob_bytes > max_bytes:
                        # The only size that is accepted without a hash: gigabytes of this blob were received.
                        yield Blob(fetched.shas[0], fetched.only_blob_bytes, None)
                    else:
                        unreadable[fetched.shas[0]] = "is too large to be fetched"
                    continue
                if batches:
                    ahead = asyncio.create_task(self._fetch(batches.popleft(), unreadable))
                found = fetched.pack.blobs(fetched.shas, max_bytes=max_bytes, unreadable=unreadable)
                try:
                    async with aclosing(read_steps(found)) as steps:
                        async for blob in steps:
                            yield blob
                finally:
                    fetched.pack.close()
        finally:
            if ahead is not None:
                ahead.cancel()
                [result] = await asyncio.gather(ahead, return_exceptions=True)
                if isinstance(result, _Fetched) and result.pack is not None:
                    result.pack.close()

    async def _fetch(self, shas: list[str], unreadable: dict[str, str]) -> _Fetched:
        while shas:
            try:
                return _Fetched(shas, await self._server.fetch(shas))
            except SpoolFull as error:
                return _Fetched(shas, None, error.only_blob_bytes)
            except FetchRefused as error:
                found = _NOT_OUR_REF.search(str(error))
                if found is None or found[1] not in shas or self._missing_left <= 0:
                    raise
                self._missing_left -= 1
                unreadable[found[1]] = "is missing on the server"
                shas = [sha for sha in shas if sha != found[1]]
        return _Fetched([], None)

"""Fetching from a git server by smart HTTP, protocol version 2 (and 0 where a server knows no other).

dulwich's client asks for the refs anew with every fetch: three requests a batch. Here they are asked for once, so that
a batch is one request; what comes is written to disk as it arrives, and a cancelled task closes its connection.
https://git-scm.com/docs/protocol-v2, https://git-scm.com/docs/http-protocol
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx

from reposync.errors import SourceError
from reposync.outgoing import Pace, TooLarge, TooSlow, certificate_reason, client_options, pieces
from reposync.sources.addresses import certificate_refused, redirected
from reposync.sources.git_protocol import (
    AGENT,
    Advertisement,
    FetchRefused,
    fetch_request,
    no_git_server,
    parse_advertisement,
    parse_refs,
    printable,
    stop_at_error,
    version_2_command,
)
from reposync.sources.packs import PackDamaged
from reposync.sources.pktline import FramingError, Mark, PacketReader
from reposync.sources.retries import TransientFailure, patiently, retry_after_seconds
from reposync.sources.spec import Patience, SourceObserver, Timeouts
from reposync.sources.spool import FLUSH_BYTES, ReceivedPack, Spool

ADVERTISEMENT_TYPE = "application/x-git-upload-pack-advertisement"
MAX_REDIRECTS = 5
MAX_REFS_BYTES = 128 * 1024 * 1024  # a million refs
MAX_REF_LINES = 2_000_000
MAX_ERROR_BYTES = 16 * 1024
MAX_SPOOL_BYTES = 4 * 1024 * 1024 * 1024
# Beside the pack: what a server tells of its progress.
MAX_CHATTER_BYTES = 64 * 1024 * 1024
# While it packs a huge repository a server sends a few bytes every five seconds, for minutes.
PACKING_FACTOR = 10
MAX_FETCH_SECONDS = 6 * 3600.0
# Refs have come in whole after so many read time-outs.
ANSWER_FACTOR = 10


class GitHttpRefused(Exception):
    """The server answered with a status that repeating does not change."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.text = text


class UploadPack:
    """One repository on one git server. Every method raises SourceUnavailable after its repeats, GitHttpRefused for
    401, 403, 404 and the like, SourceError where this is no git server."""

    def __init__(
        self,
        url: str,
        *,
        username: str | None,
        password: str | None,
        ca_file: Path | None,
        timeouts: Timeouts,
        patience: Patience,
        observer: SourceObserver | None,
        max_spool_bytes: int = MAX_SPOOL_BYTES,
    ) -> None:
        self.shown = url  # holds no secret: see addresses.parse_address
        self._url = url
        # Sent with the first request already: a server counts every refused attempt as a failed login.
        self._auth = httpx.BasicAuth(username or "", password or "") if username or password else None
        self._ca_file = ca_file
        self._timeouts = timeouts
        self._patience = patience
        self._observer = observer
        self._max_spool_bytes = max_spool_bytes
        self._client: httpx.AsyncClient | None = None
        self._advertised: Advertisement | None = None
        self._assumed = False

    @property
    def is_assumed(self) -> bool:
        """Whether what the server speaks was neither asked nor shown by a fetch that worked."""
        return self._assumed

    def assume(self, advertisement: Advertisement | None) -> None:
        """Take this for what the server would say of itself, which saves asking; None asks after all."""
        self._advertised, self._assumed = advertisement, advertisement is not None

    async def advertised(self) -> Advertisement:
        """Capabilities (and with version 0 the refs), asked for once."""
        if self._advertised is None:
            self._advertised = await patiently(
                self._ask_advertisement, self._patience, self._observer, doing=f"Asking {self.shown} for its refs"
            )
            if self._advertised.object_format not in ("sha1", "sha256"):
                raise SourceError(f"{self.shown} uses {self._advertised.object_format} object names; unknown here.")
        return self._advertised

    async def refs(self, prefixes: Sequence[bytes]) -> tuple[dict[bytes, str], dict[bytes, bytes]]:
        """The refs that start with one of `prefixes`, and where symbolic ones point (unborn branches included)."""
        server = await self.advertised()
        if server.version != 2:
            return {name: sha for name, sha in server.refs.items() if name.startswith(tuple(prefixes))}, server.symbolic
        arguments = [b"symrefs", *(b"ref-prefix " + prefix for prefix in prefixes)]
        if "unborn" in server.capabilities.get("ls-refs", ""):
            arguments.append(b"unborn")
        body = version_2_command(server, b"ls-refs", arguments)
        return await patiently(
            lambda: self._ask_refs(body), self._patience, self._observer, doing=f"Asking {self.shown} for its refs"
        )

    async def fetch(
        self,
        wants: Sequence[str],
        *,
        haves: Sequence[str] = (),
        depth: int | None = None,
        filter_spec: str | None = None,
    ) -> ReceivedPack:
        """A pack with the objects `wants`, without what the commits `haves` hold. Raises FetchRefused, SpoolFull;
        SourceCorrupt where every repeat came damaged."""
        server = await self.advertised()
        body = fetch_request(server, wants, haves=haves, depth=depth, filter_spec=filter_spec)
        oid_bytes = 32 if server.object_format == "sha256" else 20
        pack = await patiently(
            lambda: self._receive(body, server.version, oid_bytes),
            self._patience,
            self._observer,
            doing=f"Fetching from {self.shown}",
        )
        self._assumed = False
        return pack

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    # Requests ----------------------------------------------------------------------------------------------------

    async def _ask_advertisement(self) -> Advertisement:
        url = f"{self._url}/info/refs?service=git-upload-pack"
        for _ in range(MAX_REDIRECTS + 1):
            async with self._request("GET", url, kind="git_refs") as response:
                if response.is_redirect:
                    url = redirected(url, response.headers.get("Location", ""))
                    continue
                if not (sent := response.headers.get("Content-Type", "")).startswith(ADVERTISEMENT_TYPE):
                    raise no_git_server(self.shown, sent.partition(";")[0])
                packets = await self._packets(response)
            if not url.endswith("/info/refs?service=git-upload-pack"):
                raise SourceError(f"{self.shown} redirects to {url}, which is no git repository.")
            self._url = url.removesuffix("/info/refs?service=git-upload-pack")
            return parse_advertisement(packets, self.shown)
        raise SourceError(f"{self.shown} redirects in a circle.", remedy="Check the URL.")

    async def _ask_refs(self, body: bytes) -> tuple[dict[bytes, str], dict[bytes, bytes]]:
        async with self._request("POST", f"{self._url}/git-upload-pack", kind="git_refs", body=body) as response:
            packets = await self._packets(response)
        return parse_refs(packets)

    async def _receive(self, body: bytes, version: int, oid_bytes: int) -> ReceivedPack:
        spool = await asyncio.to_thread(Spool, oid_bytes=oid_bytes, max_bytes=self._max_spool_bytes)
        try:
            async with self._request("POST", f"{self._url}/git-upload-pack", kind="git_fetch", body=body) as response:
                pace = Pace(PACKING_FACTOR * self._timeouts.read_seconds, MAX_FETCH_SECONDS)
                body_pieces = pieces(response, pace, self._max_spool_bytes + MAX_CHATTER_BYTES)
                await _Demultiplexer(spool, version).run(body_pieces)
            return await asyncio.to_thread(spool.finish)
        except FramingError as error:
            spool.close()
            raise TransientFailure(f"the answer is not git's ({error})", corrupt=True) from error
        except PackDamaged as error:
            spool.close()
            raise TransientFailure(str(error), corrupt=True) from error
        except BaseException:
            spool.close()
            raise

    async def _packets(self, response: httpx.Response) -> list[bytes | Mark]:
        reader, packets = PacketReader(), list[bytes | Mark]()
        async for piece in pieces(response, self._pace(), MAX_REFS_BYTES):
            try:
                packets.extend(reader.feed(piece))
            except FramingError as error:
                raise TransientFailure(f"the answer is not git's ({error})", corrupt=True) from error
            if len(packets) > MAX_REF_LINES:
                raise TooLarge(f"more than {MAX_REF_LINES:,} lines")
        if not reader.complete or not packets or packets[-1] is not Mark.FLUSH:
            raise TransientFailure("the answer was cut short", corrupt=True)
        return packets

    @asynccontextmanager
    async def _request(
        self, method: str, url: str, *, kind: str, body: bytes | None = None
    ) -> AsyncIterator[httpx.Response]:
        """One request; its answer is a success or, to a GET, a redirect."""
        headers = {"Git-Protocol": "version=2", "User-Agent": AGENT, "Accept-Encoding": "gzip"}
        if body is not None:
            headers["Content-Type"] = "application/x-git-upload-pack-request"
            headers["Accept"] = "application/x-git-upload-pack-result"
        client = await self._connected()
        if self._observer is not None:
            self._observer.request(kind)
        try:
            async with AsyncExitStack() as open_:
                # The time-outs of the connection are between two of its bytes.
                async with asyncio.timeout(self._timeouts.connect_seconds + 2 * self._timeouts.read_seconds):
                    sending = client.stream(method, url, content=body, headers=headers, auth=self._auth)
                    response = await open_.enter_async_context(sending)
                if not (response.is_success or (response.is_redirect and method == "GET")):
                    await _refuse(response, self._pace())
                yield response
        except TooSlow as error:
            raise TransientFailure(f"the answer is too slow: {error}", overloaded=True) from error
        except TooLarge as error:
            raise SourceError(f"{self.shown} sends more than is taken: {error}.") from error
        except TimeoutError as error:
            raise TransientFailure("no answer within the time-out", overloaded=True) from error
        except httpx.TimeoutException as error:
            what = "no connection" if isinstance(error, httpx.ConnectTimeout) else "no answer"
            raise TransientFailure(f"{what} within the time-out", overloaded=what == "no answer") from error
        except httpx.ConnectError as error:
            if reason := certificate_reason(error):
                raise certificate_refused(url, reason) from error
            raise TransientFailure(f"the connection failed ({error})") from error
        except httpx.HTTPError as error:
            raise TransientFailure(f"the connection broke ({error})") from error

    async def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            options = await asyncio.to_thread(client_options, self._url, self._ca_file)
            timeout = httpx.Timeout(self._timeouts.read_seconds, connect=self._timeouts.connect_seconds)
            self._client = httpx.AsyncClient(timeout=timeout, follow_redirects=False, **options)
        return self._client

    def _pace(self) -> Pace:
        return Pace(self._timeouts.read_seconds, ANSWER_FACTOR * self._timeouts.read_seconds)


class _Demultiplexer:
    """Takes the pack out of a fetch's answer (side band 1) and writes it to the spool, a megabyte at a time."""

    def __init__(self, spool: Spool, version: int) -> None:
        self._spool = spool
        # Version 2 names the section; version 0 sends shallow lines, a flush, ACK or NAK, and then the pack.
        self._in_pack = False
        self._version = version
        self._done = False
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._chatter_bytes = 0

    async def run(self, body: AsyncIterator[bytes]) -> None:
        reader = PacketReader()
        async for piece in body:
            for line in reader.feed(piece):
                self._take(line)
            if self._held_bytes >= FLUSH_BYTES:
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
                self._held.append(line[1:])
                self._held_bytes += len(line) - 1
            elif band == b"\3":
                raise FetchRefused(printable(line[1:]))
        else:
            stop_at_error(line)
            if self._version == 2:
                self._in_pack = line.rstrip(b"\n") == b"packfile"
            else:
                self._in_pack = line.startswith((b"NAK", b"ACK"))

    async def _flush(self) -> None:
        held, self._held, self._held_bytes = b"".join(self._held), [], 0
        if held:
            await asyncio.to_thread(self._spool.write, held)


async def _refuse(response: httpx.Response, pace: Pace) -> None:
    text = b""
    with contextlib.suppress(TooLarge):
        async for piece in pieces(response, pace, MAX_ERROR_BYTES):
            text += piece
    shown = printable(text)
    if response.status_code == 429:
        wait = retry_after_seconds(response.headers.get("Retry-After"), response.headers.get("RateLimit-Reset"))
        raise TransientFailure("too many requests", rate_limited=True, wait_seconds=wait)
    if response.status_code >= 500 or response.status_code == 408:
        wait = retry_after_seconds(response.headers.get("Retry-After"))
        raise TransientFailure(f"the server answered {response.status_code}", overloaded=True, wait_seconds=wait)
    raise GitHttpRefused(response.status_code, shown)

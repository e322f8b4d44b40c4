"""Contents of a GitLab project: git for many, REST for few, REST alone if git is refused."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from urllib.parse import quote, quote_from_bytes

from reposync.errors import SourceCorrupt, SourceUnavailable
from reposync.http_client import HttpRefused, TransientFailure
from reposync.outgoing import OtherServer
from reposync.sources.git_protocol import Advertisement, FetchRefused
from reposync.sources.gitlab_client import MAX_CALLS, GitLabClient, Refusal
from reposync.sources.object_stores import SpoolFull
from reposync.sources.objects import BLOB, hash_name, object_sha
from reposync.sources.port import Blob, TreeEntry
from reposync.sources.smart_http import MAX_MISSING, BlobFetcher, UploadPack

log = logging.getLogger(__name__)

# A git fetch costs the server a process and a walk through its object store, a raw blob one look-up; 20 blobs over 4
# connections take about as long as one fetch (0.3 s at 60 ms a call) and 1% of the 2,000 calls a minute that
# GitLab.com grants. A usual push changes fewer files than this, so it needs no git at all.
FEW_BLOBS = 20
# After so many blobs of which none was right, the read is given up. Each costs four requests and 2 s of
# pauses, so that this many take about a minute over 4 connections.
HOPELESS_BLOBS = 100

_NO_GIT = (HttpRefused, FetchRefused, SpoolFull, OtherServer, SourceUnavailable, SourceCorrupt)


class GitLabBlobs:
    """Reads blobs, and trees that JSON cannot hold."""

    def __init__(
        self,
        server: GitLabClient,
        project: str,
        path: str | None,
        resolve: Callable[[], Awaitable[str]],
        *,
        is_first_sync: bool,
    ) -> None:
        """`path` is the project's path for git, `resolve` reads its present one. A first sync reads everything, so it
        uses git for the first few blobs already."""
        self._server = server
        self._project = project
        self._path = path
        self._path_is_current = False
        self._resolve = resolve
        self._few_blobs = 0 if is_first_sync else FEW_BLOBS
        self._upload_pack: UploadPack | None = None
        # Why git is no longer used. One refusal is enough: 300 failed logins in a minute ban the address.
        self._git_refused: str | None = None

    @property
    def no_git(self) -> str:
        """Why `tree_by_git` returned None."""
        return self._git_refused or "it would send all contents too"

    async def read(
        self, number: int, commit: str, entries: Sequence[TreeEntry], *, max_bytes: int, unreadable: dict[str, str]
    ) -> AsyncGenerator[Blob, None]:
        """The distinct blobs of `entries`, which are in `commit`, each verified; those that are missing on GitLab go to
        `unreadable`. Raises HttpRefused; SourceCorrupt if every content is wrong."""
        left: dict[str, bytes] = {}
        for entry in entries:
            if not entry.is_submodule:
                left.setdefault(entry.sha, entry.path)
        wanted = len(left)
        while len(left) > self._few_blobs and self._git_refused is None:
            try:
                server = await self._git(next(iter(left)))
                # At a path that is not known to be the project's, the first missing blob is a reason to resolve it.
                fetcher = BlobFetcher(server, max_missing=MAX_MISSING if self._path_is_current else 0)
                async with aclosing(fetcher.read(list(left), max_bytes=max_bytes, unreadable={})) as blobs:
                    async for blob in blobs:
                        left.pop(blob.sha, None)
                        yield blob
            except _NO_GIT as error:
                await self._after_failure(error)
            else:
                break
        # The few, and what git did not have: REST decides what is missing.
        any_read = len(left) < wanted
        one = partial(self._one, number, commit, max_bytes)
        async with aclosing(self._read_by_rest(one, left, unreadable, any_read=any_read)) as blobs:
            async for blob in blobs:
                yield blob

    async def tree_by_git(self, sha: str) -> list[TreeEntry] | None:
        """The commit's tree from git's own objects; None if git is refused, or would send all contents too."""
        while self._git_refused is None:
            try:
                server = await self._git(sha)
                if not (await server.advertised()).filters:
                    return None
                pack = await server.fetch([sha], depth=1, filter_spec="blob:none")
            except _NO_GIT as error:
                await self._after_failure(error)
                continue
            try:
                return await asyncio.to_thread(pack.tree, sha)
            finally:
                pack.close()
        return None

    def found_at(self, path: str) -> None:
        """The project's present path, as REST returned it."""
        if self._upload_pack is None:
            self._path, self._path_is_current = path, True

    async def close(self) -> None:
        if self._upload_pack is not None:
            await self._upload_pack.close()
            self._upload_pack = None

    # Git -----------------------------------------------------------------------------------------------------------

    async def _git(self, sha: str) -> UploadPack:
        if self._path is None:
            self._path, self._path_is_current = await self._resolve(), True
        if self._upload_pack is None:
            self._upload_pack = self._server.git(self._path)
            # Every supported GitLab speaks version 2 with filters, so requesting its capabilities would be wasted.
            capabilities = {"fetch": "shallow filter"}
            if hash_name(sha) != "sha1":
                capabilities["object-format"] = hash_name(sha)
            self._upload_pack.assume(Advertisement(2, capabilities))
        return self._upload_pack

    async def _after_failure(self, error: Exception) -> None:
        """Prepare the next attempt: follow a moved project, request the real capabilities, or give up git. Raises
        `error` itself if none of these would help."""
        git = self._upload_pack
        assumed = git is not None and git.is_assumed
        if isinstance(error, SourceUnavailable | SourceCorrupt):
            # A proxy that drops the Git-Protocol header makes the answer unreadable, not a refusal.
            if not assumed or git is None:
                raise error
            git.assume(None)
            return
        if not self._path_is_current and not isinstance(error, SpoolFull):
            # A different project may be at the old path by now, public or private, and this may be its refusal.
            path, self._path_is_current = await self._resolve(), True
            if path != self._path:
                await self.close()
                self._path = path
                return
            if isinstance(error, FetchRefused) and not assumed:
                return
        final = isinstance(error, SpoolFull | OtherServer) or (
            isinstance(error, HttpRefused) and error.status in (401, 403, 404)
        )
        if assumed and git is not None and not final:
            git.assume(None)
            return
        self._git_refused = str(error)
        log.warning(
            "Git refuses project %s on %s (%s): its blobs are read by REST.", self._project, self._server.url, error
        )

    # REST ----------------------------------------------------------------------------------------------------------

    async def _read_by_rest(
        self,
        one: Callable[[str, bytes], Coroutine[None, None, Blob]],
        paths: Mapping[str, bytes],
        unreadable: dict[str, str],
        *,
        any_read: bool,
    ) -> AsyncGenerator[Blob, None]:
        """One call for each blob, a few at a time: memory holds as many contents as there are calls."""
        waiting = iter(paths.items())
        running: dict[asyncio.Task[Blob], str] = {}
        try:
            while True:
                if not any_read and len(unreadable) >= HOPELESS_BLOBS:
                    raise self._hopeless(unreadable)
                while len(running) < MAX_CALLS and (following := next(waiting, None)) is not None:
                    running[asyncio.create_task(one(*following))] = following[0]
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    sha = running.pop(task)
                    try:
                        blob = task.result()
                    except SourceCorrupt as error:
                        cause = error.__cause__
                        why = cause.reason if isinstance(cause, TransientFailure) else error.message
                        unreadable[sha] = f"comes damaged ({why})"
                    except HttpRefused as refused:
                        if not Refusal.of(refused).is_about("Blob"):
                            raise
                        unreadable[sha] = "is missing on the server"
                    else:
                        any_read = True
                        yield blob
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _one(self, number: int, commit: str, max_bytes: int, sha: str, path: bytes) -> Blob:
        doing = f"Reading blob {sha} of {self._project} on {self._server.url}"
        return await self._server.retry(lambda: self._raw_blob(number, commit, max_bytes, sha, path), doing=doing)

    async def _raw_blob(self, number: int, commit: str, max_bytes: int, sha: str, path: bytes) -> Blob:
        """Reads at most `max_bytes`. What is longer cannot be hashed, so the size of the file in its commit is read to
        confirm it: else a login page with status 200 would pass for a large blob."""
        pieces: list[bytes] = []
        received_bytes = 0
        async with self._server.raw("api_blob", "GET", f"/projects/{number}/repository/blobs/{sha}/raw") as response:
            plain = "Content-Encoding" not in response.headers
            declared_bytes = (_count(response.headers.get("Content-Length", "")) if plain else None) or 0
            # Workhorse sends the source of a web page as text/plain.
            html = response.headers.get("Content-Type", "").lower().startswith("text/html")
            if declared_bytes <= max_bytes:
                async for piece in self._server.body(response):
                    pieces.append(piece)
                    received_bytes += len(piece)
                    if received_bytes > max_bytes:
                        break
        it = "it is text/html and" if html else "it"
        if max(declared_bytes, received_bytes) > max_bytes:
            size_bytes = await self._size_of_file(number, commit, path, sha)
            if size_bytes is None or size_bytes <= max_bytes:
                known = "GitLab does not confirm that" if size_bytes is None else f"GitLab knows {size_bytes:,}"
                raise TransientFailure(f"{it} has more than {max_bytes:,} bytes; {known}", corrupt=True)
            return Blob(sha, size_bytes, None)
        content = b"".join(pieces)
        if object_sha(BLOB, content, hash_name(sha)) != sha:
            raise TransientFailure(f"{it} does not hash to its name", corrupt=True)
        return Blob(sha, len(content), content)

    async def _size_of_file(self, number: int, commit: str, path: bytes, sha: str) -> int | None:
        """The size of blob `sha` in the headers of a file that holds it; None if GitLab does not say."""
        file = f"/projects/{number}/repository/files/{quote_from_bytes(path, safe='')}?ref={quote(commit, safe='')}"
        try:
            async with self._server.raw("api_blob", "HEAD", file) as response:
                headers = response.headers
        except HttpRefused:
            return None
        return _count(headers.get("X-Gitlab-Size", "")) if headers.get("X-Gitlab-Blob-Id") == sha else None

    def _hopeless(self, unreadable: Mapping[str, str]) -> SourceCorrupt:
        [(reason, count)] = Counter(unreadable.values()).most_common(1)
        return SourceCorrupt(
            f"{self._server.url} sends no content of {self._project}: of the first {len(unreadable)} blobs none could "
            f"be read, and {count} times a blob {reason}.",
            remedy="Check the proxy in between, and GitLab itself. The next run tries again.",
        )


def _count(header: str) -> int | None:
    # Python refuses to parse a number of thousands of digits.
    return int(header) if header.isdecimal() and len(header) < 20 else None

"""Contents of a GitLab project: git for many, REST for few, REST alone if git is refused."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from urllib.parse import quote, quote_from_bytes

from reposync.errors import SourceCorrupt
from reposync.http_client import HttpRefused, TransientFailure
from reposync.outgoing import OtherServer
from reposync.sources.gitlab_client import MAX_ANSWER_BYTES, MAX_CALLS, ProjectClient, Refusal
from reposync.sources.object_stores import SpoolFull
from reposync.sources.objects import BLOB, hash_name, object_sha
from reposync.sources.port import Blob, TreeEntry
from reposync.sources.smart_http import MAX_MISSING, FetchRefused, UploadPack

log = logging.getLogger(__name__)

# A git fetch costs the server a process and a walk through its object store, a raw blob one look-up; 20 blobs over 4
# connections take about as long as one fetch (0.3 s at 60 ms a call) and 1% of the 2,000 calls a minute that
# GitLab.com grants. A usual push changes fewer files than this, so it needs no git at all.
FEW_BLOBS = 20
# After so many blobs of which none was right, the read is given up. Each costs four requests and 2 s of
# pauses, so that this many take about a minute over 4 connections.
HOPELESS_BLOBS = 100

_NO_GIT = (HttpRefused, FetchRefused, SpoolFull, OtherServer)


class GitLabBlobs:
    """Reads blobs, and trees that JSON cannot hold."""

    def __init__(self, project: ProjectClient, *, is_first_sync: bool) -> None:
        """A first sync reads everything, so it uses git for the first few blobs already."""
        self._project = project
        self._server = project.server
        self._few_blobs = 0 if is_first_sync else FEW_BLOBS
        self._upload_pack: UploadPack | None = None
        self._git_path = ""
        self._git_path_is_current = False
        # Why git is no longer used. One refusal is enough: 300 failed logins in a minute ban the address.
        self._git_refused: str | None = None

    @property
    def no_git(self) -> str:
        """Why `tree_by_git` returned None."""
        return self._git_refused or "it would send all contents too"

    async def read(
        self, commit: str, entries: Sequence[TreeEntry], *, max_bytes: int, unreadable: dict[str, str]
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
                server = await self._git()
                # At a path that is not known to be the project's, the first missing blob is a reason to resolve it.
                most = MAX_MISSING if self._git_path_is_current else 0
                fetched = server.blobs(list(left), max_bytes=max_bytes, unreadable={}, max_missing=most)
                async with aclosing(fetched) as blobs:
                    async for blob in blobs:
                        left.pop(blob.sha, None)
                        yield blob
                break
            except _NO_GIT as error:
                await self._after_failure(error)
        # The few, and what git did not have: REST decides what is missing.
        by_rest = self._read_by_rest(commit, left, max_bytes, unreadable, any_read=len(left) < wanted)
        async with aclosing(by_rest) as blobs:
            async for blob in blobs:
                yield blob

    async def tree_by_git(self, sha: str) -> list[TreeEntry] | None:
        """The commit's tree from git's own objects; None if git is refused, or would send all contents too."""
        while self._git_refused is None:
            try:
                server = await self._git()
                if not (await server.capabilities()).filters:
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

    async def close(self) -> None:
        if self._upload_pack is not None:
            await self._upload_pack.close()
            self._upload_pack = None

    # Git -----------------------------------------------------------------------------------------------------------

    async def _git(self) -> UploadPack:
        if self._upload_pack is None:
            self._git_path = self._project.path or await self._project.resolve()
            self._git_path_is_current = self._project.is_resolved
            self._upload_pack = self._server.git(self._git_path)
        return self._upload_pack

    async def _after_failure(self, error: Exception) -> None:
        """Follow a moved project, or give up git."""
        if not self._git_path_is_current and not isinstance(error, SpoolFull):
            # A different project may be at the old path by now, public or private, and this may be its refusal.
            path, self._git_path_is_current = await self._project.resolve(), True
            if path != self._git_path:
                await self.close()
                return
            if isinstance(error, FetchRefused):
                return
        self._git_refused = str(error)
        log.warning(
            "Git refuses project %s on %s (%s): its blobs are read by REST.",
            self._project.name,
            self._server.url,
            error,
        )

    # REST ----------------------------------------------------------------------------------------------------------

    async def _read_by_rest(
        self, commit: str, paths: Mapping[str, bytes], max_bytes: int, unreadable: dict[str, str], *, any_read: bool
    ) -> AsyncGenerator[Blob, None]:
        """One call for each blob, a few at a time: memory holds as many contents as there are calls."""
        waiting = iter(paths.items())
        running: dict[asyncio.Task[Blob], str] = {}
        try:
            while True:
                if not any_read and len(unreadable) >= HOPELESS_BLOBS:
                    raise self._hopeless(unreadable)
                while len(running) < MAX_CALLS and (following := next(waiting, None)) is not None:
                    call = partial(self._raw_blob, commit, max_bytes, *following)
                    doing = f"Reading blob {following[0]} of {self._project.name} on {self._server.url}"
                    running[asyncio.create_task(self._server.http.retry(call, doing=doing))] = following[0]
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

    @property
    def _repository(self) -> str:
        return f"/projects/{self._project.id}/repository"

    async def _raw_blob(self, commit: str, max_bytes: int, sha: str, path: bytes) -> Blob:
        """Reads at most `max_bytes`. What is longer cannot be hashed, so the size of the file in its commit is read to
        confirm it: else a login page with status 200 would pass for a large blob."""
        pieces: list[bytes] = []
        received_bytes = 0
        async with self._server.raw("api_blob", "GET", f"{self._repository}/blobs/{sha}/raw") as response:
            plain = "Content-Encoding" not in response.headers
            declared_bytes = (_count(response.headers.get("Content-Length", "")) if plain else None) or 0
            # Workhorse sends the source of a web page as text/plain.
            html = response.headers.get("Content-Type", "").lower().startswith("text/html")
            if declared_bytes <= max_bytes:
                async for piece in self._server.http.body(response, MAX_ANSWER_BYTES):
                    pieces.append(piece)
                    received_bytes += len(piece)
                    if received_bytes > max_bytes:
                        break
        it = "it is text/html and" if html else "it"
        if max(declared_bytes, received_bytes) > max_bytes:
            size_bytes = await self._size_of_file(commit, path, sha)
            if size_bytes is None or size_bytes <= max_bytes:
                known = "GitLab does not confirm that" if size_bytes is None else f"GitLab knows {size_bytes:,}"
                raise TransientFailure(f"{it} has more than {max_bytes:,} bytes; {known}", corrupt=True)
            return Blob(sha, size_bytes, None)
        content = b"".join(pieces)
        if object_sha(BLOB, content, hash_name(sha)) != sha:
            raise TransientFailure(f"{it} does not hash to its name", corrupt=True)
        return Blob(sha, len(content), content)

    async def _size_of_file(self, commit: str, path: bytes, sha: str) -> int | None:
        """The size of blob `sha` in the headers of a file that holds it; None if GitLab does not say."""
        file = f"{self._repository}/files/{quote_from_bytes(path, safe='')}?ref={quote(commit, safe='')}"
        try:
            async with self._server.raw("api_blob", "HEAD", file) as response:
                headers = response.headers
        except HttpRefused:
            return None
        return _count(headers.get("X-Gitlab-Size", "")) if headers.get("X-Gitlab-Blob-Id") == sha else None

    def _hopeless(self, unreadable: Mapping[str, str]) -> SourceCorrupt:
        [(reason, count)] = Counter(unreadable.values()).most_common(1)
        return SourceCorrupt(
            f"{self._server.url} sends no content of {self._project.name}: of the first {len(unreadable)} blobs none "
            f"could be read, and {count} times a blob {reason}.",
            remedy="Check the proxy in between, and GitLab itself. The next run tries again.",
        )


def _count(header: str) -> int | None:
    # Python refuses to parse a number of thousands of digits.
    return int(header) if header.isdecimal() and len(header) < 20 else None

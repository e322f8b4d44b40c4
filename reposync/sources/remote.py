"""A repository behind an http(s) URL of git: refs, then trees without blobs, then the blobs that are wanted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager

from reposync.errors import SourceDenied, SourceError, SourceGone
from reposync.http_client import HttpRefused
from reposync.outgoing import RequestObserver
from reposync.sources.object_stores import ReceivedPack, SpoolFull
from reposync.sources.objects import HEADS, UnreadableBlobs, branch_name, first_paths, no_tip, read_steps
from reposync.sources.port import Blob, Commit, PastCommit, RemoteGit, Source, Tree, TreeEntry
from reposync.sources.smart_http import FetchRefused, UploadPack, received_history


class RemoteGitSource(Source):
    """A server with filters (GitLab, Gitea, GitHub) costs two small requests for a head that is known, one more for
    a new commit with its trees, and one per 2,000 blobs. Any other sends the commit's whole content (depth 1) once per
    new commit; it is kept on disk until `close`.
    """

    def __init__(self, spec: RemoteGit, *, observer: RequestObserver | None = None) -> None:
        self._server = UploadPack(spec, observer=observer)
        self._url = self._server.shown
        self._branch = spec.branch
        self._known = spec.known_commit
        # The pack of a commit: its trees, and its blobs too if the server cannot leave them out.
        self._kept: tuple[str, ReceivedPack] | None = None
        self._kept_has_blobs = False
        self._commit: str | None = None
        # The target of HEAD, once it was read.
        self._symbolic_head: bytes | None = None

    async def head(self) -> Commit:
        with self._explained():
            sha = await self._tip()
            if self._known is not None and sha == self._known.sha:
                return self._known
            pack = await self._pack(sha)
            return (await asyncio.to_thread(pack.commit, sha))[0]

    async def branch(self, *, fresh: bool = False) -> str | None:
        """As the port says. Free after `head`."""
        if self._branch is not None:
            return self._branch
        if self._symbolic_head is None or fresh:
            with self._explained():
                await self._head_ref()
        return branch_name(self._symbolic_head or b"")

    async def tree(self, commit: Commit) -> Tree:
        try:
            with self._explained():
                pack = await self._pack(commit.sha)
                entries = await asyncio.to_thread(pack.tree, commit.sha)
        finally:
            if not self._kept_has_blobs:
                self._drop()
        self._commit = commit.sha
        return Tree(entries, proven=True)

    async def read(self, entries: Sequence[TreeEntry], *, max_bytes: int) -> AsyncGenerator[Blob, None]:
        """As the port says. Raises UnreadableBlobs after the last blob if some are missing on the server."""
        left = await asyncio.to_thread(first_paths, entries)
        unreadable: dict[str, str] = {}
        with self._explained():
            if not self._kept_has_blobs:
                fetched = self._server.blobs(list(left), max_bytes=max_bytes, unreadable=unreadable)
                try:
                    async with aclosing(fetched) as blobs:
                        async for blob in blobs:
                            del left[blob.sha]
                            yield blob
                except FetchRefused:
                    # The server sends no objects by name: fetch the whole content of the commit, once.
                    unreadable.clear()
                    await self._keep(self._commit or await self._tip(), blobs=True)
            if self._kept_has_blobs and self._kept is not None:
                found = self._kept[1].blobs(list(left), max_bytes=max_bytes, unreadable=unreadable)
                async with aclosing(read_steps(found)) as steps:
                    async for blob in steps:
                        yield blob
        if unreadable:
            raise UnreadableBlobs.among(
                entries,
                unreadable,
                where=self._url,
                remedy="Check the proxy in between. Without one, the server's administrator can check the repository.",
            )

    async def history(self, tip: str, most: int, *, contents_too: bool = True) -> list[PastCommit]:
        with self._explained():
            return await received_history(self._server, tip, most, contents_too=contents_too)

    async def close(self) -> None:
        self._drop()
        await self._server.close()

    async def _tip(self) -> str:
        if self._branch is None:
            sha = await self._head_ref()
        else:
            name = HEADS + self._branch.encode("utf-8", "surrogateescape")
            sha = (await self._server.refs(name)).shas.get(name)
        if sha is not None:
            return sha
        refs = (await self._server.refs(HEADS)).shas
        raise no_tip(self._url, self._branch, [name.removeprefix(HEADS).decode(errors="replace") for name in refs])

    async def _head_ref(self) -> str | None:
        refs = await self._server.refs(b"HEAD")
        self._symbolic_head = refs.symbolic.get(b"HEAD", b"")
        return refs.shas.get(b"HEAD")

    async def _pack(self, sha: str) -> ReceivedPack:
        if self._kept is not None and self._kept[0] == sha:
            return self._kept[1]
        return await self._keep(sha, blobs=not (await self._server.capabilities()).filters)

    async def _keep(self, sha: str, *, blobs: bool) -> ReceivedPack:
        pack = await self._server.fetch([sha], depth=1, filter_spec=None if blobs else "blob:none")
        self._drop()
        self._kept, self._kept_has_blobs = (sha, pack), blobs
        return pack

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept[1].close()
        self._kept, self._kept_has_blobs = None, False

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except HttpRefused as error:
            raise self._refused(error) from error
        except SpoolFull as error:
            raise SourceError(
                f"The content of {self._url} is too large to be fetched at once.",
                remedy="A server with uploadpack.allowFilter sends it in parts.",
            ) from error
        except FetchRefused as error:
            raise SourceError(f"{self._url} refused a request: {error}.") from error

    def _refused(self, error: HttpRefused) -> SourceError:
        quoted = f" The server says: {error.text}" if error.text and "<" not in error.text else ""
        if error.status in (401, 403):
            what = "refused the credentials" if self._server.has_password else "requires a user name and a password"
            return SourceDenied(
                f"{self._url} {what} ({error.status}).{quoted}",
                remedy="Give a user name and a password (or token) that may read this repository.",
            )
        if error.status in (404, 410):
            return SourceGone(
                f"{self._url} was not found ({error.status}): it is missing, or hidden from these credentials.{quoted}",
                remedy="Check the URL, and whether these credentials may read it.",
            )
        return SourceError(f"{self._url} answered {error.status}.{quoted}", remedy="Check the URL.")

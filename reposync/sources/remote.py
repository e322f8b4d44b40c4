"""A repository behind an http(s) URL of git: refs, then trees without blobs, then the blobs that are wanted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime

from reposync.errors import BranchNotFound, RepositoryEmpty, SourceCorrupt, SourceDenied, SourceError, SourceGone
from reposync.http_client import HttpRefused
from reposync.outgoing import RequestObserver, parse_address, validate_transport, validated_token
from reposync.sources.git_protocol import FetchRefused
from reposync.sources.objects import (
    HEADS,
    UnreadableBlobs,
    branch_name,
    branch_not_found,
    distinct_blobs,
    read_steps,
)
from reposync.sources.packs import PackDamaged
from reposync.sources.port import Blob, Commit, Tree, TreeEntry
from reposync.sources.smart_http import MAX_SPOOL_BYTES, BlobFetcher, UploadPack
from reposync.sources.spec import RemoteGit
from reposync.sources.spool import ReceivedPack, SpoolFull


class RemoteGitSource:
    """A server with protocol version 2 and filters (GitLab, Gitea, GitHub, ...) costs three small requests for `head`,
    one for `tree` and one per 2,000 blobs. Any other sends the commit's whole content (depth 1) once per new commit;
    it is kept on disk until `close`.
    """

    def __init__(
        self, spec: RemoteGit, *, observer: RequestObserver | None = None, max_spool_bytes: int = MAX_SPOOL_BYTES
    ) -> None:
        """Opens no connection. Raises ConfigError for an address that is not http(s)."""
        address = parse_address(spec.url, what="The repository's address")
        validate_transport(address.url, spec.ca_file)
        secret = validated_token(spec.password or address.password, what=f"The password for {address.url}")
        self._url = address.url
        self._branch = spec.branch
        self._known_commit = spec.known_commit
        self._has_credentials = secret is not None
        self._server = UploadPack(
            address.url,
            username=spec.username or address.username,
            password=secret,
            ca_file=spec.ca_file,
            timeouts=spec.timeouts,
            retry=spec.retry,
            observer=observer,
            max_spool_bytes=max_spool_bytes,
        )
        # The commit whose pack is kept, and whether the pack contains blobs too.
        self._kept: tuple[str, ReceivedPack] | None = None
        self._kept_is_whole = False
        self._commit: str | None = None
        # The target of HEAD, once it was read.
        self._symbolic_head: bytes | None = None

    async def head(self) -> Commit:
        with self._explained():
            sha = await self._tip()
            server = await self._server.advertised()
            if not server.filters and sha == self._known_commit:
                # Its date would cost the whole content, and a caller that knows the commit knows its date.
                return Commit(sha, datetime.fromtimestamp(0, UTC))
            return await self._commit_of(sha, filters=server.filters)

    async def branch(self, *, fresh: bool = False) -> str | None:
        """As the port says. Free after `head`; a server without protocol version 2 is not requested again."""
        if self._branch is not None:
            return self._branch
        if self._symbolic_head is None or fresh:
            with self._explained():
                await self._head_ref()
        return branch_name(self._symbolic_head or b"")

    async def tree(self, commit: Commit) -> Tree:
        try:
            with self._explained():
                if self._kept is None or self._kept[0] != commit.sha:
                    server = await self._server.advertised()
                    await self._keep(commit.sha, whole=not server.filters)
                return await asyncio.to_thread(self._walk, commit.sha)
        finally:
            if not self._kept_is_whole:
                self._drop()

    async def read(self, entries: Sequence[TreeEntry], *, max_bytes: int) -> AsyncGenerator[Blob, None]:
        """As the port says. Raises UnreadableBlobs after the last blob if some are missing on the server."""
        shas = distinct_blobs(entries)
        unreadable: dict[str, str] = {}
        seen: set[str] = set()
        with self._explained():
            if not self._kept_is_whole:
                try:
                    fetcher = BlobFetcher(self._server)
                    async with aclosing(fetcher.read(shas, max_bytes=max_bytes, unreadable=unreadable)) as blobs:
                        async for blob in blobs:
                            seen.add(blob.sha)
                            yield blob
                except FetchRefused:
                    # The server sends no objects by name: fetch the whole content of the commit, once.
                    await self._keep(self._commit or await self._tip(), whole=True)
            if self._kept_is_whole:
                left = [sha for sha in shas if sha not in seen]
                async with aclosing(read_steps(lambda: self._kept_blobs(left, max_bytes, unreadable))) as kept:
                    async for blob in kept:
                        yield blob
        if unreadable:
            raise UnreadableBlobs.among(
                entries,
                unreadable,
                where=self._url,
                remedy="Ask the administrator of that server to check the repository.",
            )

    def url(self, path: bytes, commit: Commit, start_line: int, end_line: int) -> str | None:
        """Always None: plain git has no web pages."""
        return None

    async def project_id(self) -> int | None:
        """Always None: plain git has no project ids."""
        return None

    async def close(self) -> None:
        self._drop()
        await self._server.close()

    # Head --------------------------------------------------------------------------------------------------------

    async def _tip(self) -> str:
        if self._branch is not None:
            name = HEADS + self._branch.encode("utf-8", "surrogateescape")
            refs, _ = await self._server.refs([name])
            if name in refs:
                return refs[name]
            refs, _ = await self._server.refs([HEADS])
            if not refs:
                raise self._empty()
            raise branch_not_found(self._branch, _names(refs), self._url)
        sha = await self._head_ref()
        if sha is not None:
            return sha
        refs, _ = await self._server.refs([HEADS])
        if not refs:
            raise self._empty()
        unborn = branch_name(self._symbolic_head or b"")
        raise BranchNotFound(
            f"{self._url} has no default branch"
            + (f": HEAD names {unborn!r}, which does not exist." if unborn else "."),
            remedy=f"Name a branch to sync: {', '.join(_names(refs)[:5])}.",
        )

    async def _head_ref(self) -> str | None:
        refs, symbolic = await self._server.refs([b"HEAD"])
        self._symbolic_head = symbolic.get(b"HEAD", b"")
        return refs.get(b"HEAD")

    async def _commit_of(self, sha: str, *, filters: bool) -> Commit:
        if self._kept is None or self._kept[0] != sha:
            if not filters:
                await self._keep(sha, whole=True)
            else:
                try:
                    pack = await self._server.fetch([sha], depth=1, filter_spec="tree:0")
                except FetchRefused:  # a server may allow blob:none alone
                    await self._keep(sha, whole=False)
                else:
                    try:
                        return await asyncio.to_thread(self._parsed, pack, sha)
                    finally:
                        pack.close()
        return await asyncio.to_thread(lambda: self._parsed(self._pack(), sha))

    def _parsed(self, pack: ReceivedPack, sha: str) -> Commit:
        try:
            return pack.commit(sha)[0]
        except (PackDamaged, KeyError) as error:
            raise self._corrupt(error) from error

    # The pack that is kept -----------------------------------------------------------------------------------------

    async def _keep(self, sha: str, *, whole: bool) -> None:
        pack = await self._server.fetch([sha], depth=1, filter_spec=None if whole else "blob:none")
        self._drop()
        self._kept, self._kept_is_whole = (sha, pack), whole

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept[1].close()
        self._kept, self._kept_is_whole = None, False

    def _pack(self) -> ReceivedPack:
        if self._kept is None:
            raise RuntimeError("no pack is kept")
        return self._kept[1]

    def _walk(self, sha: str) -> Tree:
        pack = self._pack()
        try:
            entries = pack.tree(sha)
        except (PackDamaged, KeyError) as error:
            raise self._corrupt(error) from error
        self._commit = sha
        return Tree(entries, proven=True)

    def _kept_blobs(self, shas: Sequence[str], max_bytes: int, unreadable: dict[str, str]) -> Iterator[Blob]:
        pack = self._pack()
        for sha in shas:
            if not pack.holds(sha):
                unreadable[sha] = "was not sent by the server"
        for sha in pack.in_file_order(shas):
            try:
                yield pack.blob(sha, max_bytes=max_bytes)
            except PackDamaged as error:
                unreadable[sha] = f"is damaged ({error})"

    # Messages -------------------------------------------------------------------------------------------------------

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
        if error.status == 401 and not self._has_credentials:
            return SourceDenied(
                f"{self._url} requires a user name and a password.{quoted}",
                remedy="Give username and password (a token, if the server has those).",
            )
        if error.status in (401, 403):
            return SourceDenied(
                f"{self._url} refused the credentials ({error.status}).{quoted}",
                remedy="Check that user name and password are right, not expired, and may read this repository.",
            )
        if error.status in (404, 410):
            return SourceGone(
                f"{self._url} was not found ({error.status}): it is missing, or hidden from these credentials.{quoted}",
                remedy="Check the URL, and whether these credentials may read it.",
            )
        return SourceError(f"{self._url} answered {error.status}.{quoted}", remedy="Check the URL.")

    def _corrupt(self, error: PackDamaged | KeyError) -> SourceCorrupt:
        reason = f"object {error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        return SourceCorrupt(f"A pack from {self._url} cannot be used: {reason}.")

    def _empty(self) -> RepositoryEmpty:
        return RepositoryEmpty(f"{self._url} has no commit yet.", remedy="Push something there first.")


def _names(refs: dict[bytes, str]) -> list[str]:
    return sorted(name.removeprefix(HEADS).decode(errors="replace") for name in refs if name.startswith(HEADS))

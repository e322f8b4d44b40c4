"""A repository behind an http(s) URL of git: refs, then trees without blobs, then the blobs that are wanted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from pydantic import SecretStr

from reposync.errors import BranchNotFound, RepositoryEmpty, SourceCorrupt, SourceDenied, SourceError, SourceGone
from reposync.sources.addresses import check_way, header_secret, parse_address
from reposync.sources.ancestry import Ancestry
from reposync.sources.branches import HEADS, branch_name, branch_not_found
from reposync.sources.bulk import BlobFetcher, read_steps
from reposync.sources.git_protocol import FetchRefused
from reposync.sources.objects import COMMIT, TREE, UnreadableBlobs, distinct_blobs, parse_commit, walk_tree
from reposync.sources.packs import PackDamaged
from reposync.sources.port import Blob, Commit, Tree, TreeEntry
from reposync.sources.smart_http import MAX_SPOOL_BYTES, GitHttpRefused, UploadPack
from reposync.sources.spec import Patience, SourceObserver, Timeouts
from reposync.sources.spool import ReceivedPack, SpoolFull


class RemoteGitSource:
    """See `GitSource.remote`.

    A server with protocol version 2 and filters (GitLab, Gitea, GitHub, ...) costs three small requests for `head`,
    one for `tree` and one per 2,000 blobs. Any other sends the commit's whole content (depth 1) once per new commit;
    it is kept on disk until `close`.
    """

    def __init__(
        self,
        url: str,
        *,
        branch: str | None,
        username: str | None,
        password: SecretStr | None,
        ca_file: Path | None,
        timeouts: Timeouts,
        patience: Patience,
        observer: SourceObserver | None,
        known_commit: str | None = None,
        max_spool_bytes: int = MAX_SPOOL_BYTES,
    ) -> None:
        address = parse_address(url, what="The repository's address")
        check_way(address.url, ca_file)
        secret = header_secret(password or address.password, what=f"The password for {address.url}")
        self._url = address.url
        self._branch = branch
        self._known_commit = known_commit
        self._has_credentials = secret is not None
        self._server = UploadPack(
            address.url,
            username=username or address.username,
            password=secret,
            ca_file=ca_file,
            timeouts=timeouts,
            patience=patience,
            observer=observer,
            max_spool_bytes=max_spool_bytes,
        )
        # The commit whose pack is kept, and whether that holds blobs too.
        self._kept: tuple[str, ReceivedPack] | None = None
        self._kept_is_whole = False
        self._commit: str | None = None
        # Where HEAD points, once it was asked for.
        self._symbolic_head: bytes | None = None

    async def head(self) -> Commit:
        try:
            sha = await self._tip()
            server = await self._server.advertised()
            if not server.filters and sha == self._known_commit:
                # Its date would cost the whole content, and who knows the commit knows its date.
                return Commit(sha, datetime.fromtimestamp(0, UTC))
            return await self._commit_of(sha, filters=server.filters)
        except GitHttpRefused as error:
            self._explain(error)
        except (FetchRefused, SpoolFull) as error:
            raise self._refused(error) from error

    async def branch(self, *, fresh: bool = False) -> str | None:
        """As the port says. Costs nothing after `head`; a server without protocol version 2 is not asked again."""
        if self._branch is not None:
            return self._branch
        if self._symbolic_head is None or fresh:
            try:
                await self._head_ref()
            except GitHttpRefused as error:
                self._explain(error)
            except FetchRefused as error:
                raise self._refused(error) from error
        return branch_name(self._symbolic_head or b"")

    async def tree(self, commit: Commit) -> Tree:
        try:
            if self._kept is None or self._kept[0] != commit.sha:
                server = await self._server.advertised()
                await self._keep(commit.sha, whole=not server.filters)
            return await asyncio.to_thread(self._walk, commit.sha)
        except GitHttpRefused as error:
            self._explain(error)
        except (FetchRefused, SpoolFull) as error:
            raise self._refused(error) from error
        finally:
            if not self._kept_is_whole:
                self._drop()

    async def read(self, entries: Sequence[TreeEntry], *, max_bytes: int) -> AsyncGenerator[Blob, None]:
        """As the port says. Raises UnreadableBlobs after the last blob where the server lacks some."""
        shas = distinct_blobs(entries)
        unreadable: dict[str, str] = {}
        try:
            seen: set[str] = set()
            if not self._kept_is_whole:
                try:
                    fetcher = BlobFetcher(self._server)
                    async with aclosing(fetcher.read(shas, max_bytes=max_bytes, unreadable=unreadable)) as blobs:
                        async for blob in blobs:
                            seen.add(blob.sha)
                            yield blob
                except FetchRefused:
                    # No objects by name here: the whole content of the commit, once.
                    await self._keep(self._commit or await self._tip(), whole=True)
            if self._kept_is_whole:
                left = [sha for sha in shas if sha not in seen]
                async with aclosing(read_steps(lambda: self._kept_blobs(left, max_bytes, unreadable))) as kept:
                    async for blob in kept:
                        yield blob
        except GitHttpRefused as error:
            self._explain(error)
        except (FetchRefused, SpoolFull) as error:
            raise self._refused(error) from error
        if unreadable:
            raise UnreadableBlobs.among(
                entries, unreadable, where=self._url, remedy="Ask whoever runs that server to check the repository."
            )

    async def ancestry(self, commit: str, tip: str) -> Ancestry:
        """See `ancestry_by_fetch`. Raises SourceError and its kind."""
        from reposync.sources.git_history import ancestry_by_fetch

        try:
            return await ancestry_by_fetch(self._server, commit, tip)
        except GitHttpRefused as error:
            self._explain(error)
        except (FetchRefused, SpoolFull) as error:
            raise self._refused(error) from error

    def url(self, path: bytes, commit: Commit, start_line: int, end_line: int) -> str | None:
        """Always None: git knows no pages."""
        return None

    async def project_id(self) -> int | None:
        """Always None: plain git gives repositories no numbers."""
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
            return parse_commit(sha, pack.contents([sha], COMMIT)[sha])[0]
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
            _, root = parse_commit(sha, pack.contents([sha], COMMIT)[sha])
            entries = walk_tree(root, lambda shas: pack.contents(shas, TREE))
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

    # Words -------------------------------------------------------------------------------------------------------

    def _explain(self, error: GitHttpRefused) -> NoReturn:
        said = f" It says: {error.text}" if error.text and "<" not in error.text else ""
        if error.status == 401 and not self._has_credentials:
            raise SourceDenied(
                f"{self._url} asks for a user name and a password.{said}",
                remedy="Give username and password (a token, where the server has those).",
            ) from error
        if error.status in (401, 403):
            raise SourceDenied(
                f"{self._url} refused the credentials ({error.status}).{said}",
                remedy="Check that user name and password are right, not expired, and may read this repository.",
            ) from error
        if error.status in (404, 410):
            raise SourceGone(
                f"{self._url} was not found ({error.status}): it is missing, or hidden from these credentials.{said}",
                remedy="Check the URL, and whether it may be read with them.",
            ) from error
        raise SourceError(f"{self._url} answered {error.status}.{said}", remedy="Check the URL.") from error

    def _refused(self, error: FetchRefused | SpoolFull) -> SourceError:
        if isinstance(error, SpoolFull):
            return SourceError(
                f"The content of {self._url} is too large to be fetched at once.",
                remedy="A server with uploadpack.allowFilter sends it in parts.",
            )
        return SourceError(f"{self._url} refused to send what was asked for: {error}.")

    def _corrupt(self, error: PackDamaged | KeyError) -> SourceCorrupt:
        reason = f"object {error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        return SourceCorrupt(f"A pack from {self._url} cannot be used: {reason}.")

    def _empty(self) -> RepositoryEmpty:
        return RepositoryEmpty(f"{self._url} has no commit yet.", remedy="Push something there first.")


def _names(refs: dict[bytes, str]) -> list[str]:
    return sorted(name.removeprefix(HEADS).decode(errors="replace") for name in refs if name.startswith(HEADS))

"""Contents of a GitLab project: git for many, REST for few, REST alone where git is refused."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from urllib.parse import quote, quote_from_bytes

import gitlab

from reposync.errors import SourceCorrupt, SourceUnavailable
from reposync.sources.addresses import OtherServer
from reposync.sources.bulk import MAX_MISSING, BlobFetcher
from reposync.sources.git_protocol import Advertisement, FetchRefused
from reposync.sources.gitlab_words import Refusal
from reposync.sources.objects import BLOB, COMMIT, TREE, hash_name, object_hash, parse_commit, walk_tree
from reposync.sources.packs import PackDamaged
from reposync.sources.port import Blob, TreeEntry
from reposync.sources.rest import LANES, Rest, RestRefused
from reposync.sources.retries import TransientFailure
from reposync.sources.smart_http import GitHttpRefused, UploadPack
from reposync.sources.spec import Patience, SourceObserver, Timeouts
from reposync.sources.spool import ReceivedPack, SpoolFull

log = logging.getLogger(__name__)

# A git fetch costs the server a process and a walk through its object store, a raw blob one look-up; 20 blobs over 4
# connections take about as long as one fetch (0.3 s at 60 ms a call) and 1% of the 2,000 calls a minute that
# GitLab.com grants. A usual push changes fewer files than this, so it needs no git at all.
FEW_BLOBS = 20
RAW_STEP_BYTES = 64 * 1024
# After so many blobs of which none was right, the next 10,000 will be no better. Each costs four requests and 2 s of
# pauses, so that this many take about a minute over 4 connections.
HOPELESS_BLOBS = 100

_NO_GIT = (GitHttpRefused, FetchRefused, SpoolFull, OtherServer, SourceUnavailable, SourceCorrupt)


class GitLabBlobs:
    """Reads blobs, and trees where JSON cannot hold them."""

    def __init__(
        self,
        rest: Rest,
        *,
        instance: str,
        project: str,
        token: str | None,
        path: str | None,
        first_contact: bool,
        resolve: Callable[[], Awaitable[str]],
        ca_file: Path | None,
        timeouts: Timeouts,
        patience: Patience,
        observer: SourceObserver | None,
    ) -> None:
        """`path` is where git finds the project, `resolve` asks for its present one. On `first_contact` nothing of
        the project was ever read: everything will be, so that git is used for the first few blobs already."""
        self._rest = rest
        self._instance = instance
        self._project = project
        self._path = path
        self._path_is_fresh = False
        self._resolve = resolve
        self._few_blobs = 0 if first_contact else FEW_BLOBS
        self._token = token
        self._ca_file = ca_file
        self._timeouts = timeouts
        self._patience = patience
        self._observer = observer
        self._server: UploadPack | None = None
        # Why git is not asked any more. One refusal is enough: 300 failed logins in a minute ban the address.
        self._git_refused: str | None = None

    @property
    def no_git(self) -> str:
        """Why `tree_by_git` gave none."""
        return self._git_refused or "it would send every content along"

    async def read(
        self, number: int, commit: str, entries: Sequence[TreeEntry], *, max_bytes: int, unreadable: dict[str, str]
    ) -> AsyncGenerator[Blob, None]:
        """The distinct blobs of `entries`, each verified; those that GitLab lacks go to `unreadable`. `commit` has
        the entries. Raises RestRefused; SourceCorrupt where nothing is what it should be."""
        left: dict[str, bytes] = {}
        for entry in entries:
            if not entry.is_submodule:
                left.setdefault(entry.sha, entry.path)
        wanted = len(left)
        while len(left) > self._few_blobs and self._git_refused is None:
            try:
                server = await self._git(next(iter(left)))
                # At a path that is not known to be the project's, the first missing blob is a reason to look.
                fetcher = BlobFetcher(server, max_missing=MAX_MISSING if self._path_is_fresh else 0)
                async with aclosing(fetcher.read(list(left), max_bytes=max_bytes, unreadable={})) as blobs:
                    async for blob in blobs:
                        left.pop(blob.sha, None)
                        yield blob
            except _NO_GIT as error:
                await self._after_failure(error)
            else:
                break
        # The few, and what git did not have: REST has the last word on what is missing.
        some_came = len(left) < wanted
        one = partial(self._one, number, commit, max_bytes)
        async with aclosing(self._read_by_rest(one, left, unreadable, some_came=some_came)) as blobs:
            async for blob in blobs:
                yield blob

    async def tree_by_git(self, sha: str) -> list[TreeEntry] | None:
        """The commit's tree from git's own objects; None where git is refused, or would send every content along."""
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
                return await asyncio.to_thread(_walk, pack, sha)
            except (PackDamaged, KeyError) as error:
                raise SourceCorrupt(f"The tree of {self._project} as git sends it cannot be read: {error}.") from error
            finally:
                pack.close()
        return None

    def found_at(self, path: str) -> None:
        """The project's present path, as REST gave it."""
        if self._server is None:
            self._path, self._path_is_fresh = path, True

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
            self._server = None

    # Git -----------------------------------------------------------------------------------------------------------

    async def _git(self, sha: str) -> UploadPack:
        if self._path is None:
            self._path, self._path_is_fresh = await self._resolve(), True
        if self._server is None:
            self._server = UploadPack(
                f"{self._instance}/{quote(self._path, safe='/')}.git",
                username="oauth2" if self._token else None,
                password=self._token,
                ca_file=self._ca_file,
                timeouts=self._timeouts,
                patience=self._patience,
                observer=self._observer,
            )
            # Every supported GitLab speaks version 2 with filters, so asking first would be a request for nothing.
            self._server.assume(_gitlab_advertisement(sha))
        return self._server

    async def _after_failure(
        self, error: GitHttpRefused | FetchRefused | SpoolFull | OtherServer | SourceUnavailable | SourceCorrupt
    ) -> None:
        """Find another way: follow a moved project, ask what the server really speaks, or leave git alone. Raises
        `error` itself where that would not help."""
        server = self._server
        assumed = server is not None and server.is_assumed
        if isinstance(error, SourceUnavailable | SourceCorrupt):
            # A proxy that takes the Git-Protocol header away makes the answer unreadable, not a refusal.
            if not assumed or server is None:
                raise error
            server.assume(None)
            return
        if not self._path_is_fresh and not isinstance(error, SpoolFull):
            # Another project may stand at the old path by now, public or private: any refusal may be its.
            path, self._path_is_fresh = await self._resolve(), True
            if path != self._path:
                await self.close()
                self._path = path
                return
            if isinstance(error, FetchRefused) and not assumed:
                return
        final = isinstance(error, SpoolFull | OtherServer) or (
            isinstance(error, GitHttpRefused) and error.status in (401, 403, 404)
        )
        if assumed and server is not None and not final:
            server.assume(None)
            return
        self._git_refused = str(error)
        log.warning("Git refuses project %s on %s (%s): its blobs come by REST.", self._project, self._instance, error)

    # REST ----------------------------------------------------------------------------------------------------------

    async def _read_by_rest(
        self,
        one: Callable[[str, bytes], Coroutine[None, None, Blob]],
        paths: Mapping[str, bytes],
        unreadable: dict[str, str],
        *,
        some_came: bool,
    ) -> AsyncGenerator[Blob, None]:
        """One call a blob, a few at a time: no more contents are held than calls are under way."""
        waiting = iter(paths.items())
        running: dict[asyncio.Task[Blob], str] = {}
        try:
            while True:
                if not some_came and len(unreadable) >= HOPELESS_BLOBS:
                    raise self._hopeless(unreadable)
                while len(running) < LANES and (following := next(waiting, None)) is not None:
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
                    except RestRefused as refused:
                        if not Refusal.of(refused).is_about("Blob"):
                            raise
                        unreadable[sha] = "is missing on the server"
                    else:
                        some_came = True
                        yield blob
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _one(self, number: int, commit: str, max_bytes: int, sha: str, path: bytes) -> Blob:
        doing = f"Reading blob {sha} of {self._project} on {self._instance}"
        size = partial(_size_of_file, number, commit, path, sha)
        return await self._rest.call("api_blob", partial(_raw_blob, number, sha, max_bytes, size), doing=doing)

    def _hopeless(self, unreadable: Mapping[str, str]) -> SourceCorrupt:
        [(reason, count)] = Counter(unreadable.values()).most_common(1)
        return SourceCorrupt(
            f"{self._instance} gives no content of {self._project}: of the first {len(unreadable)} blobs none could be "
            f"read, and {count} times a blob {reason}.",
            remedy="Look at the proxy between, and at GitLab itself. The next run tries again.",
        )


def _raw_blob(
    number: int, sha: str, max_bytes: int, true_size: Callable[[gitlab.Gitlab], int | None], client: gitlab.Gitlab
) -> Blob:
    """In a thread. Stops reading at `max_bytes`: what is longer cannot be hashed, so that `true_size` is asked whether
    the blob is. Else a login page with status 200 would pass for a large blob."""
    # Uncompressed, as only then the header tells the size before the content comes.
    answer = client.http_request(
        "get",
        f"/projects/{number}/repository/blobs/{sha}/raw",
        streamed=True,
        extra_headers={"Accept-Encoding": "identity"},
    )
    with answer:
        plain = "Content-Encoding" not in answer.headers
        size_bytes = _count(answer.headers.get("Content-Length", "")) if plain else None
        # Workhorse gives the source of a web page as text/plain.
        html = answer.headers.get("Content-Type", "").lower().startswith("text/html")
        pieces: list[bytes] = []
        got = 0
        if size_bytes is None or size_bytes <= max_bytes:
            for piece in answer.iter_content(RAW_STEP_BYTES):
                got += len(piece)
                if got > max_bytes:
                    break
                pieces.append(piece)
    it = "it is text/html and" if html else "it"
    if max(size_bytes or 0, got) > max_bytes:
        size_bytes = true_size(client)
        if size_bytes is None or size_bytes <= max_bytes:
            known = "GitLab does not confirm that" if size_bytes is None else f"GitLab knows {size_bytes:,}"
            raise TransientFailure(f"{it} has more than {max_bytes:,} bytes; {known}", corrupt=True)
        return Blob(sha, size_bytes, None)
    running: hashlib._Hash = object_hash(BLOB, got, hash_name(sha))
    for piece in pieces:
        running.update(piece)
    if running.hexdigest() != sha:
        raise TransientFailure(f"{it} does not hash to its name", corrupt=True)
    return Blob(sha, got, b"".join(pieces))


def _size_of_file(number: int, commit: str, path: bytes, sha: str, client: gitlab.Gitlab) -> int | None:
    """In a thread. The size of blob `sha` as the headers of a file that holds it give it; None if they do not."""
    try:
        # Not `files.head`, which takes text: a path is bytes.
        headers = client.http_head(
            f"/projects/{number}/repository/files/{quote_from_bytes(path, safe='')}", query_data={"ref": commit}
        )
    except RestRefused:
        return None
    return _count(headers.get("X-Gitlab-Size", "")) if headers.get("X-Gitlab-Blob-Id") == sha else None


def _count(header: str) -> int | None:
    # Python refuses to read a number of thousands of digits.
    return int(header) if header.isdecimal() and len(header) < 20 else None


def _walk(pack: ReceivedPack, sha: str) -> list[TreeEntry]:
    _, root = parse_commit(sha, pack.contents([sha], COMMIT)[sha])
    return walk_tree(root, lambda shas: pack.contents(shas, TREE))


def _gitlab_advertisement(sha: str) -> Advertisement:
    capabilities = {"fetch": "shallow filter"}
    if hash_name(sha) != "sha1":
        capabilities["object-format"] = hash_name(sha)
    return Advertisement(2, capabilities)

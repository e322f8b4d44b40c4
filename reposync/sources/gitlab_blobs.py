"""Contents of a GitLab project by REST, one request each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from functools import partial
from urllib.parse import quote_from_bytes

import gitlab

from reposync.errors import SourceCorrupt
from reposync.http_client import HttpRefused, TransientFailure
from reposync.sources.gitlab_client import MAX_CALLS, GitLabClient, Refusal, declared_bytes, header_number
from reposync.sources.objects import BLOB, hash_name, object_sha
from reposync.sources.port import Blob
from reposync.supervision import end

# After so many blobs of which none was right, the read is given up. Each costs four requests and 2 s of
# pauses, so that this many take about a minute over 4 connections.
HOPELESS_BLOBS = 100
# After so many unreadable blobs the others are read twice at most, not four times.
SEVERAL_BLOBS, ONCE_MORE = 4, 2
_UNCOMPRESSED = {"Accept-Encoding": "identity"}


class RestBlobs:
    """The blobs of the project `number`, called `name` in messages. `ref`: a commit or branch that has the files."""

    def __init__(self, server: GitLabClient, number: int, name: str, ref: str) -> None:
        self._server = server
        self._repository = f"/projects/{number}/repository"
        self._name = name
        self._ref = ref

    async def read(
        self, paths: Mapping[str, bytes], max_bytes: int, unreadable: dict[str, str], *, any_read: bool
    ) -> AsyncGenerator[Blob, None]:
        """One call for each blob, a few at a time: memory holds as many contents as there are calls."""
        waiting = iter(paths.items())
        running: dict[asyncio.Task[Blob], str] = {}
        try:
            while True:
                if not any_read and len(unreadable) >= HOPELESS_BLOBS:
                    raise self._hopeless(unreadable)
                while len(running) < MAX_CALLS and (following := next(waiting, None)) is not None:
                    work = partial(self._raw_blob, max_bytes, *following)
                    doing = f"Reading blob {following[0]} of {self._name} on {self._server.url}"
                    # Where several blobs are damaged the next one may be, too: the run is retried anyway.
                    policy = self._server.http.policy
                    if len(unreadable) >= SEVERAL_BLOBS:
                        policy = replace(policy, attempts=min(policy.attempts, ONCE_MORE))
                    reading = self._server.call("api_blob", work, doing=doing, policy=policy, cut_bytes=max_bytes)
                    running[asyncio.create_task(reading)] = following[0]
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
            await end(*running)

    def _raw_blob(self, max_bytes: int, sha: str, path: bytes, client: gitlab.Gitlab) -> Blob:
        """Reads at most `max_bytes`. What is longer cannot be hashed, so the size of the file in its commit is read to
        confirm it: else a login page with status 200 would pass for a large blob."""
        url = f"{self._repository}/blobs/{sha}/raw"
        response = client.http_request("get", url, extra_headers=_UNCOMPRESSED)
        content = response.content
        # Workhorse sends the source of a web page as text/plain.
        html = response.headers.get("Content-Type", "").lower().startswith("text/html")
        it = "it is text/html and" if html else "it"
        if max(declared_bytes(response.headers), len(content)) > max_bytes:
            size_bytes = self._size_of_file(path, sha, client)
            if size_bytes is None or size_bytes <= max_bytes:
                known = "GitLab does not confirm that" if size_bytes is None else f"GitLab knows {size_bytes:,}"
                raise TransientFailure(f"{it} has more than {max_bytes:,} bytes; {known}", corrupt=True)
            return Blob(sha, size_bytes, None)
        if object_sha(BLOB, content, hash_name(sha)) != sha:
            raise TransientFailure(f"{it} does not hash to its name", corrupt=True)
        return Blob(sha, len(content), content)

    def _size_of_file(self, path: bytes, sha: str, client: gitlab.Gitlab) -> int | None:
        """The size of blob `sha` in the headers of a file that holds it; None if GitLab does not say."""
        file = f"{self._repository}/files/{quote_from_bytes(path, safe='')}"
        try:
            headers = client.http_head(file, {"ref": self._ref}, extra_headers=_UNCOMPRESSED)
        except HttpRefused:
            return None
        return header_number(headers.get("X-Gitlab-Size", "")) if headers.get("X-Gitlab-Blob-Id") == sha else None

    def _hopeless(self, unreadable: Mapping[str, str]) -> SourceCorrupt:
        [(reason, count)] = Counter(unreadable.values()).most_common(1)
        return SourceCorrupt(
            f"{self._server.url} sends no content of {self._name}: of the first {len(unreadable)} blobs none "
            f"could be read, and {count} times a blob {reason}.",
            remedy="Check the proxy in between, and GitLab itself. The next run tries again.",
        )

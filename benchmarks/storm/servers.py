"""The servers around the daemons, each with a log that says whose every request was."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import httpx
import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from benchmarks.storm.pods import name_of_token
from benchmarks.storm.proofs import Request
from tests.fixtures.gitlab_server.git_http import basic_credentials
from tests.fixtures.gitlab_server.rest import bearer_token
from tests.fixtures.gitlab_server.server import GitLabServer, build_app
from tests.fixtures.gitlab_server.serving import ThreadedServer

_REST_PROJECT = re.compile(r"^/api/v4/projects/([^/]+)")
_WRITES = re.compile(r"/points(/(batch|delete|payload|vectors)(/\w+)?)?$")


class WatchedGitLab(GitLabServer):
    """The GitLab test server, a little slow, which notes who asked for which project and when. The process named in
    `holding` waits for its answers as long as it is named there."""

    def __init__(self, *, seed: int, slowest_seconds: float) -> None:
        super().__init__()
        self.seen: list[Request] = []
        self.refused: list[str] = []
        self.holding: str | None = None
        self._random = random.Random(seed)
        self._slowest_seconds = slowest_seconds

    def __enter__(self) -> WatchedGitLab:
        self.serve(self._watching(build_app(self)))
        return self

    def _watching(self, app: ASGIApp) -> ASGIApp:
        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                path = scope["raw_path"].decode("latin-1")
                asker = _asker(scope)
                if project := self._project(path):
                    self.seen.append(Request(asker, project, time.time(), False, path))
                while asker == self.holding:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(self._random.uniform(0, self._slowest_seconds))

            async def passed(message: Any) -> None:
                if message["type"] == "http.response.start" and message["status"] >= 400:
                    path = scope["raw_path"].decode("latin-1")
                    self.refused.append(f"{message['status']} {_REST_PROJECT.sub('', path)}")
                await send(message)

            await app(scope, receive, passed)

        return watched

    def _project(self, path: str) -> str | None:
        """The path of the project (its name in the registry, here), however the request names it."""
        if found := _REST_PROJECT.match(path):
            name = unquote(found[1])
            if name.isdigit() and (project := self.project_by_id(int(name))):
                name = project.path
        elif ".git/" in path:
            name = unquote(path).partition(".git/")[0].strip("/")
        else:
            return None
        return name.rpartition("/")[2]


class WatchedQdrant(ThreadedServer):
    """In front of a Qdrant: passes everything on, writes a little slowly, and notes who wrote what and when.
    `repository_names`: the registered name behind an id, filled in by whoever reads the database."""

    def __init__(self, target: str, *, seed: int, slowest_seconds: float) -> None:
        super().__init__()
        self.written: list[Request] = []
        self._target = target
        self._random = random.Random(seed)
        self._slowest_seconds = slowest_seconds
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> WatchedQdrant:
        self.serve(self._app)
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop).result(30)
        self.stop()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._client is None:
            limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
            self._loop = asyncio.get_running_loop()
            self._client = httpx.AsyncClient(base_url=self._target, timeout=120, limits=limits)
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
        if message["type"] == "http.disconnect":
            return
        if scope["method"] in ("PUT", "POST", "DELETE") and _WRITES.search(path):
            self._note(_header(scope, b"api-key"), path, body)
            await asyncio.sleep(self._random.uniform(0, self._slowest_seconds))
        headers = {"content-type": "application/json"} if body else {}
        url = f"{path}?{query}" if query else path
        try:
            answer = await self._client.request(scope["method"], url, content=body, headers=headers)
            status, content = answer.status_code, answer.content
            kind = answer.headers.get("content-type", "application/json").encode()
        except httpx.HTTPError as error:
            status, content, kind = 502, str(error).encode(), b"text/plain"
        head = [(b"content-type", kind), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": content})

    def _note(self, key: str, path: str, body: bytes) -> None:
        now, name = time.time(), name_of_token(key)
        for identity in set(_repository_ids(orjson.loads(body))) or {""}:
            self.written.append(Request(name, identity, now, True, path))


def _repository_ids(value: Any) -> Iterator[str]:
    """In points as in filters."""
    if isinstance(value, dict):
        if value.get("key") == "metadata.repository_id":
            match = value.get("match", {})
            yield from [match["value"]] if "value" in match else match.get("any", [])
        elif isinstance(found := value.get("repository_id"), str):
            yield found
        for each in value.values():
            yield from _repository_ids(each)
    elif isinstance(value, list):
        # Vectors are long lists of numbers.
        if value and isinstance(value[0], float | int):
            return
        for each in value:
            yield from _repository_ids(each)


def _asker(scope: Scope) -> str:
    authorization = _header(scope, b"authorization")
    if found := basic_credentials(authorization):
        return name_of_token(found[1])
    token = bearer_token(authorization)
    return name_of_token(token) if token else ""


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")

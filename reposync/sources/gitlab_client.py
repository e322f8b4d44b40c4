"""A GitLab instance: its REST API through python-gitlab, on our HTTP client.

python-gitlab is synchronous, has no default time-out, sleeps as long as a 429 requests, and follows redirects to any
host. So each call runs in a thread with a client of its own, whose requests go through `_Adapter` to the HttpClient on
the event loop: with its time-outs, bounds, retries and redirects. A cancelled call ends when its request is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import gitlab
import httpx
import requests
from gitlab.exceptions import GitlabParsingError
from pydantic import SecretStr
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from reposync.config.registry import GitLabInstance
from reposync.errors import SourceCorrupt, SourceDenied, SourceError, SourceGone
from reposync.http_client import HttpClient, HttpRefused, TransientFailure
from reposync.outgoing import (
    RequestObserver,
    RetryPolicy,
    Timeouts,
    parse_address,
    parse_json,
    printable,
    validate_transport,
    validated_token,
)
from reposync.sources.smart_http import SOURCE_ERRORS, UploadPack

T = TypeVar("T")

MAX_CALLS = 4
"""At a time."""
MAX_ANSWER_BYTES = 512 * 1024 * 1024  # the tree of 4 million files
PAGE_ROWS = 100  # GitLab's maximum


class GitLabClient:
    """A GitLab instance. Methods raise SourceUnavailable, SourceCorrupt, SourceError; and HttpRefused, which `explain`
    turns into an error with a remedy."""

    def __init__(
        self,
        url: str,
        *,
        token: SecretStr | None = None,
        ca_file: Path | None = None,
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
        observer: RequestObserver | None = None,
    ) -> None:
        """Opens no connection. Raises ConfigError if the address, the token or the CA file cannot be right."""
        address = parse_address(url, what="GitLab's address")
        validate_transport(address.url, ca_file)
        self.url = address.url
        self.token = validated_token(token or address.password, what=f"The token for {address.url}")
        self._api = f"{address.url}/api/v4"
        self._http = HttpClient(
            address.url,
            SOURCE_ERRORS,
            ca_file=ca_file,
            timeouts=timeouts or Timeouts(),
            policy=retry or RetryPolicy(),
            observer=observer,
            # As an OAuth token, which personal, project and group access tokens may be sent as.
            headers={"Authorization": f"Bearer {self.token}"} if self.token else {},
        )
        self._threads = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="gitlab")
        self._slots = asyncio.Semaphore(MAX_CALLS)

    @classmethod
    def configured(
        cls,
        instance: GitLabInstance,
        *,
        token: SecretStr | None = None,
        retry: RetryPolicy | None = None,
        observer: RequestObserver | None = None,
    ) -> GitLabClient:
        """The server of an entry of `gitlab:` in the registry, with its own token or a different one."""
        timeouts = Timeouts(instance.connect_timeout_seconds, instance.read_timeout_seconds)
        return cls(
            instance.url,
            token=token or instance.token,
            ca_file=instance.ca_file,
            timeouts=timeouts,
            retry=retry,
            observer=observer,
        )

    async def call(self, kind: str, work: Callable[[gitlab.Gitlab], T], *, doing: str) -> T:
        """The result of `work`, called in a thread with a python-gitlab client; `kind` is for the observer, `doing` for
        messages."""
        return await self._http.retry(lambda: self._in_thread(kind, work), doing=doing)

    async def pages(
        self, kind: str, path: str, query: Mapping[str, Any], *, doing: str
    ) -> AsyncGenerator[list[Any], None]:
        """The rows of a listing, page by page. `http_list` of python-gitlab reads all pages in one call, so that a rate
        limit on the last one would repeat them all."""
        following: str | None = path
        parameters = dict(query)
        seen: set[str] = set()
        while following is not None:
            if following in seen:
                raise SourceCorrupt(f"{doing} failed: {self.url} links its pages in a circle.")
            seen.add(following)
            rows, following = await self.call(kind, partial(_page, following, parameters), doing=doing)
            parameters = {}  # the link contains them all
            yield rows

    @asynccontextmanager
    async def raw(self, kind: str, method: str, path: str) -> AsyncIterator[httpx.Response]:
        """The uncompressed answer to one request below /api/v4, without retries; for contents read in part."""
        headers = {"Accept-Encoding": "identity"}
        async with self._slots, self._http.stream(method, f"{self._api}{path}", kind=kind, headers=headers) as response:
            yield response

    async def retry(self, call: Callable[[], Coroutine[Any, Any, T]], *, doing: str) -> T:
        """The result of `call`, which uses `raw`, repeated as `call` does."""
        return await self._http.retry(call, doing=doing)

    def body(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The body of `raw` in pieces."""
        return self._http.body(response, MAX_ANSWER_BYTES)

    def git(self, path: str) -> UploadPack:
        """Git over HTTP for the project at `path`."""
        return UploadPack(
            f"{self.url}/{quote(path, safe='/')}.git",
            username="oauth2" if self.token else None,
            password=self.token,
            ca_file=self._http.ca_file,
            timeouts=self._http.timeouts,
            retry=self._http.policy,
            observer=self._http.observer,
        )

    async def ping(self) -> None:
        """Check that the server answers, with its cheapest request. Raises SourceDenied if it refuses the token."""
        try:
            await self.call(
                "api_version", lambda client: client.http_get("/version"), doing=f"Reading {self.url}/version"
            )
        except HttpRefused as refused:
            refusal = Refusal.of(refused)
            if refusal.status == HTTPStatus.UNAUTHORIZED and self.token is None:
                return  # only users may read the version
            if refusal.status == HTTPStatus.FORBIDDEN and refusal.error == "insufficient_scope":
                return
            if refusal.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise SourceDenied(
                    f"{self.url} refuses the token.{refusal.quoted}", remedy="Has it expired, or was it revoked?"
                ) from refused
            raise SourceError(
                f"{self.url} answered {refusal.status} to a request for its version.{refusal.quoted}",
                remedy="Check that the URL is that of a GitLab instance.",
            ) from refused

    async def close(self) -> None:
        await self._http.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def explain(self, refused: HttpRefused, *, path: str, kind: str = "project") -> SourceError:
        """The error for a refusal that has no meaning for the caller. `path` names a `kind`."""
        refusal, thing = Refusal.of(refused), f"{kind} {path}"
        if refusal.status == HTTPStatus.UNAUTHORIZED:
            return self._unauthorized(refusal, thing)
        if refusal.status == HTTPStatus.FORBIDDEN and refusal.error == "insufficient_scope":
            wanted = " or ".join(refusal.scope.split()) or "read_api"
            return SourceDenied(
                f"The token for {self.url} lacks a scope: reading {thing} needs {wanted}.",
                remedy="Make a token with the scopes read_api and read_repository.",
            )
        if refusal.status == HTTPStatus.FORBIDDEN:
            return SourceDenied(
                f"The token for {self.url} may not read the repository of {thing}.{refusal.quoted}",
                remedy="Its user needs at least the role Reporter, and the project's repository must be enabled.",
            )
        if refusal.status == HTTPStatus.NOT_FOUND:
            hidden = "hidden from this token" if self.token else "private: no token was given"
            return SourceGone(
                f"{kind.capitalize()} {path} was not found on {self.url}: it is missing, or {hidden}.{refusal.quoted}",
                remedy="Check the path, and that the token's user is a member. The index is kept unchanged.",
            )
        return SourceError(
            f"{self.url} answered {refusal.status} about {thing}.{refusal.quoted}",
            remedy="Check that the URL is that of a GitLab instance of version 15 or later.",
        )

    def _unauthorized(self, refusal: Refusal, thing: str) -> SourceDenied:
        if self.token is None:
            return SourceDenied(
                f"{self.url} requires a token for {thing}.{refusal.quoted}", remedy="Give one with the scope read_api."
            )
        why, remedy = "is not known there", "Check that it was copied in full and belongs to this instance."
        for sign, reason in (("expired", "has expired"), ("revoked", "was revoked")):
            if sign in refusal.text.lower():
                why, remedy = reason, "Make a new one with the scopes read_api and read_repository."
        return SourceDenied(f"The token for {self.url} {why} ({thing}).{refusal.quoted}", remedy=remedy)

    # Requests of python-gitlab ---------------------------------------------------------------------------------------

    async def _in_thread(self, kind: str, work: Callable[[gitlab.Gitlab], T]) -> T:
        loop = asyncio.get_running_loop()
        async with self._slots:
            adapter = _Adapter(loop, partial(self._exchange, kind))
            thread = loop.run_in_executor(self._threads, self._run, adapter, work)
            try:
                return await asyncio.shield(thread)
            except asyncio.CancelledError:
                adapter.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([thread])
                if thread.done() and not thread.cancelled():
                    thread.exception()  # retrieved, or asyncio would report it
                raise

    def _run(self, adapter: _Adapter, work: Callable[[gitlab.Gitlab], T]) -> T:
        """In a thread."""
        session = requests.Session()
        session.trust_env = False  # requests would read ~/.netrc if there is no token
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        client = gitlab.Gitlab(self.url, keep_base_url=True, session=session)
        try:
            return work(client)
        except GitlabParsingError as error:
            raise TransientFailure("the answer is no JSON", corrupt=True, overloaded=True) from error
        except gitlab.GitlabError as error:  # a status that is neither success nor refusal
            raise SourceError(
                f"{self.url} does not answer like GitLab (HTTP {error.response_code}).", remedy="Check the URL."
            ) from error

    async def _exchange(self, kind: str, request: requests.PreparedRequest) -> requests.Response:
        """Send a request of python-gitlab, and read the whole answer."""
        method, url = request.method or "GET", request.url or ""
        content = request.body.encode() if isinstance(request.body, str) else request.body
        if content is not None and not isinstance(content, bytes):
            raise TypeError("python-gitlab sends a file")
        headers = {name: str(value) for name, value in request.headers.items() if name.lower() in _FORWARDED}
        headers["Accept-Encoding"] = "gzip"
        async with self._http.stream(method, url, kind=kind, headers=headers, content=content) as response:
            answer = requests.Response()
            answer.status_code = response.status_code
            answer.headers = CaseInsensitiveDict(response.headers)
            answer.url, answer.request = str(response.url), request
            answer._content = await self._http.read(response, MAX_ANSWER_BYTES)
            answer.json = partial(_json, answer)  # type: ignore[method-assign]
            return answer


_FORWARDED = frozenset({"accept", "content-type"})


class _Adapter(BaseAdapter):
    """The transport of requests: hands each request to the event loop and waits for its answer."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        exchange: Callable[[requests.PreparedRequest], Coroutine[Any, Any, requests.Response]],
    ) -> None:
        super().__init__()
        self._loop = loop
        self._exchange = exchange
        self._lock = threading.Lock()
        self._pending: Future[requests.Response] | None = None
        self._cancelled = False

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        with self._lock:
            if self._cancelled:
                raise TransientFailure("cancelled")
            pending = self._pending = asyncio.run_coroutine_threadsafe(self._exchange(request), self._loop)
        return pending.result()

    def cancel(self) -> None:
        """End the request that is waited for, and refuse later ones."""
        with self._lock:
            self._cancelled = True
            if self._pending is not None:
                self._pending.cancel()

    def close(self) -> None:
        pass


def _json(response: requests.Response, **options: Any) -> Any:
    try:
        return parse_json(response.content)
    except ValueError as error:
        raise TransientFailure("the answer is no JSON", corrupt=True, overloaded=True) from error


def _page(path: str, query: dict[str, Any], client: gitlab.Gitlab) -> tuple[list[Any], str | None]:
    """In a thread: the rows, and the path of the next page below /api/v4."""
    response = client.http_request("get", path, query_data=query)
    rows = response.json()
    if not isinstance(rows, list):
        raise TransientFailure("the answer is no list", corrupt=True)
    following = response.links.get("next", {}).get("url")
    # Links contain the address that GitLab is configured with; behind a proxy that is not ours.
    return rows, following.partition("/api/v4")[2] if following else None


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a refusal's body says: `{"message": ...}`, or the OAuth form `{"error", "error_description", "scope"}`."""

    status: int
    error: str
    text: str
    scope: str

    @classmethod
    def of(cls, refused: HttpRefused) -> Refusal:
        try:
            body = parse_json(refused.body)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return cls(refused.status, "", "" if "<" in refused.text else refused.text, "")
        text = body.get("error_description") or body.get("message") or body.get("error")
        return cls(refused.status, _line(body.get("error")), _line(text), _line(body.get("scope")))

    @property
    def quoted(self) -> str:
        """A sentence for the end of a message."""
        return f" GitLab says: {self.text.rstrip('.')}." if self.text else ""

    def is_about(self, thing: str) -> bool:
        """Whether this is `404 <thing> Not Found`."""
        return self.status == HTTPStatus.NOT_FOUND and f"{thing} Not Found".lower() in self.text.lower()


def _line(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("error") or next(iter(value.values()), "")
    return printable(str(value)) if value else ""

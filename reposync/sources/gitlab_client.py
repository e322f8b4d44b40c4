"""A GitLab instance: its REST API through python-gitlab.

python-gitlab is synchronous, has no default time-out, sleeps as long as a 429 requests, and follows redirects to any
host. So it runs in threads, and its session has a transport adapter that sends by the HttpClient on the event loop,
with the time-outs, bounds, redirects and proxies of all our connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

import gitlab
import httpx
import requests
from pydantic import SecretStr
from requests.adapters import BaseAdapter

from reposync import __version__
from reposync.config.gitlab_instance import GitLabInstance
from reposync.errors import SourceCorrupt, SourceDenied, SourceError, SourceGone
from reposync.http_client import HttpClient, HttpRefused, TransientFailure
from reposync.outgoing import (
    RequestObserver,
    RetryPolicy,
    Timeouts,
    TooLarge,
    parse_json,
    printable,
    validate_transport,
)
from reposync.sources.port import Ancestry, RemoteGit
from reposync.sources.smart_http import SOURCE_ERRORS, UploadPack
from reposync.supervision import end, in_thread

T = TypeVar("T")

MAX_CALLS = 4
"""At a time."""
MAX_ANSWER_BYTES = 512 * 1024 * 1024  # the tree of 4 million files
PAGE_ROWS = 100  # GitLab's maximum


class GitLabClient:
    """Methods raise SourceUnavailable, SourceCorrupt, SourceError; and HttpRefused: see `explain`."""

    def __init__(
        self,
        server: GitLabInstance,
        *,
        retry: RetryPolicy | None = None,
        observer: RequestObserver | None = None,
    ) -> None:
        """Opens no connection. Raises ConfigError if the CA file or the proxy cannot be used."""
        validate_transport(server.url, server.ca_file)
        self.url = server.url
        self.token = server.token.get_secret_value() if server.token is not None else None
        self.http = HttpClient(
            server.url,
            SOURCE_ERRORS,
            ca_file=server.ca_file,
            timeouts=Timeouts(server.connect_timeout_seconds, server.read_timeout_seconds),
            policy=retry or RetryPolicy(),
            observer=observer,
        )
        # Not the threads of the event loop: a GitLab that does not answer would keep them from other work.
        self._threads = ThreadPoolExecutor(MAX_CALLS, "gitlab")

    async def call(
        self,
        kind: str,
        work: Callable[[gitlab.Gitlab], T],
        *,
        doing: str,
        policy: RetryPolicy | None = None,
        cut_bytes: int | None = None,
    ) -> T:
        """The result of `work`, which makes requests in a thread, and is repeated after a TransientFailure. `kind` is
        for the observer, `doing` for messages. A body of more than `cut_bytes` is not read to its end."""

        async def attempt() -> T:
            transport = _Transport(self.http, kind, cut_bytes)
            thread = asyncio.ensure_future(in_thread(partial(work, self._python_gitlab(transport)), self._threads))
            try:
                return await asyncio.shield(thread)
            except gitlab.GitlabError as error:
                raise TransientFailure("the answer is no JSON", corrupt=True, overloaded=True) from error
            finally:
                transport.is_open = False
                await end(*transport.exchanges, thread)  # a thread that waits for an answer ends with its exchange

        return await self.http.retry(attempt, doing=doing, policy=policy)

    async def pages(
        self, kind: str, path: str, query: Mapping[str, Any], *, doing: str, beyond_full: bool = False
    ) -> AsyncGenerator[Page, None]:
        """A listing, page by page. `http_list` of python-gitlab reads all pages in one call, so that a rate limit on
        the last one would repeat them all. `beyond_full`: a full page that does not say what follows is not taken for
        the last one."""
        following: str | None = path
        parameters = dict(query)
        seen: set[str] = set()
        number = 1
        while following is not None:
            if (place := f"{following} {parameters.get('page')}") in seen:
                raise SourceCorrupt(f"{doing} failed: {self.url} links its pages in a circle.")
            seen.add(place)
            page = await self.call(kind, partial(_page, following, parameters), doing=doing)
            yield page
            number += 1
            if (
                page.link is not None
                or (following_page := page.next_page(number, query if beyond_full else {})) is None
            ):
                following, parameters = page.link, {}  # the link contains them all
            else:
                # A proxy has removed the links. Numbered pages are the only ones that need none.
                following, parameters = path, {**query, "page": following_page}
                parameters.pop("pagination", None)

    async def ancestry(self, project: int | str, commit: str, tip: str | None, *, doing: str) -> Ancestry:
        """One call: as `Source.ancestry` says, by the merge base of the two."""

        def work(client: gitlab.Gitlab) -> Mapping[str, Any]:
            lazily = client.projects.get(project, lazy=True)
            if tip is None:
                return lazily.commits.get(commit, stats="false").attributes
            base = lazily.repository_merge_base([commit, tip])
            if not isinstance(base, dict):  # also a page of a proxy, which python-gitlab hands on
                raise TransientFailure("the answer is no commit", corrupt=True)
            return base

        try:
            base = await self.call("api_commit" if tip is None else "api_merge_base", work, doing=doing)
        except HttpRefused as refused:
            refusal = Refusal.of(refused)
            if (refused.status == 400 and commit in refusal.text) or refusal.is_about("Commit"):
                return Ancestry.UNKNOWN_COMMIT
            if refusal.is_about("Merge Base") or (refused.status == 400 and tip is not None and tip in refusal.text):
                # Nothing in common; or the tip went with a rewritten branch, and its index is about to follow.
                return Ancestry.NOT_CONTAINED
            raise
        # Compared by its prefix: GitLab would prefer a branch of that name to the commit.
        is_base = tip is not None and str(base.get("id") or "").startswith(commit)
        return Ancestry.CONTAINED if is_base else Ancestry.NOT_CONTAINED

    def git(self, path: str) -> UploadPack:
        """Git over HTTP for the project at `path`."""
        spec = RemoteGit(
            f"{self.url}/{quote(path, safe='/')}.git",
            username="oauth2" if self.token else None,
            password=SecretStr(self.token) if self.token else None,
            ca_file=self.http.ca_file,
            timeouts=self.http.timeouts,
            retry=self.http.policy,
        )
        return UploadPack(spec, observer=self.http.observer)

    async def ping(self) -> None:
        """Check that the server answers, with its cheapest request. Raises SourceDenied if it refuses the token."""
        doing = f"Reading {self.url}/version"
        try:
            await self.call("api_version", lambda client: client.http_get("/version"), doing=doing)
        except HttpRefused as refused:
            if refused.status not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise SourceError(
                    f"{self.url} answered {refused.status} to a request for its version.",
                    remedy="Check that the URL is that of a GitLab instance.",
                ) from refused
            # Only users may read the version.
            if self.token is not None and Refusal.of(refused).error != "insufficient_scope":
                raise self.explain(refused, path="version", kind="its") from refused

    async def close(self) -> None:
        self._threads.shutdown(wait=False)
        await self.http.close()

    def _python_gitlab(self, transport: _Transport) -> gitlab.Gitlab:
        session = requests.Session()
        session.trust_env = False  # it would read ~/.netrc
        session.headers["Accept-Encoding"] = "gzip"
        session.mount("http://", transport)
        session.mount("https://", transport)
        # As an OAuth token, which personal, project and group access tokens may be sent as.
        return gitlab.Gitlab(
            self.url,
            oauth_token=self.token,
            user_agent=f"reposync/{__version__}",
            keep_base_url=True,
            session=session,
        )

    def explain(self, refused: HttpRefused, *, path: str, kind: str = "project") -> SourceError:
        """The error for a refusal that has no meaning for the caller. `path` names a `kind`."""
        refusal, thing = Refusal.of(refused), f"{kind} {path}"
        renew = "Make a token with the scopes read_api and read_repository."
        if refusal.status == HTTPStatus.UNAUTHORIZED:
            what = "does not accept the token" if self.token else "requires a token"
            return SourceDenied(f"{self.url} {what} for {thing}.{refusal.quoted}", remedy=renew)
        if refusal.status == HTTPStatus.FORBIDDEN and refusal.error == "insufficient_scope":
            wanted = " or ".join(refusal.scope.split()) or "read_api"
            return SourceDenied(
                f"The token for {self.url} lacks a scope: reading {thing} needs {wanted}.", remedy=renew
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


class _Transport(BaseAdapter):
    """Sends the requests of one call of python-gitlab on the event loop, while its thread waits."""

    def __init__(self, http: HttpClient, kind: str, cut_bytes: int | None) -> None:
        super().__init__()
        self._http = http
        self._kind = kind
        self._cut_bytes = cut_bytes
        self._loop = asyncio.get_running_loop()
        self.exchanges: list[asyncio.Task[Any]] = []
        self.is_open = True

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        return asyncio.run_coroutine_threadsafe(self._exchange(request), self._loop).result()

    def close(self) -> None:
        """The HttpClient's owner closes it."""

    async def _exchange(self, request: requests.PreparedRequest) -> requests.Response:
        """The answer, status 2xx. What a proxy may have answered in place of GitLab is a TransientFailure."""
        exchange = asyncio.current_task()
        if exchange is None or not self.is_open:
            raise asyncio.CancelledError
        self.exchanges.append(exchange)
        method, url = request.method or "", request.url or ""
        headers = {name: str(value) for name, value in request.headers.items()}
        try:
            async with self._http.stream(method, url, kind=self._kind, headers=headers) as response:
                if response.url.path.endswith("/users/sign_in"):
                    raise TransientFailure(
                        "the server redirects to its login page; check that a proxy passes the header Authorization on",
                        corrupt=True,
                    )
                return _Answer(response, await self._body(response))
        except HttpRefused as refused:
            if refused.status >= 400:
                raise
            raise TransientFailure(f"a proxy or cache answered {refused.status}", corrupt=True) from refused

    async def _body(self, response: httpx.Response) -> bytes:
        pieces, size_bytes, most_bytes = list[bytes](), 0, self._cut_bytes
        if most_bytes is not None and declared_bytes(response.headers) > most_bytes:
            return b""
        try:
            async with aclosing(self._http.body(response, MAX_ANSWER_BYTES)) as body:
                async for piece in body:
                    pieces.append(piece)
                    size_bytes += len(piece)
                    if most_bytes is not None and size_bytes > most_bytes:
                        break
        except TooLarge as error:  # which a proxy may have made
            raise TransientFailure(f"the answer is too large: {error}", corrupt=True, overloaded=True) from error
        return b"".join(pieces)


class _Answer(requests.Response):
    def __init__(self, response: httpx.Response, body: bytes) -> None:
        super().__init__()
        self.status_code = response.status_code
        self.headers.update(response.headers)
        self.url = str(response.url)
        self._body = body

    @property
    def content(self) -> bytes:
        return self._body

    def json(self, **_: Any) -> Any:
        return parse_json(self._body)


def declared_bytes(headers: Mapping[str, str]) -> int:
    """The size of the body by its headers; 0 if they do not say."""
    return header_number(headers.get("Content-Length", "")) or 0 if "Content-Encoding" not in headers else 0


def header_number(value: str) -> int | None:
    # Python refuses to parse a number of thousands of digits.
    return int(value) if value.isdecimal() and len(value) < 20 else None


@dataclass(frozen=True, slots=True)
class Page:
    """`link`: the path of the next page below /api/v4. `numbered`: the header with the number of the next page, which
    is empty on the last one. `total`: of all rows, if GitLab counts them (up to 10,000)."""

    rows: list[Any]
    link: str | None
    numbered: str | None
    total: int | None

    def next_page(self, number: int, query: Mapping[str, Any]) -> int | None:
        """The number of the next page without a link to it. A full page that says nothing may be followed by more."""
        if self.numbered is not None:
            return header_number(self.numbered)
        return number if self.total is None and 0 < query.get("per_page", 0) <= len(self.rows) else None


def _page(path: str, query: dict[str, Any], client: gitlab.Gitlab) -> Page:
    response = client.http_request("get", path, query_data=query)
    try:
        rows = response.json()
    except ValueError as error:
        raise TransientFailure("the answer is no JSON", corrupt=True, overloaded=True) from error
    if not isinstance(rows, list):
        raise TransientFailure("the answer is no list", corrupt=True)
    following = response.links.get("next", {}).get("url")
    return Page(
        rows,
        # Links contain the address that GitLab is configured with; behind a proxy that is not ours.
        following.partition("/api/v4")[2] if following else None,
        response.headers.get("X-Next-Page"),
        header_number(response.headers.get("X-Total", "")),
    )


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

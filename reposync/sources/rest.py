"""GitLab's REST interface through python-gitlab, made fit for a daemon.

python-gitlab is synchronous, has no default time-out, is not documented as thread-safe, sleeps as long as a 429 asks,
and follows redirects. So: each call runs in a thread that has a client of its own (a lane); what is below it
(requests' adapter) refuses other hosts, sets time-outs, bounds answers and turns statuses into exceptions; repeats and
waiting happen on the event loop; a cancelled call is ended by shutting its sockets down.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import gitlab
import requests
from gitlab.exceptions import GitlabParsingError
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

from reposync import __version__
from reposync.errors import SourceError
from reposync.outgoing import Pace, TooLarge, authorities, certificate_reason, check_unfolded, parse_json, proxy_for
from reposync.sources.addresses import OtherServer, certificate_refused, redirected, same_home
from reposync.sources.retries import TransientFailure, patiently, retry_after_seconds
from reposync.sources.spec import Patience, SourceObserver, Timeouts

T = TypeVar("T")

LANES = 4
MAX_REDIRECTS = 5
MAX_ANSWER_BYTES = 512 * 1024 * 1024  # the tree of 4 million files
MAX_ERROR_BYTES = 64 * 1024
# An answer has come in whole after so many read time-outs.
ANSWER_FACTOR = 10
# After its sockets are shut a thread ends at once, unless it is still resolving a name or connecting.
CANCEL_GRACE_SECONDS = 1.0


class RestRefused(Exception):
    """GitLab answered with a status that repeating does not change."""

    def __init__(self, status: int, body: bytes, what: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.body = body
        self.what = what


class Rest:
    """Calls to one GitLab instance, at most LANES at a time."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        ca_file: Path | None,
        timeouts: Timeouts,
        patience: Patience,
        observer: SourceObserver | None,
    ) -> None:
        self._patience = patience
        self._observer = observer
        self._url = url
        self._token = token
        self._ca_file = ca_file
        self._timeouts = timeouts
        self._threads = ThreadPoolExecutor(LANES, thread_name_prefix="gitlab")
        self._free: list[_Lane] = []
        self._turn = asyncio.Semaphore(LANES)

    async def call(self, kind: str, work: Callable[[gitlab.Gitlab], T], *, doing: str) -> T:
        """What `work` returns, run in a thread with a client of its own; `kind` and `doing` name it to observers and
        people. Raises RestRefused, SourceUnavailable, SourceCorrupt, SourceError."""
        return await patiently(lambda: self._once(kind, work), self._patience, self._observer, doing=doing)

    async def close(self) -> None:
        for lane in self._free:
            lane.close()
        self._free.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _once(self, kind: str, work: Callable[[gitlab.Gitlab], T]) -> T:
        async with self._turn:
            lane = self._free.pop() if self._free else _Lane(self._url, self._token, self._ca_file, self._timeouts)
            future = asyncio.get_running_loop().run_in_executor(self._threads, lane.run, work)
            try:
                result = await asyncio.shield(future)
            except asyncio.CancelledError:
                lane.abort()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([future], timeout=CANCEL_GRACE_SECONDS)
                future.add_done_callback(lane.end)
                raise
            except Exception:
                self._free.append(lane)
                raise
            else:
                self._free.append(lane)
                return result
            finally:
                for _ in range(lane.take_sent()):
                    if self._observer is not None:
                        self._observer.request(kind)


class _Lane:
    """A python-gitlab client for one thread at a time."""

    def __init__(self, url: str, token: str | None, ca_file: Path | None, timeouts: Timeouts) -> None:
        self._transport = _Transport(url, timeouts)
        session = _Session(url)
        session.mount("https://", self._transport)
        session.mount("http://", self._transport)
        self._url = url
        # As an OAuth token python-gitlab sends it as "Authorization: Bearer", which personal, project and group
        # access tokens may be sent as too, and which requests takes off a redirect to another host.
        self._client = gitlab.Gitlab(
            url,
            oauth_token=token,
            ssl_verify=str(authorities(ca_file)),
            keep_base_url=True,
            user_agent=f"reposync/{__version__}",
            session=session,
        )

    def run(self, work: Callable[[gitlab.Gitlab], T]) -> T:
        """Runs in the thread. Raises TransientFailure, RestRefused, SourceError."""
        try:
            return work(self._client)
        except requests.exceptions.SSLError as error:
            if reason := certificate_reason(error):
                raise certificate_refused(self._url, reason) from error
            raise TransientFailure(f"the encrypted connection broke ({_cause(error)})") from error
        except requests.exceptions.ConnectTimeout as error:
            raise TransientFailure("no connection within the time-out") from error
        except requests.exceptions.Timeout as error:
            raise TransientFailure("no answer within the time-out", overloaded=True) from error
        except requests.exceptions.TooManyRedirects as error:
            raise SourceError(f"{self._url} redirects in a circle.", remedy="Check the URL of the instance.") from error
        except requests.exceptions.ChunkedEncodingError as error:
            raise TransientFailure("the answer was cut short", corrupt=True, overloaded=True) from error
        except requests.exceptions.ContentDecodingError as error:
            raise TransientFailure("the answer does not unpack", corrupt=True) from error
        except requests.exceptions.ConnectionError as error:
            if "Read timed out" in str(error):  # requests' name for a time-out in the middle of an answer
                raise TransientFailure("no answer within the time-out", overloaded=True) from error
            raise TransientFailure(f"the connection failed ({_cause(error)})") from error
        except GitlabParsingError as error:
            raise TransientFailure("the answer is no JSON", corrupt=True, overloaded=True) from error
        except gitlab.GitlabError as error:  # a status that is neither an answer nor a refusal
            raise SourceError(
                f"{self._url} answers as no GitLab does (HTTP {error.response_code}).", remedy="Check the URL."
            ) from error
        except requests.exceptions.RequestException as error:
            raise SourceError(f"{self._url} cannot be asked: {_cause(error)}.", remedy="Check the URL.") from error

    def take_sent(self) -> int:
        """How many requests went out since this was last asked."""
        sent, self._transport.sent = self._transport.sent, 0
        return sent

    def abort(self) -> None:
        """End whatever the thread reads or writes right now. The lane is of no use afterwards."""
        self._transport.sockets.shut()

    def end(self, aborted: asyncio.Future[Any]) -> None:
        """After an aborted call. What it still says is taken, or asyncio would report it as never heard."""
        if not aborted.cancelled():
            aborted.exception()
        self.close()

    def close(self) -> None:
        self._client.session.close()


class _Sockets:
    """The connections of one lane; once they are shut, new ones are so at once: a thread that was connecting when it
    was aborted would else wait for an answer that nobody reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._shut = False

    def add(self, connected: socket.socket) -> None:
        with self._lock:
            self._known.add(connected)
            if self._shut:
                _shut(connected)

    def shut(self) -> None:
        with self._lock:
            self._shut = True
            for connected in self._known:
                _shut(connected)


def _shut(connected: socket.socket) -> None:
    # The plain socket's method: the TLS layer's own would wait for the other side.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


class _Session(requests.Session):
    """Follows redirects (a moved project answers 301) on the same server only, and takes credentials from nowhere but
    its caller: requests would look into ~/.netrc where there is no token, and again after each redirect."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.max_redirects = MAX_REDIRECTS
        self.auth = _as_it_is
        # Proxies and authorities are those of all our clients; requests reads the environment in its own way.
        self.trust_env = False
        rest = url.partition("://")[2]
        schemes = ("https",) if url.startswith("https:") else ("http", "https")
        self.proxies = {scheme: proxy for scheme in schemes if (proxy := proxy_for(f"{scheme}://{rest}"))}

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        pass

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        target = super().get_redirect_target(resp)
        try:
            return redirected(resp.url, target) if target is not None else None
        except OtherServer:
            resp.close()
            raise


class _Transport(HTTPAdapter):
    """What every request and answer passes on its way."""

    def __init__(self, url: str, timeouts: Timeouts) -> None:
        self._home = url
        self._timeouts = timeouts
        self.sent = 0
        self.sockets = _Sockets()
        super().__init__(pool_connections=1, pool_maxsize=1)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = self._pool_classes()

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        manager.pool_classes_by_scheme = self._pool_classes()
        return manager

    def _pool_classes(self) -> dict[str, type[HTTPConnectionPool]]:
        return {
            "http": _pool_class(HTTPConnectionPool, HTTPConnection, self.sockets, self._timeouts),
            "https": _pool_class(HTTPSConnectionPool, HTTPSConnection, self.sockets, self._timeouts),
        }

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: dict[str, str] | None = None,
    ) -> requests.Response:
        url = request.url or ""
        if not same_home(self._home, url):
            raise SourceError(f"GitLab names an address on another server: {url}; nothing was sent there.")
        self.sent += 1
        limits = (self._timeouts.connect_seconds, self._timeouts.read_seconds)
        response = super().send(request, stream=stream, timeout=limits, verify=verify, cert=cert, proxies=proxies)
        if response.status_code >= 400:
            with response:
                _refuse(response)
        response.raw = _Bounded(response.raw, MAX_ANSWER_BYTES)
        response.json = partial(_json, response)  # type: ignore[method-assign]
        return response


def _json(response: requests.Response, **options: Any) -> Any:
    try:
        return parse_json(response.content)
    except ValueError as error:
        raise TransientFailure("the answer is no JSON", corrupt=True, overloaded=True) from error


class _Bounded:
    """An answer's body that ends with an error where it grows beyond all reason."""

    def __init__(self, raw: Any, max_bytes: int) -> None:
        self._raw = raw
        self._max_bytes = max_bytes

    def stream(self, amt: int, decode_content: bool | None = None) -> Iterator[bytes]:
        taken = 0
        for piece in self._raw.stream(amt, decode_content=decode_content):
            taken += len(piece)
            if taken > self._max_bytes:
                self._raw.close()
                raise SourceError(f"GitLab's answer is larger than {self._max_bytes:,} bytes.")
            try:
                check_unfolded(self._raw.tell(), taken)
            except TooLarge as error:
                self._raw.close()
                raise SourceError(f"GitLab sends more than is taken: {error}.") from error
            yield piece

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _refuse(response: requests.Response) -> None:
    body = b""
    with contextlib.suppress(requests.exceptions.RequestException):
        for piece in response.iter_content(8192):
            body += piece
            if len(body) > MAX_ERROR_BYTES:
                break
    status = response.status_code
    if status == 429:
        wait = retry_after_seconds(response.headers.get("Retry-After"), response.headers.get("RateLimit-Reset"))
        raise TransientFailure("too many requests", rate_limited=True, wait_seconds=wait)
    if status >= 500 or status == 408:
        wait = retry_after_seconds(response.headers.get("Retry-After"))
        raise TransientFailure(f"GitLab answered {status}", overloaded=True, wait_seconds=wait)
    raise RestRefused(status, body, response.url.partition("?")[0])


class _PacedBytes(io.RawIOBase):
    """What a socket brings, as long as it comes fast enough: its own time-out is between two of its bytes."""

    def __init__(self, raw: io.RawIOBase, pace: Pace) -> None:
        self._raw = raw
        self._pace = pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count: int | None = self._raw.readinto(buffer)
        self._pace.took(count or 0)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _response_class(timeouts: Timeouts) -> type[http.client.HTTPResponse]:
    class Paced(http.client.HTTPResponse):
        def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
            super().__init__(sock, *args, **kwargs)
            pace = Pace(timeouts.read_seconds, ANSWER_FACTOR * timeouts.read_seconds)
            self.fp = io.BufferedReader(_PacedBytes(self.fp.detach(), pace))

    return Paced


def _pool_class(
    pool: type[HTTPConnectionPool], connection: type[HTTPConnection], sockets: _Sockets, timeouts: Timeouts
) -> type[HTTPConnectionPool]:
    def connect(self: HTTPConnection) -> None:
        connection.connect(self)
        if isinstance(self.sock, socket.socket):
            sockets.add(self.sock)

    members = {"connect": connect, "response_class": _response_class(timeouts)}
    known = type(f"Known{connection.__name__}", (connection,), members)
    return type(f"Known{pool.__name__}", (pool,), {"ConnectionCls": known})


def _cause(error: BaseException) -> str:
    """The innermost reason: requests and urllib3 wrap it four deep, with addresses of objects in the text."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        inner = getattr(error, "reason", None) or error.__cause__ or error.__context__
        if not isinstance(inner, BaseException):
            inner = next((part for part in error.args if isinstance(part, BaseException)), None)
        if inner is None:
            break
        error = inner
    return getattr(error, "strerror", None) or str(error) or type(error).__name__

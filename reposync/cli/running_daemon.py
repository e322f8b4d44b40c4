"""The daemon that runs on the same state folder: `serve` records its address and a key in a file that it keeps locked,
and commands read it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from reposync import __version__, errors
from reposync.errors import RepoSyncError

if TYPE_CHECKING:
    from reposync.config.settings import Settings

TIMEOUT_SECONDS = 25.0
"""Longer than the time limit of a search in the daemon, which then answers with an error."""
SLOW_SECONDS = 86_400.0
"""The time limit of operations that read a whole repository."""

_RECORD = "serve.json"
_MAX_RECORD_BYTES = 4096
_MAX_RESPONSE_BYTES = 64 * 2**20
# Together less than an event loop may be blocked.
_LOCK_TRIES, _LOCK_INTERVAL_SECONDS = 4, 0.01
_NOT_SERVING = frozenset({"STARTING", "SHUTTING_DOWN", "UNAUTHENTICATED"})
"""Codes of answers that say nothing about the request; the last one: it does not know the key of this folder."""


@contextlib.contextmanager
def announced(settings: Settings, url: str, *, key: str, has_workers: bool) -> Iterator[None]:
    """Commands of this state folder find the daemon at `url`, until the block or the process ends. Not if a different
    daemon of the folder is found already, or if the folder cannot be written: each command then works by itself.
    `key`: by which the daemon knows commands of this folder."""
    with contextlib.ExitStack() as cleanup:
        with contextlib.suppress(OSError):
            settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(settings.state_dir / _RECORD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            cleanup.callback(os.close, descriptor)
            if _lock(descriptor):
                cleanup.callback(os.ftruncate, descriptor, 0)
                os.ftruncate(descriptor, 0)
                record: dict[str, Any] = {"url": url, "settings": _digest(settings), "version": __version__}
                record |= {"key": key, "has_workers": has_workers}
                os.write(descriptor, json.dumps(record).encode())
        yield


def _lock(descriptor: int) -> bool:
    """False if a different daemon has the lock. A command that reads the record has it for microseconds."""
    for _ in range(_LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_LOCK_INTERVAL_SECONDS)
    return False


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """`has_workers`: it executes runs."""

    url: str
    key: str
    has_workers: bool

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        user: str = "",
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> bytes | None:
        """The body of the response; None if the daemon is gone, not ready, or does not know the request, so that the
        caller does the work itself. `path`: quoted, with its query.

        Raises RepoSyncError with the daemon's own error: one that is overloaded must not get the same work from its
        commands."""
        import http.client

        from reposync.operations.paths import COMMAND_HEADER, USER_HEADER

        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=timeout_seconds)
        headers = {COMMAND_HEADER: self.key, USER_HEADER: quote(user), "Accept": "application/json, text/event-stream"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            answer = response.read(_MAX_RESPONSE_BYTES)
        except TimeoutError:
            late = f"The daemon at {self.url} did not answer in time."
            raise errors.SearchTimeout(late, remedy="Try again later.") from None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        if response.status >= 300:
            _raise_refusal(response.status, answer)
            return None
        return answer


def _raise_refusal(status: int, answer: bytes) -> None:
    """Raise the error of the daemon, unless that says nothing about what was requested: then it is one of HTTP."""
    error = error_in(status, answer)
    if error is None or error.code in _NOT_SERVING or (type(error) is RepoSyncError and status < 500):
        return
    raise error


def error_in(status: int, answer: bytes) -> RepoSyncError | None:
    """The error that a daemon answers; None if it is no answer of a daemon."""
    from reposync.next_steps import read_steps

    try:
        document = json.loads(answer)["error"]
        code, message = str(document["code"]), str(document["message"])
        steps, details = read_steps(document.get("next")), document.get("details") or {}
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, RepoSyncError) and (kind.code, kind.status) == (code, status)
    ]
    error = RepoSyncError.__new__(kinds[0] if kinds else RepoSyncError)
    RepoSyncError.__init__(error, message, next_steps=steps)
    error.code, error.details = code, details
    return error


def running_daemon(settings: Settings) -> RunningDaemon | None:
    """The daemon with these settings and of this version; None if there is none, or if it does not listen on the
    loopback address."""
    record = _record(settings)
    return None if record is None else _daemon_of(record)


def daemon_of_folder(state_dir: Path) -> RunningDaemon | None:
    """As `running_daemon`, whatever its settings are."""
    record = _record_of(state_dir)
    with contextlib.suppress(LookupError):
        return None if record is None else _daemon_of(record)
    return None


def _daemon_of(record: dict[str, Any]) -> RunningDaemon | None:
    if record.get("version") != __version__:
        return None
    url = str(record["url"])
    for every, loopback in (("http://0.0.0.0:", "http://127.0.0.1:"), ("http://[::]:", "http://[::1]:")):
        url = url.replace(every, loopback, 1)
    if not url.startswith(("http://127.0.0.1:", "http://[::1]:")):
        return None
    return RunningDaemon(url, str(record["key"]), bool(record["has_workers"]))


def is_served(settings: Settings) -> bool:
    """Whether a daemon with these settings runs on this state folder."""
    return _record(settings) is not None


def _record(settings: Settings) -> dict[str, Any] | None:
    """None if it is of other settings, or no process has its lock."""
    record = _record_of(settings.state_dir)
    return record if record is not None and record.get("settings") == _digest(settings) else None


def _record_of(state_dir: Path) -> dict[str, Any] | None:
    """None if no process has its lock: the key must not be sent to whoever has the port now."""
    try:
        with Path(state_dir / _RECORD).open("rb") as file:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            record: dict[str, Any] = json.loads(file.read(_MAX_RECORD_BYTES))
        return record if isinstance(record, dict) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _digest(settings: Settings) -> str:
    """The hash of what decides what a command works on. It is slow: the address of the database may hold a password."""
    import hashlib  # not for a completion

    named = f"{settings.database_url}\n{settings.qdrant_url}\n{settings.config_path}"
    return hashlib.scrypt(named.encode(), salt=str(settings.state_dir).encode(), n=2**10, r=8, p=1).hex()

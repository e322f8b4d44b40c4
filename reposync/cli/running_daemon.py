"""Search and read through the daemon that runs on the same state folder: it has the libraries and the model loaded,
which take a command a second. `serve` records its address in a file that it keeps locked, and commands read it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import http.client
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from reposync.errors import COMMAND_HEADER, EXIT_CODE_HEADER, FAILED, RepoSyncError

if TYPE_CHECKING:
    from reposync.config.settings import Settings

_RECORD = "serve.json"
_MAX_RECORD_BYTES = 4096
_MAX_RESPONSE_BYTES = 64 * 2**20
# Longer than the time limit of a search in the daemon, which then answers with an error.
_TIMEOUT_SECONDS = 25.0
_LOCK_TRIES, _LOCK_INTERVAL_SECONDS = 10, 0.01
_NOT_SERVING = frozenset({"STARTING", "SHUTTING_DOWN", "NOT_FOUND", "METHOD_NOT_ALLOWED"})


@contextlib.asynccontextmanager
async def announced(settings: Settings, url: str) -> AsyncIterator[None]:
    """Other processes of this state folder find the daemon at `url`, until the block or the process ends. Not if a
    different daemon of the folder is found already, or if the folder cannot be written: the record only saves time."""
    with contextlib.ExitStack() as cleanup:
        with contextlib.suppress(OSError):
            settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(settings.state_dir / _RECORD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            cleanup.callback(os.close, descriptor)
            if await _lock(descriptor):
                cleanup.callback(os.ftruncate, descriptor, 0)
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps({"url": url, "settings": _digest(settings)}).encode())
        yield


async def _lock(descriptor: int) -> bool:
    """False if a different daemon has the lock. A command that reads the record has it for microseconds."""
    for _ in range(_LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        await asyncio.sleep(_LOCK_INTERVAL_SECONDS)
    return False


def ask_daemon(
    settings: Settings,
    path: str,
    query: Mapping[str, Any],
    body: Mapping[str, Any] | None = None,
    *,
    wait_seconds: float = 0.0,
) -> dict[str, Any] | None:
    """The JSON object that answers `GET path?query`, or a POST of `body`; None if there is no daemon with the same
    settings, so that the caller does the work itself. `path`: quoted. `wait_seconds`: how much longer than a search it
    may take.

    Raises RepoSyncError with the daemon's own error: one that is overloaded must not get the same work from its
    commands."""
    url = daemon_url(settings)
    if url is None:
        return None
    address = urlsplit(url)
    connection = http.client.HTTPConnection(
        address.hostname or "", address.port, timeout=_TIMEOUT_SECONDS + wait_seconds
    )
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"} if body else {}
    headers[COMMAND_HEADER] = "1"
    if settings.api_tokens:
        headers["Authorization"] = f"Bearer {settings.api_tokens[0].secret.get_secret_value()}"
    given = urlencode({key: value for key, value in query.items() if value is not None}, doseq=True)
    try:
        connection.request("POST" if body else "GET", f"{path}?{given}", json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        found = json.loads(response.read(_MAX_RESPONSE_BYTES))
    except TimeoutError:
        late = f"The daemon at {url} did not answer in time. Try again later."
        raise _error({"code": "SEARCH_TIMEOUT", "message": late}, FAILED) from None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    if response.status != 200:
        _raise_refusal(response, found)
        return None
    return found if isinstance(found, dict) else None


def _raise_refusal(response: http.client.HTTPResponse, found: Any) -> None:
    """Raise the error of the daemon, unless that says nothing about the request: it is not ready, this process lacks
    its token, or it is of a different version."""
    error, exit_code = found.get("error") if isinstance(found, dict) else None, response.headers.get(EXIT_CODE_HEADER)
    is_about_request = response.status >= 500 or (exit_code is not None and response.status not in (401, 403))
    if isinstance(error, dict) and is_about_request and error.get("code") not in _NOT_SERVING:
        raise _error(error, FAILED if exit_code is None else int(exit_code))


def _error(found: Mapping[str, Any], exit_code: int) -> RepoSyncError:
    error = RepoSyncError(str(found.get("message")))
    error.code, error.exit_code, error.details = str(found.get("code")), exit_code, found.get("details") or {}
    return error


def daemon_url(settings: Settings) -> str | None:
    """Of the daemon. None if there is none with these settings, or if it does not listen on the loopback address."""
    url = _recorded_url(settings) or ""
    for every, loopback in (("http://0.0.0.0:", "http://127.0.0.1:"), ("http://[::]:", "http://[::1]:")):
        url = url.replace(every, loopback, 1)
    return url if url.startswith(("http://127.0.0.1:", "http://[::1]:")) else None


def is_served(settings: Settings) -> bool:
    """Whether a daemon with these settings runs on this state folder."""
    return _recorded_url(settings) is not None


def _recorded_url(settings: Settings) -> str | None:
    """None if the process is gone (the token must not be sent to whoever has the port now) or has other settings."""
    try:
        with Path(settings.state_dir / _RECORD).open("rb") as file:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            record = json.loads(file.read(_MAX_RECORD_BYTES))
        return str(record["url"]) if record["settings"] == _digest(settings) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _digest(settings: Settings) -> str:
    """Of what decides which index is searched. A slow hash: the address of the database may hold a password."""
    named = f"{settings.database_url}\n{settings.qdrant_url}\n{settings.config_path}"
    return hashlib.scrypt(named.encode(), salt=str(settings.state_dir).encode(), n=2**10, r=8, p=1).hex()

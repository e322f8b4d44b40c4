"""Finds and starts the embedded engine: one process for all processes of the machine that share a state folder.

Imports nothing heavy: a command starts the engine first, and imports the rest while the engine starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import Any

from reposync.clock import elapsed_seconds
from reposync.errors import IndexUnavailable, VectorIndexError
from reposync.vectors.engine.files import (
    EXIT_LOCKED,
    EXIT_UNREADABLE,
    LOG,
    RECORD,
    REVISION,
    is_narrower,
    limits,
    machine,
)

START_SECONDS = 60.0  # a folder of a million points is read in less
_POLL_SECONDS = 0.005
_ANSWER_SECONDS = 2.0
_PING_SECONDS = 10.0
# An engine renews its record every second, except during a request or while it tidies up. If the record of a different
# machine is older than this, that machine is gone.
_SILENT_SECONDS = 45.0
_DEFAULT_IDLE_SECONDS = 60.0
IDLE_VARIABLE = "REPOSYNC_ENGINE_IDLE_SECONDS"
# The variables that the engine's process gets: no tokens, no passwords.
_ENVIRONMENT = "PATH HOME LANG LC_ALL TMPDIR PYTHONPATH PYTHONHOME VIRTUAL_ENV LD_LIBRARY_PATH"


class EmbeddedEngine:
    """Finds the engine of `state_dir`, or starts it. Any number of objects and processes may do so at once: the
    engine's own lock lets one engine serve, and the others end."""

    def __init__(self, state_dir: Path, *, idle_seconds: float | None = None) -> None:
        """`idle_seconds`: an engine that this object starts ends after so long without a request (0: never)."""
        self.folder = state_dir.expanduser().absolute() / "index"
        self._idle_seconds = _idle_seconds() if idle_seconds is None else idle_seconds
        self._child: int | None = None
        self._child_answered = False
        self._renewed_elsewhere: tuple[int, float] | None = None
        self._starting = threading.Lock()

    def ensure_started(self) -> None:
        """Start the engine if none answers, and return at once. Raises IndexUnavailable if it cannot start."""
        self._step()

    async def address(self, *, timeout_seconds: float = START_SECONDS) -> str:
        """Path of the socket of an engine that answers, started if necessary. Raises IndexUnavailable."""
        deadline = time.monotonic() + timeout_seconds
        while (found := await asyncio.to_thread(self._step)) is None:
            if time.monotonic() > deadline:
                raise self._unavailable(f"did not answer within {timeout_seconds:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)
        return found

    async def ping(self) -> None:
        """Raises IndexUnavailable if an engine runs and does not answer. That none runs is fine: it is started when it
        is needed. This request does not keep it from ending."""
        record = await asyncio.to_thread(self._record)
        if record is None:
            return
        writer = None
        try:
            async with asyncio.timeout(_PING_SECONDS):
                reader, writer = await asyncio.open_unix_connection(record["address"])
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n")
                status = await reader.readline()
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except OSError as error:
            raise self._unavailable(f"does not answer: {error.strerror or type(error).__name__}") from error
        finally:
            if writer is not None:
                writer.close()
        if b" 200 " not in status:
            raise self._unavailable("answers a probe with an error")

    def _step(self) -> str | None:
        """One step towards the engine: its address, or None while it starts."""
        with self._starting:
            record = self._record()
            try:
                identity = _exchange(record["address"], "GET /engine") if record else None
            except TimeoutError:
                return None  # it is alive and busy
            except OSError:
                identity = None
            if identity is not None and self._is_fit(identity):
                self._child_answered |= identity["pid"] == self._child
                self._reap()
                return str(identity["address"])
            if identity is not None:
                self._replace(identity)
            elif record is not None and self._serves_elsewhere(record):
                return None
            if self._reap():
                self._child, self._child_answered = self._spawn(), False
            return None

    def _is_fit(self, identity: dict[str, Any]) -> bool:
        """Whether it has this version, and at least this process's `ulimit`."""
        return identity.get("revision") == REVISION and not is_narrower(identity.get("limits") or {}, limits())

    def _replace(self, identity: dict[str, Any]) -> None:
        """End an engine of an older version, or of narrower limits."""
        if identity.get("revision", 0) > REVISION:
            raise IndexUnavailable(
                f"The embedded engine in {self.folder} was started by a newer version of reposync.",
                remedy="Upgrade this one, or wait until the newer one is done.",
            )
        with contextlib.suppress(OSError):
            _exchange(identity["address"], "POST /engine/end")

    def _serves_elsewhere(self, record: dict[str, Any]) -> bool:
        """Whether an engine of a different machine may still have the folder. Its socket cannot be reached, and its
        lock may be invisible from here: a second engine would damage the index.

        Compares no clocks of two machines: it watches whether the record is renewed. Raises IndexUnavailable if it is.
        """
        if record.get("machine") in (None, machine()):
            return False
        try:
            with (self.folder / RECORD).open("rb") as file:  # on a network file system, opening asks the server
                renewed = os.fstat(file.fileno())
        except OSError:
            return False
        if record.get("host") == socket.gethostname() and renewed.st_mtime < _booted():
            return False  # of this machine, before it rebooted
        seen = self._renewed_elsewhere
        if seen is not None and seen[0] != renewed.st_mtime_ns:
            raise IndexUnavailable(
                f"The embedded engine in {self.folder} runs on another machine ({record.get('host')}). "
                "Machines cannot share it.",
                remedy="Set QDRANT_URL to a Qdrant server for all machines, or REPOSYNC_STATE_DIR to a folder of this "
                "machine only.",
            )
        if seen is None:
            seen = self._renewed_elsewhere = (renewed.st_mtime_ns, time.monotonic())
        if time.monotonic() - seen[1] < _SILENT_SECONDS:
            return True
        self._renewed_elsewhere = None
        return False

    def _record(self) -> dict[str, Any] | None:
        try:
            record = json.loads((self.folder / RECORD).read_bytes())
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) and str(record.get("address", "")).startswith("/") else None

    def _spawn(self) -> int:
        """In its own session: Ctrl-C ends the command, not the engine during a write."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            log = os.open(self.folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unavailable(f"cannot be started: {error.strerror or error}") from error
        engine = ["-P", "-m", "reposync.vectors.engine", str(self.folder), "--idle", str(self._idle_seconds)]
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ]
        # The thread that starts the engine may block signals; the engine must receive them.
        try:
            return os.posix_spawn(
                sys.executable,
                [sys.executable, *engine],
                _environment(),
                file_actions=files,
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGTERM],
            )
        except OSError as error:
            raise self._unavailable(f"cannot be started: {error.strerror or error}") from error
        finally:
            os.close(log)

    def _reap(self) -> bool:
        """True if no child of this object is starting. Raises IndexUnavailable if it failed to start."""
        if self._child is None:
            return True
        try:
            ended, status = os.waitpid(self._child, os.WNOHANG)
        except ChildProcessError:
            ended, status = self._child, 0
        if not ended:
            return False
        self._child = None
        code = os.waitstatus_to_exitcode(status)
        if code == EXIT_UNREADABLE:
            raise VectorIndexError(f"The embedded engine in {self.folder} cannot be started{self._last_log_line()}.")
        if code > 0 and code != EXIT_LOCKED and not self._child_answered:
            raise self._unavailable(f"ended with status {code} while starting{self._last_log_line()}")
        return True

    def _last_log_line(self) -> str:
        try:
            lines = (self.folder / LOG).read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return f": {lines[-1].removesuffix('.')}" if lines else ""

    def _unavailable(self, what: str) -> IndexUnavailable:
        return IndexUnavailable(f"The embedded engine in {self.folder} {what}.", remedy=f"See {self.folder / LOG}.")


def _exchange(address: str, request: str) -> dict[str, Any] | None:
    """One request over the socket; None if the answer is not valid. Raises OSError, TimeoutError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(address)
        connection.sendall(
            f"{request} HTTP/1.1\r\nHost: engine\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    try:
        result = json.loads(answer.partition(b"\r\n\r\n")[2])["result"]
    except (ValueError, KeyError, TypeError):
        return None
    return result if isinstance(result, dict) else None


def _booted() -> float:
    """When this machine was started, by its present clock."""
    return time.time() - elapsed_seconds()


def _idle_seconds() -> float:
    try:
        return max(0.0, float(os.environ.get(IDLE_VARIABLE, _DEFAULT_IDLE_SECONDS)))
    except ValueError:
        return _DEFAULT_IDLE_SECONDS


def _environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT.split()}
    package_root = str(Path(__file__).resolve().parents[2])
    if package_root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        # Run from a checkout: the engine must find the same package.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), package_root]))
    return environment

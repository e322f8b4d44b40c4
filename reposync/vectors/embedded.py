"""Finds and starts the embedded engine: one process for all processes of the machine that share a state folder.

In the folder `index` of the state folder, the engine holds `engine.lock` as long as it lives, listens on `engine.sock`,
and `engine.json` says where. Any number of processes may start engines at once: one gets the lock, the others end.

Imports nothing heavy: a command starts the engine first, and imports the rest while the engine starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
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

LOCK = "engine.lock"
RECORD = "engine.json"
LOG = "engine.log"
SOCKET = "engine.sock"

# Increased when this package needs a feature that an older engine does not have. 2: a payload index with parameters is
# added to a collection that is there already.
REVISION = 2

EXIT_LOCKED = 3
"""Exit status of an engine whose folder has an engine already."""
EXIT_UNREADABLE = 4
"""Exit status of an engine that cannot read its folder; the last line of its log says what to do."""

START_SECONDS = 60.0  # a folder of a million points is read in less
_POLL_SECONDS = 0.005
_ANSWER_SECONDS = 2.0
_PING_SECONDS = 10.0
# An engine renews its record every second, except during a request or while it tidies up. If the record of a different
# machine is older than this, that machine is gone.
_SILENT_SECONDS = 45.0
_ELSEWHERE_POLL_SECONDS = 0.2
_DEFAULT_IDLE_SECONDS = 60.0
IDLE_VARIABLE = "REPOSYNC_ENGINE_IDLE_SECONDS"
# The variables that the engine's process gets: no tokens, no passwords.
_ENVIRONMENT = "PATH HOME LANG LC_ALL TMPDIR PYTHONPATH PYTHONHOME VIRTUAL_ENV LD_LIBRARY_PATH"

LEAST_FREE_BYTES = 128 * 1024
"""With less the engine can neither start nor store a point: it writes its record, and a log of 32 kB at a time."""


class EmbeddedEngine:
    """The engine of `state_dir`. Any number of objects and processes may be used at once."""

    def __init__(self, state_dir: Path, *, idle_seconds: float | None = None) -> None:
        """`idle_seconds`: an engine that this object starts ends after so long without a request (0: never)."""
        self.folder = state_dir.expanduser().absolute() / "index"
        self._idle_seconds = _idle_seconds() if idle_seconds is None else idle_seconds
        self._child: int | None = None
        self._child_answered = False
        self._starting = threading.Lock()

    async def address(self, *, timeout_seconds: float = START_SECONDS) -> str:
        """Path of the socket of an engine that answers, started if necessary. Raises IndexUnavailable."""
        deadline = time.monotonic() + timeout_seconds
        while (found := await asyncio.to_thread(self.ensure_started)) is None:
            if time.monotonic() > deadline:
                raise self._unavailable(f"did not answer within {timeout_seconds:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)
        return found

    def end(self, *, timeout_seconds: float = 30.0) -> None:
        """End the engine, if one runs, and wait until it has."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            record = read_record(self.folder)
            try:
                answer = exchange(record["address"], "POST /engine/end") if record is not None else None
            except TimeoutError:
                continue
            except (OSError, ValueError):
                answer = None
            with contextlib.suppress(VectorIndexError):
                if answer is None and self._reap():
                    return
            time.sleep(_POLL_SECONDS)

    async def ping(self) -> None:
        """Raises IndexUnavailable if an engine runs and does not answer, and VectorIndexError if the disk is full. That
        none runs is fine: it is started when it is needed. This request does not keep it from ending."""
        record = await asyncio.to_thread(read_record, self.folder)
        await asyncio.to_thread(self._require_space)
        try:
            if record is not None:
                await asyncio.to_thread(exchange, record["address"], "GET /readyz", _PING_SECONDS)
        except (FileNotFoundError, ConnectionRefusedError, ValueError):
            return  # ValueError: an older engine answers in a different form
        except OSError as error:
            raise self._unavailable(f"does not answer: {error or type(error).__name__}") from error

    def ensure_started(self) -> str | None:
        """Start the engine if none answers: its address, or None while it starts. Raises IndexUnavailable if it cannot
        start."""
        with self._starting:
            record = read_record(self.folder)
            try:
                identity = exchange(record["address"], "GET /engine") if record else None
            except TimeoutError:
                return None  # it is alive and busy
            except (OSError, ValueError):
                identity = None
            if identity is not None and identity["revision"] > REVISION:
                raise IndexUnavailable(
                    f"The embedded engine in {self.folder} was started by a newer version of reposync.",
                    remedy="Upgrade this one, or wait until the newer one is done.",
                )
            if identity is not None and identity["revision"] == REVISION:
                self._child_answered |= identity["pid"] == self._child
                self._reap()
                return str(identity["address"])
            if identity is not None:
                with contextlib.suppress(OSError, ValueError):
                    exchange(identity["address"], "POST /engine/end")
            elif record is not None:
                self._refuse_other_machine(record)
            if self._reap():
                self._child, self._child_answered = self._spawn(), False
            return None

    def _refuse_other_machine(self, record: dict[str, Any]) -> None:
        """Raise IndexUnavailable if an engine of a different machine has the folder. Its socket cannot be reached, and
        its lock may be invisible from here: a second engine would damage the index.

        Compares no clocks of two machines: it watches for _SILENT_SECONDS whether the record is renewed.
        """
        if record.get("machine") in (None, machine()):
            return
        seen, deadline = self._renewed(), time.monotonic() + _SILENT_SECONDS
        if record.get("host") == socket.gethostname() and seen / 1e9 < time.time() - elapsed_seconds():
            return  # of this machine, before it rebooted
        while time.monotonic() < deadline:
            if self._renewed() != seen:
                if (read_record(self.folder) or {}).get("machine") != record["machine"]:
                    return
                raise IndexUnavailable(
                    f"The embedded engine in {self.folder} runs on another machine ({record.get('host')}). "
                    "Machines cannot share it.",
                    remedy="Set REPOSYNC_QDRANT_URL to a Qdrant server for all machines, or REPOSYNC_STATE_DIR to a "
                    "folder of this machine only.",
                )
            time.sleep(_ELSEWHERE_POLL_SECONDS)

    def _renewed(self) -> int:
        """When the record was renewed, in ns; 0 if it is gone."""
        try:
            with (self.folder / RECORD).open("rb") as file:  # on a network file system, opening asks the server
                return os.fstat(file.fileno()).st_mtime_ns
        except OSError:
            return 0

    def _spawn(self) -> int:
        """In its own session: Ctrl-C ends the command, not the engine during a write. Raises VectorIndexError if the
        disk is full: the engine could not start, nor say why in its log."""
        self._require_space()
        engine = ["-P", "-m", "reposync.vectors.engine", str(self.folder), "--idle", str(self._idle_seconds)]
        log = str(self.folder / LOG)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.posix_spawn(
                sys.executable,
                [sys.executable, *engine],
                _environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                # The thread that starts the engine may block signals; the engine must receive them.
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGTERM],
            )
        except OSError as error:
            raise self._unavailable(f"cannot be started: {error.strerror or error}") from error

    def _require_space(self) -> None:
        """Raises VectorIndexError."""
        with contextlib.suppress(OSError):  # nothing was stored yet, or starting it says what is wrong
            if shutil.disk_usage(self.folder).free < LEAST_FREE_BYTES:
                raise VectorIndexError(
                    f"The embedded engine in {self.folder} has no space left: the disk is full.",
                    remedy="Make room, then sync again.",
                )

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


def read_record(folder: Path) -> dict[str, Any] | None:
    """What the engine of a folder wrote about itself; None if there is none on a Unix socket."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and str(record.get("address", "")).startswith("/") else None


def exchange(address: str, request: str, timeout_seconds: float = _ANSWER_SECONDS) -> Any:
    """The result of one request over the socket. Raises OSError, TimeoutError, ValueError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_seconds)
        connection.connect(address)
        head = "HTTP/1.1\r\nHost: engine\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        connection.sendall(f"{request} {head}".encode())
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    document = json.loads(answer.partition(b"\r\n\r\n")[2])
    if not isinstance(document, dict) or "result" not in document:
        raise ValueError("an answer without a result")
    return document["result"]


def machine() -> str:
    """Identifies the running kernel: processes under the same one reach the same Unix sockets and file locks, as
    containers of one machine do. If the kernel does not tell, the host name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


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

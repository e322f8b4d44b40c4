"""Daemons as pods: real processes that are started, killed, frozen and probed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]

from benchmarks.storm.proofs import Span

READY_SECONDS = 90.0
_ADDRESS = re.compile(r'"event":"listening".*"url":"(http://[^"]+)"')
_LAG = re.compile(r'^reposync_event_loop_lag_distribution_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Life:
    """One process of a pod. `name` is in its credentials, so that every request tells whose it is; `ended_by`: what the
    storm did to it, None as long as nothing that ends it."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    started: float
    ended_by: str | None = None
    frozen: bool = False
    address: str = ""

    @property
    def returncode(self) -> int | None:
        return self.process.poll()


class Pod:
    """One place in the deployment: processes follow one another in it, with one state folder.

    `impaired` is when it could not queue ticks; `struck` what happened to which process and when; `lag` counts by upper
    bound (seconds) how late its event loop ran its timers, while it was not frozen.
    """

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str], command: Sequence[str]) -> None:
        self.name = name
        self.busy = asyncio.Lock()
        self.lives: list[Life] = []
        self.impaired: list[Span] = []
        self.kills: list[tuple[str, float]] = []
        self.freezes: list[tuple[str, float]] = []
        self.thaws: list[tuple[str, float]] = []
        self.complaints: list[str] = []
        self.stop_seconds: list[float] = []
        self.lag: Counter[float] = Counter()
        self._folder = folder
        self._environment = environment
        self._command = command
        self._lag_before: dict[float, float] | None = None

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def is_up(self) -> bool:
        return bool(self.lives) and self.life.ended_by is None and not self.life.frozen

    def start(self) -> Life:
        name = f"{self.name}.{len(self.lives) + 1}"
        log = self._folder / f"{name}.log"
        own = {
            "REPOSYNC_STATE_DIR": str(self._folder / self.name),
            "POD_NAME": self.name,
            "GITLAB_TOKEN": token_of(name),
            "REPOSYNC_QDRANT_API_KEY": token_of(name),
            "REPOSYNC_LOG_FORMAT": "json",
        }
        with log.open("wb") as stream:
            process = subprocess.Popen(
                self._command,
                env={**inherited(), **self._environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                cwd=ROOT,
                start_new_session=True,
            )
        self.lives.append(Life(name, process, log, time.time()))
        self._lag_before = None
        return self.life

    async def ready(self) -> None:
        """Until it says so, and its registry is in force. Raises RuntimeError if it ends, or takes too long."""
        life = self.life
        deadline = time.monotonic() + READY_SECONDS
        async with httpx.AsyncClient(timeout=5) as client:
            while time.monotonic() < deadline:
                if life.returncode is not None:
                    break
                if not life.address and (found := _ADDRESS.search(life.log.read_text(errors="replace"))):
                    life.address = found[1]
                if life.address:
                    with contextlib.suppress(httpx.HTTPError):
                        answer = await client.get(f"{life.address}/readyz")
                        if answer.status_code == 200 and "registry" in answer.json()["components"]:
                            return
                await asyncio.sleep(0.05)
        raise RuntimeError(f"{life.name} is not ready:\n{life.log.read_text(errors='replace')[-4000:]}")

    def content_workers(self) -> list[psutil.Process]:
        """The processes that prepare files for it now."""
        found = []
        with contextlib.suppress(psutil.Error):
            for each in psutil.Process(self.life.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "reposync.sync.content_worker" in each.cmdline():
                        found.append(each)
        return found

    def kill(self) -> None:
        self.life.ended_by = "kill"
        self.life.process.kill()
        self.life.process.wait()
        self.kills.append((self.life.name, time.time()))

    async def terminate(self, patience_seconds: float) -> None:
        """SIGTERM, and what it promises: exit code 0 in time."""
        began = time.monotonic()
        life = self.life
        life.ended_by = "term"
        life.process.terminate()
        while life.returncode is None and time.monotonic() - began < patience_seconds:
            await asyncio.sleep(0.02)
        if life.returncode is None:
            self.complaints.append(f"{life.name} had not ended {patience_seconds:.0f} s after SIGTERM")
            life.process.kill()
            life.process.wait()
            return
        self.stop_seconds.append(time.monotonic() - began)
        if life.returncode != 0:
            self.complaints.append(f"{life.name} ended with exit code {life.returncode} after SIGTERM")

    def freeze(self) -> None:
        self.life.frozen = True
        self.freezes.append((self.life.name, time.time()))
        self.life.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.life.process.send_signal(signal.SIGCONT)
        self.life.frozen = False
        self.thaws.append((self.life.name, time.time()))
        self._lag_before = None

    def impair(self, start: float, recovery_seconds: float) -> None:
        """From `start` until so long after now it may fail to queue."""
        self.impaired.append(Span(start, time.time() + recovery_seconds))

    def notice_deaths(self) -> None:
        """A process that ended though nobody ended it."""
        if self.lives and self.life.ended_by is None and self.life.returncode is not None:
            self.life.ended_by = "itself"
            output = self.life.log.read_text(errors="replace")[-2000:]
            self.complaints.append(f"{self.life.name} ended by itself with exit code {self.life.returncode}:\n{output}")

    def end(self) -> None:
        """Whatever state it is in."""
        for life in self.lives:
            if life.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(life.process.pid, signal.SIGKILL)
                life.process.wait()

    def process_of(self, worker: str) -> str | None:
        """The life behind a worker's name (pod:pid:token) in a row."""
        pod, _, pid = worker.rpartition(":")[0].rpartition(":")
        return next((each.name for each in self.lives if pod == self.name and str(each.process.pid) == pid), None)

    async def scrape(self, client: httpx.AsyncClient) -> None:
        """Add what the event loop's lag did since the scrape before; a freeze in between is not its fault."""
        life = self.life
        if not self.is_up or not life.address:
            return
        before, thaws = self._lag_before, len(self.thaws)
        try:
            text = (await client.get(f"{life.address}/metrics")).text
        except httpx.HTTPError:
            return
        now = {float(bound): float(count) for bound, count in _LAG.findall(text)}
        if life is not self.life or not self.is_up or thaws != len(self.thaws) or not now:
            return
        self._lag_before = now
        if before is not None:
            below = 0.0
            for bound in sorted(now):
                count = now[bound] - before.get(bound, 0.0)
                self.lag[bound] += int(count - below)
                below = count


@contextlib.contextmanager
def running(folder: Path, environment: Mapping[str, str], *options: str) -> Iterator[Pod]:
    """One daemon, which is killed at the end. `options`: of `reposync serve`."""
    pod = Pod("pod", folder, environment, (sys.executable, "-m", "reposync", "serve", "--port", "0", *options))
    pod.start()
    try:
        yield pod
    finally:
        pod.end()


@dataclass
class LogReport:
    """What the daemons said: `tracebacks` are defects whatever their level."""

    tracebacks: list[str] = field(default_factory=list)
    events: Counter[tuple[str, str]] = field(default_factory=Counter)
    not_json: list[str] = field(default_factory=list)


def read_logs(pods: Sequence[Pod]) -> LogReport:
    report = LogReport()
    for pod in pods:
        for life in pod.lives:
            for line in life.log.read_text(errors="replace").splitlines():
                if "Traceback" in line:
                    report.tracebacks.append(f"{life.name}: {line[:1500]}")
                try:
                    said: dict[str, Any] = json.loads(line)
                    report.events[(said["level"], _general(said["event"]))] += 1
                except (ValueError, KeyError, TypeError):
                    if not _ADDRESS.search(line):
                        report.not_json.append(f"{life.name}: {line[:300]}")
    return report


def token_of(name: str) -> str:
    return f"glpat-storm-of-{name}"


def name_of_token(token: str) -> str:
    return token.removeprefix("glpat-storm-of-")


_INHERITED = ("PATH", "LANG", "TMPDIR", "HOME", "KF_RULE_CACHE_DIR")
"""The last one: compiled rules for secrets, which else each pod compiles in its state folder."""


def inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}


def _general(event: str) -> str:
    """The sentence without what differs from case to case."""
    return re.sub(r"repo-\d+|[0-9a-f-]{12,}|'[^']*'|\d+(\.\d+)?", "…", event)[:100]

"""The baseline's pods: started beside the daemons, struck with them, and started again where they end by themselves, as
an orchestrator does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.storm.pods import ROOT
from benchmarks.storm.proofs import Executed, Span


class Rival:
    """`ended_by_itself` counts; `impaired`: when nobody could ask it to do its duty."""

    def __init__(
        self, name: str, redis_url: str, folder: Path, *, late_seconds: float, period_seconds: int, repositories: int
    ) -> None:
        self.late_seconds = late_seconds
        self.ended_by_itself = 0
        self.impaired: list[Span] = []
        self.errors = folder / f"{name}.rival.log"
        self._journal = folder / f"{name}.journal"
        self._command = [
            *(sys.executable, "-m", "benchmarks.storm.baseline"),
            *(redis_url, name, str(late_seconds), str(period_seconds), str(repositories), str(self._journal)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is None:
            with self.errors.open("ab") as errors:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd=ROOT
                )

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.send_signal(signal.SIGCONT)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def keep_alive(self) -> None:
        """Start it again if it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            self.ended_by_itself += 1
            self._process = None
            self.start()

    def executed(self) -> list[Executed]:
        found = []
        if self._journal.exists():
            for line in self._journal.read_text().splitlines():
                repository, tick, at = line.split()
                found.append(Executed(repository, float(tick), float(at)))
        return found

    def end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

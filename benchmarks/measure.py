"""Wall time, CPU time and peak memory of a command and everything it starts."""

from __future__ import annotations

import os
import platform
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Usage:
    """`cpu_seconds`: user and system, of the process and the descendants that it waited for. `peak_megabytes`: highest
    proportional set size (resident pages, those that processes share counted once in all) of the whole tree, sampled
    ten times a second."""

    wall_seconds: float
    cpu_seconds: float
    peak_megabytes: float
    parts_megabytes: list[float]
    returncode: int
    stdout: str

    def __str__(self) -> str:
        parts = "+".join(f"{each:.0f}" for each in self.parts_megabytes)
        return f"{self.wall_seconds:7.2f} s wall {self.cpu_seconds:7.2f} s CPU {self.peak_megabytes:7.0f} MB ({parts})"


def measure(command: Sequence[str], environment: Mapping[str, str] | None = None, cwd: Path | None = None) -> Usage:
    """Run `command` to its end."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env={**os.environ, **(environment or {})}, cwd=cwd, stdout=subprocess.PIPE, text=True
    )
    peak, parts = 0, list[int]()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak, parts
        root = psutil.Process(process.pid)
        while not done.is_set():
            try:
                tree = [root, *root.children(recursive=True)]
                now = [each.memory_full_info().pss for each in tree if each.is_running()]
                peak, parts = max((peak, parts), (sum(now), now))
            except psutil.Error:
                pass
            done.wait(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    done.set()
    watcher.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    # wait4 gives the child and those of its descendants that it has waited for.
    return Usage(
        wall,
        usage.ru_utime + usage.ru_stime,
        peak / 1e6,
        [each / 1e6 for each in parts],
        process.returncode,
        output,
    )


def machine() -> str:
    """One line about where the figures were measured, and of which commit."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    memory = psutil.virtual_memory().total / 2**30
    where = f"{psutil.cpu_count()} cores ({model}), {memory:.0f} GiB, Python {platform.python_version()}"
    return f"{where}, commit {commit()}"


def commit() -> str:
    """The commit of this checkout; with a plus sign if it has changes, a question mark if it is no git repository."""
    described = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"],
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "?"


def spread(milliseconds: list[float]) -> str:
    p50, p95, p99 = (percentile(milliseconds, part) for part in (0.5, 0.95, 0.99))
    return f"p50 {p50:.1f} ms, p95 {p95:.1f} ms, p99 {p99:.1f} ms, slowest {max(milliseconds):.1f} ms"


def percentile(milliseconds: list[float], part: float) -> float:
    ordered = sorted(milliseconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]

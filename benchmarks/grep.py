"""Exact search in an index of 10,000 files: how long an answer takes, and how many files are read for it.

    python -m benchmarks.grep [--files 10000] [--rounds 7]

The program is started, as in a daemon; the embedded engine serves the index. The limit is the highest one, so that all
matches are found.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.commands import corpus_environment, whole
from benchmarks.measure import machine
from reposync.app.opening import open_application
from reposync.config.settings import Settings
from reposync.search.grep import MAX_LIMIT, grep

PATTERNS = {
    "an identifier": r"\bparse_args\b",
    "a phrase": r"raise ValueError\(msg\)",
    "common words": r"def (?:get|set)_\w+\(self, name\):",
    "a part of a name": "parse_arg",
    "a regex without words": r"[0-9]{7}[a-f]{3}",
    "a rare identifier": r"\bno_such_name\b",
    "in no file": "zzqqzz",
    "hostile": "(a+)+$",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        environment = corpus_environment(Path(name), options.files)
        for command in ("apply", "sync"):
            whole([command], environment)
        print(f"{machine()}; {options.files:,} files; median of {options.rounds}, slowest\n")
        asyncio.run(measure(environment, options.rounds))


async def measure(environment: dict[str, str], rounds: int) -> None:
    async with open_application(Settings.from_environment(environment)) as app:
        await grep(app, "warm")
        for name, pattern in PATTERNS.items():
            took = []
            for _ in range(rounds):
                started = time.perf_counter()
                found = await grep(app, pattern, limit=MAX_LIMIT, max_seconds=60)
                took.append(time.perf_counter() - started)
            lines = sum(len(each.matches) for each in found.items)
            print(
                f"{name:24} {pattern:36} {statistics.median(took) * 1000:6,.0f} ms {max(took) * 1000:6,.0f} ms"
                f" {lines:6,} lines {found.files_searched:6,} files read"
            )


if __name__ == "__main__":
    main()

"""Three daemons on one PostgreSQL, Redis, Qdrant and GitLab in a storm, and proofs of what they promise.

    python -m benchmarks.storm [--minutes 3] [--seed 1] [--repositories 50] [--no-baseline] ...

Commits keep coming while daemons are killed, stopped and frozen, connections are cut and stalled, Redis comes back
empty and PostgreSQL crashes. Then, in the calm, everything has to be as if nothing had happened. Exits 1 where not.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import machine
from benchmarks.storm.deployment import Options
from benchmarks.storm.report import judge, notes, table, violations
from benchmarks.storm.storm import run
from tests.fixtures.folders import quick_folder
from tests.fixtures.qdrant_targets import CLUSTER, ENGINE, SERVER


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=(ENGINE, SERVER, CLUSTER), default=ENGINE, help="Qdrant")
    parser.add_argument("--minutes", type=float, default=Options.minutes)
    parser.add_argument("--seed", type=int, default=Options.seed)
    parser.add_argument("--pods", type=int, default=Options.pods)
    parser.add_argument("--repositories", type=int, default=Options.repositories)
    parser.add_argument("--period", type=int, default=Options.period_seconds, help="seconds from tick to tick")
    parser.add_argument("--lease", type=float, default=Options.lease_seconds, help="`daemon.lease_seconds`")
    parser.add_argument("--baseline", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--keep", type=Path, help="leave logs and state in this folder")
    parser.add_argument("--quiet", action="store_true", help="do not print each blow")
    options = parser.parse_args()
    began = time.monotonic()

    def log(what: str) -> None:
        if not options.quiet:
            print(f"{time.monotonic() - began:7.1f} {what}", file=sys.stderr, flush=True)

    chosen = Options(
        target=options.target,
        pods=options.pods,
        repositories=options.repositories,
        period_seconds=options.period,
        minutes=options.minutes,
        lease_seconds=options.lease,
        seed=options.seed,
        baseline=options.baseline,
        log=log,
    )
    print(f"{machine()}; load {os.getloadavg()[0]:.1f} before")
    print(
        f"{chosen.pods} daemons, {chosen.repositories} repositories, a tick each {chosen.period_seconds} s, "
        f"{chosen.minutes:g} minutes, lease {chosen.lease_seconds:g} s, seed {chosen.seed}\n",
        flush=True,
    )
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        return _judged(chosen, Path(tempfile.mkdtemp(dir=options.keep)))
    with quick_folder() as folder:
        return _judged(chosen, folder)


def _judged(options: Options, folder: Path) -> int:
    verdict = judge(asyncio.run(run(options, folder)))
    print(table(verdict))
    print(f"\n{notes(verdict)}\n\n{violations(verdict)}")
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())

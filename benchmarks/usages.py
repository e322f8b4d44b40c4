"""Calls of 60 names in seven public repositories of six languages, against those that were read by hand.

    python -m benchmarks.usages --repositories FOLDER [--data benchmarks/usages.tsv] [--misses]

FOLDER has a clone of each repository under its name in the data, which pins the commits; one that is not there is left
out. All are indexed together. Recall: of the lines that call a name. Precision of a mark: of the lines with it, those
that call the definition, with this mark. Built files (`dist/`) are left out of both.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.commands import whole
from benchmarks.measure import machine
from reposync.app.opening import open_application
from reposync.config.settings import Settings
from reposync.content.languages import language_of
from reposync.search.call_lines import family_of
from reposync.search.usages import usages

DATA = Path(__file__).with_suffix(".tsv")
MARKS = {"i": "imported", "s": "same file", "n": "name only"}

Site = tuple[str, str, int]
"""Repository, path and line."""


@dataclass
class Truth:
    """`commits`: by repository. `sites`: by name, the mark of each."""

    commits: dict[str, str] = field(default_factory=dict)
    sites: dict[str, dict[Site, str]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def read(cls, path: Path, folder: Path) -> Truth:
        truth = cls()
        for line in path.read_text().splitlines():
            fields = line.split("\t")
            if line.startswith("@"):
                if (folder / fields[0][1:]).is_dir():
                    truth.commits[fields[0][1:]] = fields[2]
                else:
                    print(f"left out: there is no {folder / fields[0][1:]}")
            elif not line.startswith("#") and fields[0] in truth.commits:
                repository, name, file, lines = fields
                for each in lines.split():
                    truth.sites[name][repository, file, int(each[:-1])] = MARKS[each[-1]]
        return truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repositories", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--misses", action="store_true", help="list the lines that differ")
    options = parser.parse_args()
    truth = Truth.read(options.data, options.repositories)
    with tempfile.TemporaryDirectory() as name:
        environment = pinned(Path(name), options.repositories, truth)
        for command in ("apply", "sync"):
            whole([command], environment)
        print(f"{machine()}; {len(truth.sites)} names in {len(truth.commits)} repositories\n")
        asyncio.run(measure(environment, truth, misses=options.misses))


def pinned(folder: Path, repositories: Path, truth: Truth) -> dict[str, str]:
    """Variables of commands on clones at the pinned commits."""
    registry = "embedding: {provider: none}\nrepositories:\n"
    for name, commit in truth.commits.items():
        clone = folder / f"{name}.git"
        subprocess.run(["git", "clone", "--quiet", "--bare", "--shared", repositories / name, clone], check=True)
        subprocess.run(["git", "-C", clone, "branch", "--force", "pinned", commit], check=True)
        registry += f'  - {{name: {name}, path: "{clone}", branch: pinned}}\n'
    (folder / "repositories.yaml").write_text(registry)
    return {
        **os.environ,
        "REPOSYNC_STATE_DIR": str(folder / "state"),
        "REPOSYNC_CONFIG": str(folder / "repositories.yaml"),
        "REPOSYNC_ENGINE_IDLE_SECONDS": "30",
    }


async def measure(environment: dict[str, str], truth: Truth, *, misses: bool) -> None:
    counts, took, across = Counter[str](), list[float](), 0
    async with open_application(Settings.from_environment(environment)) as app:
        await usages(app, "warm")
        for name, expected in truth.sites.items():
            started = time.perf_counter()
            answer = await usages(app, name, limit=1_000, max_seconds=60)
            took.append(time.perf_counter() - started)
            found = {
                (file.repository, file.path, each.line): str(each.mark)
                for file in answer.items
                for each in file.matches
                if "dist" not in file.path.split("/")
            }
            families = {_family(path) for _, path, _ in expected}
            across += sum(mark == "imported" and _family(path) not in families for (_, path, _), mark in found.items())
            for site in sorted(found.keys() | expected.keys()):
                is_mark, should = found.get(site), expected.get(site)
                counts["sites"] += should is not None
                counts["found"] += should is not None and is_mark is not None
                counts["shown"] += is_mark is not None
                counts[f"is {is_mark}"] += 1
                counts[f"right {is_mark}"] += is_mark == should
                if misses and is_mark != should:
                    print(f"{name}: {':'.join(map(str, site))} is {is_mark}, not {should}")
    print(f"recall {counts['found'] / counts['sites']:.3f} of {counts['sites']} lines")
    print(f"precision {counts['found'] / counts['shown']:.3f} of {counts['shown']} lines")
    for mark in MARKS.values():
        marked = counts[f"is {mark}"]
        print(f"  {mark:9} {counts[f'right {mark}'] / marked if marked else 1:.3f} of {marked}")
    print(f"imported across languages: {across}")
    print(f"a search: median {median(took) * 1000:.0f} ms, slowest {max(took) * 1000:.0f} ms")


def _family(path: str) -> str:
    return family_of(language_of(path.encode()))


if __name__ == "__main__":
    main()

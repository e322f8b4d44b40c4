"""Syncs against a three-node Qdrant cluster whose nodes are killed and come back, and what that costs.

    python -m benchmarks.cluster_storm --binary PATH [--minutes 10] [--seed 1] [--repositories 8] [--json]

A daemon keeps the repositories in sync, whose commits change all the time; it knows all three nodes. Every 20 to 40
seconds one node is killed (kill -9) and started again some seconds later. Then it is quiet: commits end, all nodes run.
Each node has to give exactly the points that the commits make: computed from git with the functions that cut files into
chunks. Nothing but the daemon writes, so a verdict that the index was changed is a false one. Exits 1 if anything is
lost, doubled or stale, or if there was such a verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from benchmarks.measure import machine
from benchmarks.storm.exactness import points_by_repository
from benchmarks.storm.pods import Pod, read_logs, running
from benchmarks.storm.projects import Project
from reposync.content.documents import make_document
from reposync.content.model import Document
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.folders import quick_folder
from tests.fixtures.qdrant_nodes import QdrantCluster

COLLECTION = "storm"
CHUNK, OVERLAP = 800, 160
CONFIGURATION = """
qdrant: {{shard_number: 3, replication_factor: {replicas}, write_consistency_factor: {confirmations}}}
embedding: {{provider: openai, url: "{embeddings}", model: test/words, dimensions: 16}}
defaults: {{schedule: "every 5 seconds", collection: {collection}, chunk: {{size: {size}, overlap: {overlap}}}}}
daemon: {{retry_seconds: 1, retry_max_seconds: 5}}
repositories:
"""
KILL_PAUSE_SECONDS = (20.0, 40.0)
DOWN_SECONDS = (2.0, 10.0)
COMMIT_PAUSE_SECONDS = (0.2, 0.8)
CALM_PATIENCE_SECONDS = 300.0
FALSE_VERDICTS = ("INDEX_CHANGED", "INDEX_REBUILT")

Chunk = tuple[str, str, int, str, str]
"""(repository, path, chunk, blob, text)."""


@dataclass
class Differences:
    """Chunks of the worst node: in no point, in more than one, and in a point although no commit has them."""

    lost: int = 0
    doubled: int = 0
    stale: int = 0

    @property
    def are_none(self) -> bool:
        return not (self.lost or self.doubled or self.stale)


@dataclass
class Report:
    """`runs`: by status; `failures`: attempts by outcome and code; `reasons`: the most frequent messages of those;
    `settled_seconds`: from the last commit until every node had every point, None if that never was."""

    machine: str
    version: str
    minutes: float
    seed: int
    replicas: int
    confirmations: int
    kills: int = 0
    commits: int = 0
    chunks: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    false_verdicts: int = 0
    tracebacks: int = 0
    differences: Differences = field(default_factory=Differences)
    settled_seconds: float | None = None

    @property
    def is_exact(self) -> bool:
        return self.settled_seconds is not None and self.differences.are_none and not self.false_verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True, help="an executable qdrant of 1.16 or later")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repositories", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--confirmations", type=int, default=1, help="`write_consistency_factor`")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = asyncio.run(storm(options))
    print(json.dumps(asdict(report), indent=2) if options.json else table(report))
    return 0 if report.is_exact else 1


async def storm(options: argparse.Namespace) -> Report:
    with quick_folder() as folder, EmbeddingServer(dimension=16) as embeddings:
        projects = [Project(f"repo-{n}", folder / "projects", options.seed) for n in range(options.repositories)]
        head = CONFIGURATION.format(
            embeddings=embeddings.url,
            collection=COLLECTION,
            size=CHUNK,
            overlap=OVERLAP,
            replicas=options.replicas,
            confirmations=options.confirmations,
        )
        entries = "".join(f"  - {{name: {each.name}, path: '{each.repository.path}'}}\n" for each in projects)
        (folder / "repositories.yaml").write_text(head + entries)
        with QdrantCluster(options.binary.resolve()) as cluster:
            version = httpx.get(cluster.urls[0]).json()["version"]
            report = Report(machine(), version, options.minutes, options.seed, options.replicas, options.confirmations)
            environment = {
                "REPOSYNC_CONFIG": str(folder / "repositories.yaml"),
                "REPOSYNC_QDRANT_URL": ",".join(cluster.urls),
            }
            with running(folder, environment) as pod:
                await pod.ready()
                await _rage(options, cluster, projects, report)
                await _calm(cluster, projects, report)
                _read_history(folder / "pod" / "reposync.db", pod, report)
    return report


async def _rage(
    options: argparse.Namespace, cluster: QdrantCluster, projects: Sequence[Project], report: Report
) -> None:
    end = time.monotonic() + options.minutes * 60
    over = asyncio.Event()

    async def keep_committing() -> None:
        dice = random.Random(f"{options.seed}:commits")
        while not over.is_set():
            await asyncio.to_thread(dice.choice(projects).change)
            await asyncio.sleep(dice.uniform(*COMMIT_PAUSE_SECONDS))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keep_committing())
        dice = random.Random(f"{options.seed}:kills")
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, dice.uniform(*KILL_PAUSE_SECONDS)))
            node = dice.choice(cluster.nodes)
            print(f"{left:6.0f} s left: kill -9 {node.url}", file=sys.stderr, flush=True)
            await asyncio.to_thread(node.kill)
            report.kills += 1
            await asyncio.sleep(dice.uniform(*DOWN_SECONDS))
            await asyncio.to_thread(node.start)
        over.set()
    report.commits = sum(each.commits for each in projects)


async def _calm(cluster: QdrantCluster, projects: Sequence[Project], report: Report) -> None:
    """Until every node gives what the commits make, or nobody would wait any longer."""
    since = time.monotonic()
    expected = Counter(chunk for project in projects for chunk in chunks_of(project))
    report.chunks = expected.total()
    while time.monotonic() - since < CALM_PATIENCE_SECONDS:
        report.differences = await _compared(cluster, expected)
        if report.differences.are_none:
            report.settled_seconds = round(time.monotonic() - since, 1)
            return
        await asyncio.sleep(0.5)


async def _compared(cluster: QdrantCluster, expected: Counter[Chunk]) -> Differences:
    worst = Differences()
    for url in cluster.urls:
        found: Counter[Chunk] = Counter()
        try:
            for repository, points in (await points_by_repository(url, COLLECTION)).items():
                for point in points:
                    each = point["payload"]["metadata"]
                    text = point["payload"]["page_content"]
                    found[repository, each["path"], each["chunk_index"], each["blob_sha"], text] += 1
        except httpx.HTTPError:  # a replica that is still being recovered
            return Differences(lost=expected.total())
        worst.lost = max(worst.lost, (expected - found).total())
        worst.doubled = max(worst.doubled, found.total() - len(found))
        worst.stale = max(worst.stale, len(found.keys() - expected.keys()))
    return worst


def chunks_of(project: Project) -> list[Chunk]:
    """Of its head commit."""
    blobs, found = project.blobs(), []
    for path, content in project.files.items():
        document = make_document(
            path.encode(), content, len(content), chunk_size=CHUNK, chunk_overlap=OVERLAP, max_file_bytes=1_000_000
        )
        assert isinstance(document, Document), f"{path} is skipped"
        found += [(project.name, path, n, blobs[path], each.text) for n, each in enumerate(document.chunks)]
    return found


def _read_history(database: Path, pod: Pod, report: Report) -> None:
    with sqlite3.connect(database) as connection:
        report.runs = dict(connection.execute("SELECT status, count(*) FROM sync_runs GROUP BY 1 ORDER BY 1"))
        failed = connection.execute(
            "SELECT value ->> 'outcome', value ->> 'error_code', value ->> 'error_message'"
            " FROM sync_runs, json_each(attempts) WHERE value ->> 'error_code' IS NOT NULL"
        ).fetchall()
        rebuilt = connection.execute(
            "SELECT 'completed', error_code, error_message FROM sync_runs"
            " WHERE status = 'completed' AND error_code IS NOT NULL"
        ).fetchall()
    connection.close()
    report.failures = dict(Counter(f"{outcome} {code}" for outcome, code, _ in failed).most_common())
    report.reasons = dict(Counter(f"{code}: {message}"[:300] for _, code, message in failed + rebuilt).most_common(8))
    report.false_verdicts = sum(code in FALSE_VERDICTS for _, code, _ in failed + rebuilt)
    report.tracebacks = len(read_logs([pod]).tracebacks)


def table(report: Report) -> str:
    settled = "never" if report.settled_seconds is None else f"{report.settled_seconds:.1f}"
    rows = [
        ("nodes killed", report.kills),
        ("commits", report.commits),
        ("chunks at the end", report.chunks),
        ("runs", ", ".join(f"{number} {status}" for status, number in report.runs.items())),
        ("failed attempts", ", ".join(f"{number} {what}" for what, number in report.failures.items()) or 0),
        ("false verdicts of a changed index", report.false_verdicts),
        ("tracebacks in the log", report.tracebacks),
        ("lost chunks", report.differences.lost),
        ("doubled chunks", report.differences.doubled),
        ("stale chunks", report.differences.stale),
        ("seconds from the last commit until every node is exact", settled),
    ]
    head = (
        f"{report.machine}; Qdrant {report.version}, 3 nodes, {report.replicas} replicas, "
        f"write_consistency_factor {report.confirmations}; {report.minutes:g} minutes, seed {report.seed}"
    )
    lines = [head, "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join([*lines, "", *(f"{number} x {reason}" for reason, number in report.reasons.items())])


if __name__ == "__main__":
    sys.exit(main())

"""Whether a search, a push, a tick and a page cost more if many repositories are registered.

    python -m benchmarks.catalogue_reads [--few 50] [--many 5000] [--rounds 200] [--database sqlite]

Two installations of each database in one process, with few and with many repositories, and in each one repository with
13 MB of `.gitattributes` lines. Both have as many points in the index (of one Qdrant engine beside this process), as
many runs in the history, and as many repositories due at a tick. Rounds take turns, so that both see the same machine.
The lower quartile is shown: what else the machine does comes and goes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import delete, update

from benchmarks.filling import START, Row, address, bulk, ended_runs, name, repositories
from benchmarks.measure import machine
from reposync.api.app import create_app
from reposync.api.auth import Access
from reposync.app.application import Application
from reposync.app.index_overview import collection_changes, failed_files
from reposync.app.webhooks import PushedProject, PushPayload, receive_push
from reposync.config.settings import Settings
from reposync.embedding.factory import NoEmbedder
from reposync.embedding.sparse import document_vector
from reposync.store.index_queries import search_scope, version_summaries
from reposync.store.repository import repository_id
from reposync.store.status import WAITING
from reposync.store.tables import REPOSITORIES, RUNS
from reposync.store.ticks import Ticks
from reposync.sync.index_versions import VersionSettings
from reposync.sync.prepare import ContentSettings
from reposync.vectors.port import SPARSE, point_id
from tests.fixtures.applied import open_applied
from tests.fixtures.qdrant_server import QdrantServer
from tests.integration.api.conftest import Daemon

GITLAB = "https://gitlab.example.com"
REGISTRY = f"""
gitlab:
  - {{name: main, url: "{GITLAB}", token: "${{TOKEN:-}}"}}
embedding: {{provider: none}}
defaults: {{collection: COLLECTION}}
"""
POINTS, HISTORY, DUE = 5_000, 20_000, 50
HOSTILE_FILES, HOSTILE_CHARS = 200, 65_536
QUERY = "cancel the booking of an invoice"
WORDS = [
    "invoice", "booking", "cancel", "payment", "ledger", "rate",
    "currency", "month", "report", "customer", "order", "shipment",
]  # fmt: skip
COMMIT = "c" * 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=50)
    parser.add_argument("--many", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), action="append")
    options = parser.parse_args()
    print(
        f"{machine()}\n{options.few:,} and {options.many:,} repositories, lower quartile of {options.rounds} rounds",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder, QdrantServer(Path(folder) / "qdrant") as qdrant:
        for kind in options.database or ("sqlite", "postgresql"):
            with address(kind) as few, address(kind) as many:
                asyncio.run(measure(kind, Path(folder), qdrant.url, {options.few: few, options.many: many}, options))


@dataclass
class Installation:
    app: Application
    count: int
    client: httpx.AsyncClient
    pushes: count[int] = field(default_factory=count)

    async def search_reads(self) -> None:
        """The database queries of a search with ten hits of ten repositories."""
        database, ids = self.app.database, [repository_id(name(number)) for number in range(10)]
        await search_scope(database)
        await search_scope(database, ids)
        await self.app.manifests.outdated([(each, "src/file.py") for each in ids])

    async def search(self) -> None:
        assert len(await self.app.searching.search(QUERY)) == 10

    async def search_of_one(self) -> None:
        assert await self.app.searching.search(QUERY, repository=name(7))

    async def webhook(self) -> None:
        """Of a project whose number is known, and of one that was never synced."""
        (known,) = await self.app.repositories.of_project(8, [f"{GITLAB}/group/{name(7)}"])
        (fresh,) = await self.app.repositories.of_project(10**6, [f"{GITLAB}/group/{name(8)}"])
        assert (known.name, fresh.name) == (name(7), name(8))

    async def push(self) -> None:
        """The whole event, from the payload that was read to the run that waits."""
        commit = f"{next(self.pushes):040}"
        project = PushedProject(
            path_with_namespace=f"group/{name(7)}", default_branch="main", web_url=f"{GITLAB}/group/{name(7)}"
        )
        push = PushPayload(ref="refs/heads/main", after=commit, project_id=8, project=project)
        (outcome,) = await receive_push(self.app, push, self.app.configuration.registry.gitlab)
        assert outcome.repository == name(7)

    async def tick(self) -> None:
        some = REPOSITORIES.c.id.in_([repository_id(name(number)) for number in range(DUE)])
        due = {"cron_expression": "* * * * *", "next_due_at": START, "last_tick_at": START - timedelta(minutes=2)}
        await self.app.database.change(update(REPOSITORIES).where(some).values(**due))
        outcome = await Ticks(self.app.database).take(grace_seconds=60.0)
        assert outcome.queued + outcome.joined == DUE

    async def api_page(self) -> None:
        answer = await self.client.get("/api/v1/repositories", params={"limit": 50})
        assert len(answer.raise_for_status().json()["items"]) == 50

    async def first_page(self) -> None:
        (await self.client.get("/", headers={"accept": "text/html"})).raise_for_status()

    async def gauges(self) -> None:
        """What a scrape reads of repositories and versions: these are as many as there are."""
        await self.app.repositories.states()
        versions = await version_summaries(self.app.database)
        await failed_files(self.app, versions)
        collection_changes(self.app, versions)

    async def drop_waiting(self) -> None:
        async with self.app.database.write() as connection:
            await connection.execute(delete(RUNS).where(RUNS.c.status.in_(sorted(WAITING))))


MEASURED: dict[str, Callable[[Installation], Awaitable[None]]] = {
    "search: its database part": Installation.search_reads,
    "search, whole": Installation.search,
    "search in one repository, whole": Installation.search_of_one,
    "webhook look-up": Installation.webhook,
    "push event, whole": Installation.push,
    f"tick of {DUE} repositories": Installation.tick,
    "`GET /api/v1/repositories?limit=50`": Installation.api_page,
    "first page, 50 repositories": Installation.first_page,
    "gauges of `/metrics`": Installation.gauges,
}
WRITES = {Installation.push, Installation.tick}
# These take longer and vary less.
FEWER_ROUNDS = {Installation.api_page, Installation.first_page, Installation.gauges}


async def measure(kind: str, folder: Path, qdrant: str, urls: dict[int, str], options: argparse.Namespace) -> None:
    async with contextlib.AsyncExitStack() as stack:
        both = [
            await stack.enter_async_context(installation(folder / f"{kind}-{number}", url, qdrant, number, kind))
            for number, url in urls.items()
        ]
        print(
            f"\n| {'PostgreSQL' if kind == 'postgresql' else 'SQLite'} | few | many | ratio |\n|---|---|---|---|",
            flush=True,
        )
        for what, work in MEASURED.items():
            rounds = max(10, options.rounds // 10) if work in FEWER_ROUNDS else options.rounds
            seconds: list[list[float]] = [[], []]
            for turn in range(rounds + 3):
                for each, mine in zip(both, seconds, strict=True):
                    began = time.perf_counter()
                    await work(each)
                    if turn >= 3:
                        mine.append(time.perf_counter() - began)
                    if work in WRITES:
                        await each.drop_waiting()
            few, many = (statistics.quantiles(each, n=4)[0] * 1000 for each in seconds)
            print(f"| {what} | {few:.2f} ms | {many:.2f} ms | {many / few:.2f} |", flush=True)


@contextlib.asynccontextmanager
async def installation(folder: Path, url: str, qdrant: str, number: int, kind: str) -> AsyncIterator[Installation]:
    folder.mkdir()
    collection = f"{kind}-{number}"
    (folder / "repositories.yaml").write_text(REGISTRY.replace("COLLECTION", collection))
    environment = {
        "REPOSYNC_STATE_DIR": str(folder / "state"),
        "REPOSYNC_CONFIG": str(folder / "repositories.yaml"),
        "REPOSYNC_QDRANT_URL": qdrant,
        "REPOSYNC_DATABASE_URL": url,
    }
    async with open_applied(Settings.from_environment(environment)) as app:
        content = ContentSettings(7_000, 1_500, 1_000_000)
        made = VersionSettings("source", "main", collection, await NoEmbedder().spec(), content)
        await fill(url, number, collection, json.dumps(asdict(made)))
        await index(app, qdrant, number, collection)
        parts = replace(Daemon().parts, application=lambda: app, access=Access([]))
        transport = httpx.ASGITransport(create_app(parts))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield Installation(app, number, client)


async def fill(url: str, number: int, collection: str, settings: str) -> None:
    line = "*.generated.py linguist-generated\n"
    lines = (line * (HOSTILE_CHARS // len(line) + 1))[:HOSTILE_CHARS]
    hostile = {f"{each}/.gitattributes": ["d" * 40, lines] for each in range(HOSTILE_FILES)}
    created = START - timedelta(days=100)
    common = {"source": "gitlab", "collection": collection, "created_at": created}
    rows = repositories(number, **common, generation=1, last_commit=COMMIT)
    async with bulk(url) as write:
        await write("repositories", [row | of_project(row, at) for at, row in enumerate(rows)])
        await write("index_versions", [version(each, collection, settings, hostile) for each in range(number)])
        await write("sync_runs", list(ended_runs(number, HISTORY)))


def of_project(row: Row, number: int) -> Row:
    """Of one in two repositories, the project number is not known yet."""
    project_id = number + 1 if number % 2 else None
    return {"location": f"{GITLAB}/group/{row['name']}", "project_id": project_id, "live_version": row["id"]}


def version(number: int, collection: str, settings: str, hostile: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "id": repository_id(name(number)),
        "repository_id": repository_id(name(number)),
        "number": 1,
        "state": "live",
        "settings_key": f"{number:032}",
        "settings": settings,
        "generation": 1,
        "collection": collection,
        "physical": collection,
        "attributes": json.dumps(hostile if number == 0 else {}),
        "commit_sha": COMMIT,
        "epoch": 1,
        "created_at": START - timedelta(days=100),
        "live_at": START + timedelta(microseconds=number),
    }


async def index(app: Application, qdrant: str, number: int, collection: str) -> None:
    """POINTS in all, of a file each. Past our own adapter, which writes one repository at a time."""
    await app.index(collection).ensure(await NoEmbedder().spec())
    points = [point(at % number, at // number) for at in range(POINTS)]
    async with httpx.AsyncClient(base_url=qdrant, timeout=120) as client:
        for start in range(0, POINTS, 500):
            body = {"points": points[start : start + 500]}
            answer = await client.put(f"/collections/{collection}/points", params={"wait": "true"}, json=body)
            answer.raise_for_status()


def point(repository: int, file: int) -> dict[str, Any]:
    words = [WORDS[(repository + file * 7 + step) % len(WORDS)] for step in range(20)]
    text = f"def handle_{repository}_{file}(): pass  # {' '.join(words)}"
    identity, path, sparse = repository_id(name(repository)), f"src/file_{file}.py", document_vector(text)
    metadata = {
        "repository_id": identity,
        "repository": name(repository),
        "path": path,
        "language": "Python",
        "start_line": 1,
        "end_line": 1,
        "chunk_index": 0,
        "blob_sha": "b" * 40,
        "commit": COMMIT,
        "content_hash": uuid.uuid5(uuid.NAMESPACE_OID, text).hex,
        "epoch": 1,
        "url": None,
    }
    return {
        "id": point_id(identity, path, "b" * 40, 0),
        "vector": {SPARSE: {"indices": sparse.indices.tolist(), "values": sparse.values.tolist()}},
        "payload": {"page_content": text, "metadata": metadata},
    }


if __name__ == "__main__":
    main()

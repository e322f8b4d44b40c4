"""What a change of settings costs, and whether anybody notices: a search every 100 ms while a version is built.

    python -m benchmarks.settings_change [--files 2000] [--megabytes 10] [--qdrant URL]

A project of real source files on the GitLab test server, an embedding server that answers at once, the embedded engine
over HTTP. Each change is one `reposync sync`, in a process of its own; the searches go through the program's own
search, with the new configuration, in this one. Requests are counted by the servers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.corpus import make_corpus
from benchmarks.measure import machine
from reposync.app.opening import open_application
from reposync.config.loading import load_registry
from reposync.config.settings import Settings
from reposync.errors import RepoSyncError
from reposync.store.database import Database
from tests.fixtures.applied import apply_registry
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.gitlab_server import GitLabServer, Project
from tests.fixtures.qdrant_server import QdrantServer

TOKEN = "glpat-benchmark"
PAUSE_SECONDS = 0.1
QUERY = "parse the arguments of the command line"
CONFIGURATION = """
gitlab:
  - {{name: main, url: "{gitlab}", token: "${{GITLAB_TOKEN}}"}}
embedding: {{provider: openai, url: "{embeddings}", model: {model}, dimensions: 64, batch: 256}}
qdrant: {{url: "{qdrant}"}}
defaults: {{collection: {collection}, chunk: {{size: {size}, overlap: 1500}}}}
repositories:
  - {{name: corpus, gitlab: main, project: {project}}}
"""


@dataclass
class Searches:
    """What was answered while a version was built."""

    asked: int = 0
    failed: list[str] = field(default_factory=list)
    empty: int = 0
    slowest_seconds: float = 0.0
    by_name_failed: int = 0


@dataclass
class Bench:
    folder: Path
    gitlab: GitLabServer
    project: Project
    embeddings: EmbeddingServer
    qdrant_url: str
    collection: str = "code"
    model: str = "test/words"
    size: int = 7000
    verbose: bool = False

    def configure(self) -> Settings:
        text = CONFIGURATION.format(
            gitlab=self.gitlab.url,
            embeddings=self.embeddings.url,
            model=self.model,
            qdrant=self.qdrant_url,
            collection=self.collection,
            size=self.size,
            project=self.project.path,
        )
        (self.folder / "repositories.yaml").write_text(text)
        return Settings.from_environment(self.environment())

    def environment(self) -> dict[str, str]:
        return {
            "REPOSYNC_CONFIG": str(self.folder / "repositories.yaml"),
            "REPOSYNC_STATE_DIR": str(self.folder / "state"),
        }

    async def change(self, what: str, *, sought: str | None) -> None:
        """One sync under these settings, beside searches. `sought`: the name that an outside client reads."""
        self.embeddings.forget()
        self.gitlab.log.forget()
        settings = self.configure()
        await _apply(settings)
        done = asyncio.Event()
        searches = Searches()
        began = time.monotonic()
        async with open_application(settings) as app, asyncio.TaskGroup() as tasks:
            if sought is not None:
                tasks.create_task(self._search(app, searches, done))
                tasks.create_task(self._read_by_name(sought, searches, done))
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "reposync", "sync"),
                env=os.environ | self.environment(),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            printed, _ = await process.communicate()
            done.set()
        if process.returncode:
            raise SystemExit(printed.decode())
        bodies = [exchange.body.get("input") for exchange in self.embeddings.log if exchange.status == 200]
        texts = [text for body in bodies if isinstance(body, list) for text in body if text != QUERY]
        blobs = sum("/blobs/" in each.path for each in self.gitlab.log.rest)
        figures = (
            what,
            f"{time.monotonic() - began:.1f} s",
            f"{len(texts):,}",
            blobs,
            len(self.gitlab.log.git),
            searches.asked,
            len(searches.failed),
            searches.empty,
            searches.by_name_failed,
            f"{searches.slowest_seconds * 1000:.0f} ms",
        )
        print(f"| {' | '.join(map(str, figures))} |", flush=True)
        for failure in searches.failed[:3]:
            print(f"    {failure}")
        if self.verbose:
            print(f"    {printed.decode().splitlines()[0]}", flush=True)

    async def _search(self, app: object, searches: Searches, done: asyncio.Event) -> None:
        while not done.is_set():
            asked = time.monotonic()
            searches.asked += 1
            try:
                hits = await app.searching.search(QUERY)  # type: ignore[attr-defined]
                searches.empty += not hits
            except RepoSyncError as error:
                searches.failed.append(str(error))
            searches.slowest_seconds = max(searches.slowest_seconds, time.monotonic() - asked)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _read_by_name(self, name: str, searches: Searches, done: asyncio.Event) -> None:
        async with httpx.AsyncClient(base_url=self.qdrant_url, timeout=30) as client:
            while not done.is_set():
                answer = await client.post(f"/collections/{name}/points/scroll", json={"limit": 1})
                searches.by_name_failed += not (answer.status_code == 200 and answer.json()["result"]["points"])
                await asyncio.sleep(PAUSE_SECONDS / 10)


async def _apply(settings: Settings) -> None:
    async with await Database.open(settings.database_url) as database:
        await database.upgrade()
        await apply_registry(database, load_registry(settings.config_path))


async def measure(bench: Bench) -> None:
    columns = ("change", "took", "texts embedded", "blobs by REST", "git fetches", "searches", "failed", "empty")
    print(f"| {' | '.join((*columns, 'name not readable', 'slowest search'))} |")
    print("|---" * (len(columns) + 2) + "|", flush=True)
    await bench.change("first sync", sought=None)
    await bench.change("nothing", sought="code")
    # The server serves this one alone now: until the new version is live, searches go by words.
    bench.model = bench.embeddings.model = "test/others"
    await bench.change("another model", sought="code")
    bench.size = 4000
    await bench.change("another chunk size", sought="code")
    bench.collection = "other"
    await bench.change("another collection", sought=None)
    bench.project.path = "platform/renamed"
    await bench.change("another project path (links)", sought="other")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--megabytes", type=float, default=10.0)
    parser.add_argument("--qdrant", help="URL of a Qdrant server, in place of the embedded engine")
    parser.add_argument("--verbose", action="store_true", help="print what each sync says")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files, size = make_corpus(folder / "corpus.git", options.files, options.megabytes)
        print(f"{machine()}\n{files:,} files, {size / 1e6:.1f} MB\n", flush=True)
        (folder / "qdrant").mkdir()
        qdrant_folder = folder / "qdrant"
        with GitLabServer() as gitlab, EmbeddingServer() as embeddings, contextlib.ExitStack() as stack:
            url = options.qdrant or stack.enter_context(QdrantServer(qdrant_folder)).url
            project = gitlab.add_project("platform/corpus", folder / "corpus.git")
            os.environ["GITLAB_TOKEN"] = TOKEN
            gitlab.add_token(TOKEN, scopes={"read_api", "read_repository"})
            asyncio.run(measure(Bench(folder, gitlab, project, embeddings, url, verbose=options.verbose)))


if __name__ == "__main__":
    main()

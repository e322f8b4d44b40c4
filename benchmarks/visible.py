"""What a search and a list cost whoever sees a part of the repositories, beside those who see all.

    python -m benchmarks.visible [--repositories 6000] [--rounds 300] [--database sqlite|postgresql]

One installation with the embedded engine and the static model: one chunk in each repository. The actors take turns,
so that all see the same machine. `overhead`: of an operation that does nothing, by the rule READ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.catalogue_reads import QUERY, WORDS, version
from benchmarks.filling import address, bulk, name, repositories
from benchmarks.measure import machine
from reposync.app.application import Application
from reposync.config.settings import Settings
from reposync.embedding.port import Matrix
from reposync.embedding.sparse import document_vector
from reposync.operations.core import Actor, Role, Rule
from reposync.operations.repositories import RepositoryFilters, list_repositories
from reposync.operations.search import FacetedSearch, search
from reposync.store.repository import repository_id
from reposync.sync.index_versions import VersionSettings
from reposync.sync.prepare import ContentSettings
from reposync.vectors.port import FileWrite, PointWrite, WriteScope
from reposync.vectors.request_bodies import batch, write_requests
from reposync.visible import EVERYTHING, NOTHING, Visible
from tests.fixtures.applied import open_applied
from tests.fixtures.pods import end_engines

AT_ONCE = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repositories", type=int, default=5_200)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    options = parser.parse_args()
    print(f"{machine()}\n{options.repositories:,} repositories, {options.database}", flush=True)
    with tempfile.TemporaryDirectory() as folder, address(options.database) as url:
        try:
            asyncio.run(measure(Path(folder), url, options.repositories, options.rounds))
        finally:
            end_engines(Path(folder))


async def measure(folder: Path, url: str, count: int, rounds: int) -> None:
    registry = folder / "repositories.yaml"
    registry.write_text("embedding: {provider: static}\ndefaults: {collection: code}\n")
    places = {"REPOSYNC_STATE_DIR": str(folder), "REPOSYNC_CONFIG": str(registry), "REPOSYNC_DATABASE_URL": url}
    async with open_applied(Settings.from_environment(places)) as app:
        await fill(app, url, count)
        ids = [repository_id(name(number)) for number in range(count)]
        actors = {"all": actor(EVERYTHING)}
        for part in (5, 5_000):
            actors[f"{part:,}"] = actor(Visible(frozenset(ids[:part])))
        print("an operation by its rule, and `act`: the same search without it", flush=True)
        for what, act in WORK.items():
            times: dict[str, list[float]] = {each: [] for each in actors}
            for _ in range(rounds if what != "list" else max(2, rounds // 10)):
                for title, who in actors.items():
                    began = time.perf_counter()
                    await act(app, who)
                    times[title].append(time.perf_counter() - began)
            print(f"{what:10} {'   '.join(f'{title}: {figures(each)}' for title, each in times.items())}", flush=True)


def figures(seconds: list[float]) -> str:
    """What else the machine does comes and goes: hence the lower quartile, too."""
    lower, median, _ = statistics.quantiles(seconds, n=4)
    return f"p25 {lower * 1e3:.3f} ms, p50 {median * 1e3:.3f} ms"


def actor(visible: Visible) -> Actor:
    return Actor("reader", Role.READ, visible=visible, maintains=NOTHING)


async def _search(app: Application, who: Actor) -> None:
    found = await search(app, who, FacetedSearch(q=QUERY))
    assert len(found.items) >= 5


async def _act(app: Application, who: Actor) -> None:
    if who.visible.is_everything:
        await search.act(app, who, FacetedSearch(q=QUERY))


async def _list(app: Application, who: Actor) -> None:
    assert (await list_repositories(app, who, RepositoryFilters())).items


async def _nothing(app: Application, who: Actor) -> None:
    await Rule.READ.application(app, who, {})


WORK: dict[str, Callable[[Application, Actor], Awaitable[None]]] = {
    "overhead": _nothing,
    "act": _act,
    "search": _search,
    "list": _list,
}


async def fill(app: Application, url: str, count: int) -> None:
    spec = await app.embedder().spec()
    index = app.index("code")
    await index.ensure(spec)
    physical = await index.physical_for(spec)
    made = VersionSettings("source", "main", "code", spec, ContentSettings(7_000, 1_500, 1_000_000))
    async with bulk(url) as write:
        await write("repositories", list(repositories(count, generation=1, last_commit="c" * 40)))
        versions = [
            version(each, physical, json.dumps(asdict(made)), {}) | {"collection": "code"} for each in range(count)
        ]
        await write("index_versions", versions)
    chance = np.random.default_rng(1)
    operations: list[bytes] = []
    for number in range(count):
        dense = chance.standard_normal((1, spec.dimension)).astype(np.float32)
        scope = WriteScope(repository_id(name(number)), name(number), "c" * 40, 1)
        files = [file(number, dense / np.linalg.norm(dense))]
        for written in write_requests(scope, files, multivector=spec.multivector):
            operations += written.operations(scope)
        if len(operations) == AT_ONCE or number == count - 1:
            # Past our own adapter, which writes one repository at a time: the engine flushes each request.
            await index._collection.request("fill", "POST", "/points/batch", batch(operations), is_write=True)
            operations.clear()


def file(number: int, dense: Matrix) -> FileWrite:
    text = f"{number} " + " ".join(WORDS[(number * 7 + each) % len(WORDS)] for each in range(20))
    point = PointWrite(0, text, 1, 9, f"{number}", None, dense, document_vector(text))
    return FileWrite(f"src/file_{number}.py", "python", f"{number:040x}", [point], replaces=False)


if __name__ == "__main__":
    main()

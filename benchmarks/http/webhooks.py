"""How soon a push event of GitLab has its answer: the run that syncs the commit is queued by then.

    python -m benchmarks.http.webhooks [--pushes 300] [--seconds 0.1]

One process of `reposync serve`, which executes the syncs as well, with PostgreSQL (which writes durably), Redis, a
Qdrant server and a GitLab (the tests' own) on the same machine. Real commits, one event each, one after the other with
random pauses of `--seconds` on average; each is sent twice, as GitLab does where an answer was lost. Times are from the
first byte sent to the last one received.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
import uuid
from pathlib import Path

import httpx
import psutil

from benchmarks.filling import address
from benchmarks.http.__main__ import NEVER, first_syncs, rows, settled, source
from benchmarks.measure import machine, spread
from benchmarks.storm.pods import running, token_of
from reposync.store.database import Database
from reposync.store.status import RunTrigger
from tests.fixtures.gitlab_server import Change, GitLabServer
from tests.fixtures.gitlab_server.webhooks import push_event
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.repositories import GitRepository

SECRET = "a-secret-of-webhooks-1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pushes", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=0.1)
    options = parser.parse_args()
    print(f"{machine()}; load {psutil.getloadavg()[0]:.1f} before", flush=True)
    with (
        tempfile.TemporaryDirectory() as name,
        address("postgresql") as url,
        RedisServer() as redis,
        QdrantServer(Path(name) / "qdrant") as qdrant,
        GitLabServer() as gitlab,
    ):
        servers = {
            "REPOSYNC_DATABASE_URL": url,
            "REPOSYNC_REDIS_URL": redis.url,
            "REPOSYNC_QDRANT_URL": qdrant.url,
            "HOOK_SECRET": SECRET,
        }
        asyncio.run(measure(Path(name), servers, gitlab, options))


async def measure(folder: Path, servers: dict[str, str], gitlab: GitLabServer, options: argparse.Namespace) -> None:
    repository = GitRepository.create(folder / "app.git")
    before = repository.commit({f"file_{number}.py": source(number) for number in range(200)})
    project = gitlab.add_project("platform/app", repository.path, id=42)
    (folder / "registry.yaml").write_text(
        "embedding: {provider: none}\n"
        "gitlab:\n"
        f'  - {{name: main, url: "{gitlab.url}", token: "${{GITLAB_TOKEN}}", webhook_secret: "${{HOOK_SECRET}}"}}\n'
        f'repositories: [{{name: app, gitlab: main, project: platform/app, schedule: "{NEVER}"}}]\n'
    )
    dice = random.Random(1)
    first, repeated = list[float](), list[float]()
    with running(folder, {**servers, "REPOSYNC_CONFIG": str(folder / "registry.yaml")}) as pod:
        life = pod.life
        gitlab.add_token(token_of(life.name), scopes=("read_api", "read_repository"))
        await pod.ready()
        async with (
            await Database.open(servers["REPOSYNC_DATABASE_URL"]) as database,
            httpx.AsyncClient(timeout=10) as client,
        ):
            await first_syncs(database, 1)
            for number in range(options.pushes):
                after = repository.commit({f"file_{number % 200}.py": source(1_000 + number)})
                event = push_event(gitlab.url, project, Change("main", before, after))
                before = after
                headers = {
                    "X-Gitlab-Event": "Push Hook",
                    "X-Gitlab-Token": SECRET,
                    "Idempotency-Key": str(uuid.uuid4()),
                    "Content-Type": "application/json",
                }
                for times in (first, repeated):
                    await asyncio.sleep(dice.expovariate(1 / options.seconds))
                    began = time.perf_counter()
                    answer = await client.post(
                        f"{life.address}/api/v1/webhooks/gitlab", content=json.dumps(event), headers=headers
                    )
                    times.append((time.perf_counter() - began) * 1_000)
                    assert answer.status_code in (200, 202), answer.text
            await settled(database)
            runs = [run for run in await rows(database) if run.trigger is RunTrigger.WEBHOOK]
            assert max(runs, key=lambda run: run.queued_at).commit_after == before
    print(f"{options.pushes} pushes, {len(runs)} runs")
    print(f"the first time   {spread(first)}")
    print(f"repeated         {spread(repeated)}")


if __name__ == "__main__":
    main()

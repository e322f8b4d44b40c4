"""What happens to a deployment, and what is recorded of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import httpx
import psutil  # type: ignore[import-untyped]

from benchmarks.storm import rows
from benchmarks.storm.deployment import COLLECTION, STOP_PATIENCE_SECONDS, Deployment, Options, deployed
from benchmarks.storm.exactness import FRESH, Expected, differences, points_by_repository, sync_afresh
from benchmarks.storm.pods import LogReport, Pod, inherited, read_logs, token_of
from benchmarks.storm.proofs import Request, Span
from benchmarks.storm.rivals import Rival

SCRAPE_SECONDS, SCRAPE_PATIENCE_SECONDS = 2.0, 10.0
# Until the baseline's pods have started.
RIVALS_START_SECONDS = 5.0
# Between two commits, over all projects together.
COMMIT_PAUSE_SECONDS = (0.15, 0.45)
BLOW_PAUSE_SECONDS = (1.0, 5.0)


@dataclass
class Recorded:
    """What is left when everything is over. `asked` of GitLab, `written` to Qdrant; `points`: how many a first sync of
    everything makes; `orphans`: processes that outlived their daemon; `busy_cores`: of the whole machine."""

    options: Options
    window: Span
    pods: list[Pod]
    rivals: list[Rival]
    records: rows.Records
    asked: list[Request]
    written: list[Request]
    refused: list[str]
    inexact: list[str]
    points: int
    embedded: int
    logs: LogReport
    struck: dict[str, int]
    commits: int
    orphans: list[str]
    complaints: list[str]
    settled_seconds: float
    busy_cores: float
    load: float

    def of_all_pods(self, what: str) -> list[tuple[str, float]]:
        """`kills`, `freezes` or `thaws`: process and moment."""
        return [each for pod in self.pods for each in getattr(pod, what)]


async def run(options: Options, folder: Path) -> Recorded:
    """From empty servers to what was recorded. Raises RuntimeError if it cannot begin."""
    complaints = []
    async with deployed(options, folder) as deployment:
        options.log("first syncs")
        await _begin(deployment)
        start, busy = time.time(), psutil.cpu_times()
        await _rage(deployment)
        busy_cores = _busy_cores(busy, time.time() - start)
        options.log("calm")
        calm = time.time()
        try:
            await _all_at_head(deployment, "a last sync", since=calm)
        except RuntimeError as error:
            complaints.append(str(error))
        settled = time.time() - calm
        window = Span(start, time.time() - options.prompt_seconds)
        for pod in deployment.pods:
            pod.notice_deaths()
        for rival in deployment.rivals:
            rival.end()
        await asyncio.gather(
            *(each.terminate(STOP_PATIENCE_SECONDS) for each in deployment.pods if each.life.ended_by is None)
        )
        options.log("proofs")
        records = await rows.read(deployment.database_url, lambda worker: _process_of(deployment, worker))
        names = {each.id: each.name for each in records.repositories}
        embedded = len(deployment.embeddings.inputs)
        inexact, points = await _compared(deployment, records)
        return Recorded(
            options=options,
            window=window,
            pods=deployment.pods,
            rivals=deployment.rivals,
            records=records,
            asked=[each for each in deployment.gitlab.seen if each.process != FRESH],
            written=[
                Request(each.process, names.get(each.repository, each.repository), each.arrived, True, each.what)
                for each in deployment.qdrant.written
            ],
            refused=list(deployment.gitlab.refused),
            inexact=inexact,
            points=points,
            embedded=embedded,
            logs=read_logs(deployment.pods),
            struck=dict(deployment.blows.struck),
            commits=sum(each.commits for each in deployment.projects),
            orphans=_orphans(folder),
            complaints=complaints + [each for pod in deployment.pods for each in pod.complaints],
            settled_seconds=settled,
            busy_cores=busy_cores,
            load=psutil.getloadavg()[0],
        )


async def _begin(deployment: Deployment) -> None:
    for pod in deployment.pods:
        pod.start()
    for pod in deployment.pods:
        await pod.ready()
    await _all_at_head(deployment, "a first sync of every repository")
    for rival in deployment.rivals:
        rival.start()
        rival.impaired.append(Span(0, time.time() + RIVALS_START_SECONDS))


async def _rage(deployment: Deployment) -> None:
    """All blows, while commits keep coming. The last commit is made when it returns."""
    over = asyncio.Event()
    async with asyncio.TaskGroup() as beside:
        beside.create_task(_keep_committing(deployment, over))
        beside.create_task(_keep_rivals(deployment, over))
        for pod in deployment.pods:
            beside.create_task(_keep_scraping(pod, over))
        try:
            await _strike(deployment)
        finally:
            over.set()


async def _strike(deployment: Deployment) -> None:
    options, blows = deployment.options, deployment.blows
    if options.script is not None:
        for name, act in options.script:
            options.log(name)
            blows.struck[name] += 1
            await act(blows)
        return
    end = time.monotonic() + options.minutes * 60
    async with asyncio.TaskGroup() as under_way:
        while time.monotonic() < end:
            name, blow = blows.draw()
            options.log(name)
            blows.struck[name] += 1
            under_way.create_task(blow)
            await asyncio.sleep(blows.dice.uniform(*BLOW_PAUSE_SECONDS))


async def _keep_committing(deployment: Deployment, over: asyncio.Event) -> None:
    dice = random.Random(f"{deployment.options.seed}:commits")
    while not over.is_set():
        await asyncio.to_thread(dice.choice(deployment.projects).change)
        await _pause(over, dice.uniform(*COMMIT_PAUSE_SECONDS) * max(1.0, 50 / len(deployment.projects)))


async def _keep_rivals(deployment: Deployment, over: asyncio.Event) -> None:
    while not over.is_set():
        for rival in deployment.rivals:
            rival.keep_alive()
        await _pause(over, 1)


async def _keep_scraping(pod: Pod, over: asyncio.Event) -> None:
    # Longer than an answer takes that gives up on the database.
    async with httpx.AsyncClient(timeout=SCRAPE_PATIENCE_SECONDS) as client:
        while not over.is_set():
            pod.notice_deaths()
            await pod.scrape(client)
            await _pause(over, SCRAPE_SECONDS)


async def _pause(over: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await over.wait()


async def _all_at_head(deployment: Deployment, what: str, since: float = 0.0) -> None:
    """Until a sync has published the head commit of each project, after the moment `since`. Raises RuntimeError where
    some never get there."""
    deadline = time.monotonic() + deployment.options.calm_patience_seconds
    connection = await asyncpg.connect(deployment.database_url, timeout=30)
    try:
        while True:
            there = {
                (each.name, each.last_commit)
                for each in await rows.repositories(connection)
                if each.last_sync_at is not None and each.last_sync_at.timestamp() > since
            }
            waiting = [each.name for each in deployment.projects if (each.name, each.head) not in there]
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"still waiting for {what}: {waiting}")
            await asyncio.sleep(0.1)
    finally:
        connection.terminate()


async def _compared(deployment: Deployment, records: rows.Records) -> tuple[list[str], int]:
    """What is not exact, and how many points a first sync makes."""
    deployment.gitlab.add_token(token_of(FRESH))
    environment = {**inherited(), "GITLAB_TOKEN": token_of(FRESH)}
    await sync_afresh(deployment.configuration(FRESH), environment, deployment.folder, deployment.target.url)
    fresh = await points_by_repository(deployment.target.url, FRESH)
    stormy = await points_by_repository(deployment.target.url, COLLECTION)
    known = {each.name: each for each in records.repositories}
    found = [f"{name}: points of no repository" for name in stormy.keys() - known.keys()]
    for project in deployment.projects:
        manifest = records.manifest[project.name]
        expected = Expected(
            name=project.name,
            id=known[project.name].id,
            head=project.head,
            last_commit=known[project.name].last_commit,
            tree=project.blobs(),
            manifest={path: blob for path, (blob, _) in manifest.items()},
            chunks={path: chunks for path, (_, chunks) in manifest.items()},
            fresh=fresh.get(project.name, []),
        )
        found += differences(expected, stormy.get(project.name, []))
    return found, sum(map(len, fresh.values()))


def _process_of(deployment: Deployment, worker: str) -> str:
    return next((name for pod in deployment.pods if (name := pod.process_of(worker))), worker)


def _orphans(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("REPOSYNC_STATE_DIR", "").startswith(str(folder / "pod-")):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
    return found


def _busy_cores(before: object, seconds: float) -> float:
    now = psutil.cpu_times()
    busy = sum(getattr(now, name) - getattr(before, name) for name in ("user", "system", "softirq"))
    return float(busy) / seconds

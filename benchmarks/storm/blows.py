"""What happens to the deployment: each blow strikes, lasts, and is over when it returns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import psutil  # type: ignore[import-untyped]

from benchmarks.storm.pods import Pod
from benchmarks.storm.projects import Project
from benchmarks.storm.proofs import Span
from benchmarks.storm.rivals import Rival
from benchmarks.storm.servers import WatchedGitLab
from benchmarks.storm.stepped_clock import write_ahead
from benchmarks.storm.volumes import Volume
from tests.fixtures.qdrant_nodes import QdrantNode
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.tcp_proxy import TcpProxy

# What a daemon may take to queue again: after a thaw or a broken connection; its pause after d seconds without a
# database is at most twice that, and ten seconds.
RECOVERY_SECONDS = 3.0
LONGEST_PAUSE_SECONDS = 10.0
CONNECT_SECONDS = 60.0
# Until a worker is seen, after a commit; a pod may have much else to do.
WORKER_PATIENCE_SECONDS = 30.0
CHANGED_FILES = 450
WORKER_KILLS = 3
# A clock that was never set, daylight saving done wrong, and what nobody notices.
CLOCK_STEPS_SECONDS = (40 * 86_400.0, 86_400.0, 3_600.0, 20.0, -20.0, -7_200.0, -86_400.0)


@dataclass
class Place:
    """A pod, its ways to the servers, and the baseline's pod beside it, which gets the same blows. `clock`: the file
    that says by how much its clock is wrong; `volume`: its state and temporary files, where they may be mounted."""

    pod: Pod
    to_redis: TcpProxy
    to_database: TcpProxy
    clock: Path
    volume: Volume | None = None
    rival: Rival | None = None

    def impair_both(self, start: float, recovery_seconds: float) -> None:
        self.pod.impair(start, recovery_seconds)
        self.impair_rival(start, recovery_seconds)

    def impair_rival(self, start: float, recovery_seconds: float) -> None:
        """The baseline needs Redis for its ticks, and no database."""
        if self.rival is not None:
            self.rival.impaired.append(Span(start, time.time() + recovery_seconds))


@dataclass
class Blows:
    """`database_url`: past the proxies. `stop_patience_seconds`: how long an orderly end may take."""

    places: Sequence[Place]
    redis: RedisServer
    gitlab: WatchedGitLab
    engine: QdrantServer | QdrantNode
    projects: Sequence[Project]
    database_url: str
    lease_seconds: float
    stop_patience_seconds: float
    dice: random.Random
    struck: Counter[str] = field(default_factory=Counter)
    _redis_busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    _database_busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    _engine_busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    _workers_busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    # Pods -----------------------------------------------------------------------------------------------------------

    async def kill(self, place: Place, down_seconds: float) -> None:
        """kill -9, and a restart some time later."""
        async with place.pod.busy:
            began = time.time()
            place.pod.kill()
            if place.rival:
                place.rival.kill()
            await asyncio.sleep(down_seconds)
            await self._start(place, began)

    async def terminate(self, place: Place, down_seconds: float) -> None:
        async with place.pod.busy:
            began = time.time()
            if place.rival:
                place.rival.kill(signal.SIGTERM)
            await place.pod.terminate(self.stop_patience_seconds)
            await asyncio.sleep(down_seconds)
            await self._start(place, began)

    async def freeze(self, place: Place, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        async with place.pod.busy:
            began = time.time()
            place.pod.freeze()
            if place.rival:
                place.rival.freeze()
            await asyncio.sleep(seconds)
            place.pod.thaw()
            if place.rival:
                place.rival.thaw()
            place.impair_both(began, RECOVERY_SECONDS)

    async def _start(self, place: Place, began: float) -> None:
        place.pod.start()
        if place.rival:
            place.rival.start()
        try:
            await place.pod.ready()
        except RuntimeError as error:
            place.pod.complaints.append(str(error))
        place.impair_both(began, RECOVERY_SECONDS)

    # Parts of a pod -------------------------------------------------------------------------------------------------

    async def kill_content_workers(self) -> None:
        """A commit so large that a worker process prepares it, and kill -9 for that worker, a few times."""
        async with self._workers_busy:
            await asyncio.to_thread(self.dice.choice(self.projects).change_many, CHANGED_FILES)
            deadline = time.monotonic() + WORKER_PATIENCE_SECONDS
            killed: set[int] = set()
            while time.monotonic() < deadline and len(killed) < WORKER_KILLS:
                for pod in [each.pod for each in self.places if each.pod.is_up]:
                    for worker in await asyncio.to_thread(pod.content_workers):
                        if worker.pid not in killed:
                            with contextlib.suppress(psutil.Error):
                                worker.kill()
                                killed.add(worker.pid)
                                self.struck["content worker killed"] += 1
                await asyncio.sleep(0.1)

    async def step_clock(self, place: Place, ahead_seconds: float, seconds: float) -> None:
        """Wrong at once, and right again at once. What that pod may miss meanwhile the others have to do."""
        async with place.pod.busy:
            began = time.time()
            write_ahead(place.clock, ahead_seconds)
            await asyncio.sleep(seconds)
            write_ahead(place.clock, 0.0)
            place.pod.impair(began, RECOVERY_SECONDS)

    async def fill_disk(self, place: Place, seconds: float) -> None:
        async with place.pod.busy:
            assert place.volume is not None
            await asyncio.to_thread(place.volume.fill)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(place.volume.make_room)

    async def start_read_only(self, place: Place, seconds: float) -> None:
        """Killed, and started where nothing may be written: it works without files of its own. Then it is undone."""
        async with place.pod.busy:
            assert place.volume is not None
            began = time.time()
            place.pod.kill()
            if place.rival:
                place.rival.kill()
            await asyncio.to_thread(place.volume.protect)
            try:
                await self._start(place, began)
                await asyncio.sleep(seconds)
            finally:
                await asyncio.to_thread(place.volume.release)

    # Qdrant ---------------------------------------------------------------------------------------------------------

    async def kill_engine(self, down_seconds: float) -> None:
        """kill -9 in whatever it writes, and back with what it had."""
        async with self._engine_busy:
            await asyncio.to_thread(self.engine.kill)
            await asyncio.sleep(down_seconds)
            await asyncio.to_thread(self.engine.start)

    # Redis ----------------------------------------------------------------------------------------------------------

    async def cut_redis(self, places: Sequence[Place]) -> None:
        began = time.time()
        for place in places:
            await asyncio.to_thread(place.to_redis.cut)
            place.impair_rival(began, RECOVERY_SECONDS)

    async def stall_redis(self, places: Sequence[Place], seconds: float) -> None:
        async with self._redis_busy:
            began = time.time()
            for place in places:
                await asyncio.to_thread(place.to_redis.stall)
            await asyncio.sleep(seconds)
            for place in places:
                await asyncio.to_thread(place.to_redis.resume)
                place.impair_rival(began, RECOVERY_SECONDS + LONGEST_PAUSE_SECONDS)

    async def restart_redis(self, down_seconds: float) -> None:
        """Killed, and empty when it comes back."""
        async with self._redis_busy:
            began = time.time()
            await asyncio.to_thread(self.redis.kill)
            await asyncio.sleep(down_seconds)
            await asyncio.to_thread(self.redis.start)
            for place in self.places:
                place.impair_rival(began, RECOVERY_SECONDS + LONGEST_PAUSE_SECONDS)

    # PostgreSQL -----------------------------------------------------------------------------------------------------

    async def cut_database(self, places: Sequence[Place]) -> None:
        began = time.time()
        for place in places:
            await asyncio.to_thread(place.to_database.cut)
            place.pod.impair(began, RECOVERY_SECONDS)

    async def stall_database(self, places: Sequence[Place], seconds: float) -> None:
        await self._hinder(places, seconds, lambda to: to.stall(), lambda to: to.resume())

    async def hold_answers_back(self, places: Sequence[Place], seconds: float) -> None:
        """The database executes a statement, and answers much later."""
        await self._hinder(places, seconds, lambda to: to.stall("answers"), lambda to: to.resume())

    async def refuse_database(self, places: Sequence[Place], seconds: float) -> None:
        await self._hinder(places, seconds, lambda to: to.down(), lambda to: to.up())

    async def _hinder(
        self,
        places: Sequence[Place],
        seconds: float,
        begin: Callable[[TcpProxy], None],
        end: Callable[[TcpProxy], None],
    ) -> None:
        async with self._database_busy:
            began = time.time()
            for place in places:
                await asyncio.to_thread(begin, place.to_database)
            await asyncio.sleep(seconds)
            for place in places:
                await asyncio.to_thread(end, place.to_database)
                place.pod.impair(began, RECOVERY_SECONDS + min(2 * seconds, LONGEST_PAUSE_SECONDS))

    async def terminate_backends(self) -> None:
        """Every connection of every daemon ends in the middle of whatever it does."""
        began = time.time()
        connection = await self._connected()
        try:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'reposync'"
            )
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            pass  # the server crashed at this moment, by the blow below
        finally:
            connection.terminate()
        for place in self.places:
            place.pod.impair(began, RECOVERY_SECONDS)

    async def crash_database(self) -> None:
        """One server process is killed: PostgreSQL throws everybody out and recovers from its log."""
        async with self._database_busy:
            began = time.time()
            connection = await self._connected()
            try:
                os.kill(await connection.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)
                while not connection.is_closed():
                    await asyncio.sleep(0.01)
            finally:
                connection.terminate()
            (await self._connected()).terminate()
            down = time.time() - began
            for place in self.places:
                place.pod.impair(began, RECOVERY_SECONDS + min(2 * down, LONGEST_PAUSE_SECONDS))

    async def _connected(self) -> asyncpg.Connection:
        """As soon as the server takes connections: it may be recovering from another blow."""
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                return await asyncpg.connect(self.database_url, timeout=CONNECT_SECONDS)
            except (OSError, asyncpg.PostgresError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)

    # Chance ---------------------------------------------------------------------------------------------------------

    def draw(self) -> tuple[str, Coroutine[None, None, None]]:
        """Any one blow, with its name before it. Processes that another blow has in hand are left alone."""
        dice, lease = self.dice, self.lease_seconds
        place = dice.choice(self.places)
        some = list(self.places) if dice.random() < 0.3 else [place]
        free = [each for each in self.places if not each.pod.busy.locked()]
        weights = {
            name: weight
            for name, weight in _WEIGHTS.items()
            if (free or name not in _ON_PODS) and (place.volume is not None or name not in _ON_VOLUMES)
        }
        name = dice.choices(list(weights), list(weights.values()))[0]
        if name in _ON_PODS:
            place = dice.choice(free)
        down, long = dice.uniform(0.2, 2 * lease), lease + dice.uniform(0.5, lease)
        short = dice.uniform(0.5, 1.5 * lease)
        ahead = dice.choice(CLOCK_STEPS_SECONDS)
        acts: dict[str, Callable[[], Coroutine[None, None, None]]] = {
            "kill -9": lambda: self.kill(place, down),
            "SIGTERM": lambda: self.terminate(place, down / 4),
            "freeze past the lease": lambda: self.freeze(place, long),
            "clock steps": lambda: self.step_clock(place, ahead, long),
            "disk full": lambda: self.fill_disk(place, long),
            "started read-only": lambda: self.start_read_only(place, long),
            "content workers: kill -9": lambda: self.kill_content_workers(),
            "Qdrant: kill -9": lambda: self.kill_engine(down / 2),
            "Redis: connections cut": lambda: self.cut_redis(some),
            "Redis: stalled": lambda: self.stall_redis(some, short),
            "Redis: restarted empty": lambda: self.restart_redis(dice.uniform(0, lease)),
            "PostgreSQL: connections cut": lambda: self.cut_database(some),
            "PostgreSQL: stalled": lambda: self.stall_database(some, short),
            "PostgreSQL: answers held back": lambda: self.hold_answers_back(some, short),
            "PostgreSQL: unreachable": lambda: self.refuse_database(some, short),
            "PostgreSQL: backends terminated": lambda: self.terminate_backends(),
            "PostgreSQL: crash and recovery": lambda: self.crash_database(),
        }
        return name, acts[name]()


_WEIGHTS = {
    "kill -9": 6.0,
    "SIGTERM": 2.0,
    "freeze past the lease": 4.0,
    "clock steps": 3.0,
    "disk full": 1.0,
    "started read-only": 0.5,
    "content workers: kill -9": 0.5,
    "Qdrant: kill -9": 1.0,
    "Redis: connections cut": 1.0,
    "Redis: stalled": 1.5,
    "Redis: restarted empty": 1.5,
    "PostgreSQL: connections cut": 2.0,
    "PostgreSQL: stalled": 2.0,
    "PostgreSQL: answers held back": 2.0,
    "PostgreSQL: unreachable": 1.0,
    "PostgreSQL: backends terminated": 2.0,
    "PostgreSQL: crash and recovery": 1.0,
}
_ON_VOLUMES = {"disk full", "started read-only"}
_ON_PODS = {"kill -9", "SIGTERM", "freeze past the lease", "clock steps", *_ON_VOLUMES}

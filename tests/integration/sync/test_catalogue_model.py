"""Pods with different registry documents, people and workers, in any order: a repository has one definition at a time,
the one that the rule of decision 0011 gives it, and after a sync its index holds the files of that definition."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from reposync.app.application import Application
from reposync.app.opening import open_application
from reposync.catalog.apply import registry_in_force
from reposync.config.database_url import sqlite_url
from reposync.config.settings import Settings
from reposync.runs.endings import ExecutionPolicy
from reposync.store.endings import Finish
from reposync.store.run import Ask, Run, RunFigures
from reposync.store.status import RunStatus, RunTrigger
from tests.fixtures.databases import upgraded_sqlite_file  # noqa: F401
from tests.fixtures.examples import SLOW_EXAMPLES
from tests.fixtures.qdrant_targets import Target, collections
from tests.fixtures.repositories import GitRepository
from tests.integration.catalog.test_apply import Pod

NAMES = ("alpha", "beta")
PLACES = ("one", "two")
FILES = ("a", "b")

Content = Mapping[str, str]
"""Name -> place, as a registry file has it."""

names = st.sampled_from(NAMES)
files = st.sampled_from(FILES)
contents = st.dictionaries(names, st.sampled_from(PLACES))


class Model:
    """What decision 0011 says becomes of the rows."""

    def __init__(self) -> None:
        self.in_force: Content | None = None
        self.applied_from = ""
        self.superseded: list[Content] = []
        self.origin: dict[str, str] = {}
        self.place: dict[str, str] = {}
        self.left: set[str] = set()
        self.paused: set[str] = set()

    def applies(
        self, file: str, content: Content, *, instead_of: Content | None = None, on_request: bool = False
    ) -> bool:
        now = self.in_force
        if content != now:
            if content in self.superseded and not on_request and (now is None or instead_of != now):
                return False
            self.superseded = [each for each in self.superseded if each != content] + ([] if now is None else [now])
            self.in_force, self.applied_from = content, file
        for name, place in content.items():
            self.origin[name], self.place[name] = self.applied_from, place
            self.left.discard(name)
        for name in self.origin.keys() - content.keys():
            self.left.add(name)
            self.paused.discard(name)
        return True


class Catalogue(RuleBasedStateMachine):
    folder: Path
    database: Path
    qdrant: Target
    prefix: str
    loop: asyncio.AbstractEventLoop
    examples = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.home = self.folder / f"example-{next(self.examples)}"
        self.home.mkdir()
        shutil.copy(self.database, self.home / "reposync.db")
        self.model = Model()
        self.repositories = {place: GitRepository.create(self.home / f"{place}.git") for place in PLACES}
        self.numbers = itertools.count()
        for place in PLACES:
            self.commits(place)
        self.open_requests: dict[str, str] = {}
        self.stack = contextlib.AsyncExitStack()
        environment = {
            "REPOSYNC_STATE_DIR": str(self.home / "state"),
            "REPOSYNC_DATABASE_URL": sqlite_url(self.home / "reposync.db"),
            "REPOSYNC_QDRANT_URL": self.qdrant.url,
        }
        self.app: Application = self.do(
            self.stack.enter_async_context(open_application(Settings.from_environment(environment)))
        )
        self.seen: dict[str, Pod] = {}
        self.contents_seen: dict[str, Content] = {}

    def do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(what)

    def teardown(self) -> None:
        self.do(self.stack.aclose())

    def text(self, content: Content) -> str:
        entries = "".join(
            f"  - {{name: {name}, path: '{self.repositories[place].path}', schedule: yearly}}\n"
            for name, place in sorted(content.items())
        )
        return (
            f"{self.qdrant.registry}embedding: {{provider: none}}\n"
            f"defaults: {{collection: {self.prefix}-{self.home.name}}}\n"
            f"repositories:\n{entries or '  []'}\n"
        )

    def pod(self, file: str) -> Pod:
        return self.seen.setdefault(file, Pod(self.app.database, self.home / file / "repositories.yaml"))

    def adopt(self) -> None:
        self.app.adopt(self.do(registry_in_force(self.app.database)))

    # Registry files --------------------------------------------------------------------------------------------------

    @initialize(file=files)
    def begin(self, file: str) -> None:
        self.pod_starts(file, dict(zip(NAMES, PLACES, strict=True)))

    @rule(file=files, content=contents)
    def pod_starts(self, file: str, content: Content) -> None:
        in_force = self.do(self.pod(file).starts(self.text(content)))
        assert in_force == self.model.applies(file, content)
        self.contents_seen[file] = content
        self.adopt()

    @precondition(lambda self: self.contents_seen)
    @rule(data=st.data(), content=contents)
    def running_pod_sees_its_file_change(self, data: st.DataObject, content: Content) -> None:
        file = data.draw(st.sampled_from(sorted(self.contents_seen)))
        in_force = self.do(self.pod(file).sees_change(self.text(content)))
        assert in_force == self.model.applies(file, content, instead_of=self.contents_seen[file])
        self.contents_seen[file] = content
        self.adopt()

    @rule(file=files, content=contents)
    def person_applies(self, file: str, content: Content) -> None:
        assert self.do(self.pod(file).requests(self.text(content))).applied
        self.model.applies(file, content, on_request=True)
        self.adopt()

    # People, clocks and pushes ---------------------------------------------------------------------------------------

    @rule(place=st.sampled_from(PLACES))
    def commits(self, place: str) -> None:
        self.repositories[place].commit({f"{place}-{next(self.numbers)}.py": b"x = 1\n"})

    def registered(self) -> list[str]:
        return sorted(name for name in self.model.origin if name not in self.model.left)

    @precondition(lambda self: self.registered())
    @rule(data=st.data(), trigger=st.sampled_from(list(RunTrigger)), full=st.booleans())
    def asks(self, data: st.DataObject, trigger: RunTrigger, full: bool) -> None:
        name = data.draw(st.sampled_from(self.registered()))
        run, _ = self.do(self.app.runs.enqueue(name, Ask(trigger, f"somebody {next(self.numbers)}", full=full)))
        self.open_requests[run.id] = name

    @precondition(lambda self: self.open_requests)
    @rule(data=st.data())
    def takes_back(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.open_requests)))
        self.do(self.app.runs.interrupt(run_id))
        del self.open_requests[run_id]

    @precondition(lambda self: self.registered())
    @rule(data=st.data())
    def pauses(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.registered()))
        self.do(self.app.repositories.pause(name, "being moved"))
        self.model.paused.add(name)

    @precondition(lambda self: self.model.paused)
    @rule(data=st.data())
    def resumes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.paused)))
        self.do(self.app.repositories.resume(name))
        self.model.paused.discard(name)

    # Workers ---------------------------------------------------------------------------------------------------------

    @rule()
    def a_worker_dies_with_its_run(self) -> None:
        run = self.do(self.app.runs.claim("pod:1:dead", 60.0))
        if run is not None:
            self.do(self.app.runs.expire(run))

    @rule()
    def works_off(self) -> None:
        while (run := self.do(self.app.runs.claim(self.app.worker, 60.0))) is not None:
            ended = self.do(self._executed(run))
            if ended.status is RunStatus.COMPLETED:
                self.index_is_of_the_definition(ended.repository)
        self.open_requests.clear()

    @precondition(lambda self: self.registered())
    @rule(data=st.data(), full=st.booleans())
    def syncs(self, data: st.DataObject, full: bool) -> None:
        self.asks(data, RunTrigger.COMMAND, full)
        self.works_off()

    async def _executed(self, run: Run) -> Run:
        row = await self.app.repositories.by_id(run.repository_id)
        if row.has_left:
            return await self.app.runs.end(
                run, Finish("REPOSITORY_NOT_FOUND", "It left.", status=RunStatus.CANCELLED), RunFigures()
            )
        execution = self.app.execution(run, ExecutionPolicy(lease_seconds=60.0))
        return await self.app.execute(execution)

    def index_is_of_the_definition(self, name: str) -> None:
        row = self.do(self.app.repositories.get(name))
        manifest = self.do(self.app.manifests.load(row.live_version or row.id))
        listed = self.repositories[self.model.place[name]].ls_tree()
        assert set(manifest) == {each.path.decode() for each in listed}
        hits = self.do(self.app.searching.search("x", repository=name, limit=50))
        assert {hit.path for hit in hits} == set(manifest)

    # What always holds -----------------------------------------------------------------------------------------------

    @invariant()
    def each_name_has_the_one_definition_that_the_rule_gives_it(self) -> None:
        rows = {row.name: row for row in self.do(self.app.repositories.list())}
        assert rows.keys() == self.model.origin.keys()
        for name, row in rows.items():
            assert row.location == str(self.repositories[self.model.place[name]].path)
            assert row.resolved is not None and row.resolved["path"] == row.location
            assert row.origin_file == str(self.home / self.model.origin[name] / "repositories.yaml")
            assert row.has_left == (name in self.model.left)
            assert (row.paused_reason is not None) == (name in self.model.paused)

    @invariant()
    def at_most_one_run_of_each_kind(self) -> None:
        for status in (RunStatus.RUNNING, RunStatus.QUEUED, RunStatus.BLOCKED):
            runs = self.do(self.app.history.runs(status=status))
            assert len({run.repository_id for run in runs}) == len(runs)


def test_a_repository_has_one_definition_at_a_time_and_its_index_is_of_it(
    tmp_path: Path,
    qdrant: Target,
    upgraded_sqlite_file: Path,  # noqa: F811
) -> None:
    with asyncio.Runner() as runner, collections(qdrant) as prefix:

        class Kept(Catalogue):
            pass

        Kept.folder, Kept.database, Kept.loop = tmp_path, upgraded_sqlite_file, runner.get_loop()
        Kept.qdrant, Kept.prefix = qdrant, prefix
        run_state_machine_as_test(Kept, settings=settings(max_examples=SLOW_EXAMPLES, stateful_step_count=25))

"""The model of an index: what a person may rely on, whatever is pushed, configured, answered wrongly or killed.

After a completed run the live version holds what a fresh index of that commit would; files that could not be read keep
what they had. At every other moment each file that was searchable, and that no commit since took away, still is. Points
of other versions are never found. `test_index_model` runs it briefly, `benchmarks.index_model` for as long as wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from reposync.app.application import Application
from reposync.errors import DeletionBlocked
from reposync.runs.execution import Execution
from reposync.store.endings import STOPPING
from reposync.store.run import Run
from reposync.store.status import RunStatus
from reposync.store.tables import IndexVersion
from tests.fixtures.boundaries import Fault
from tests.fixtures.index_world import Files, IndexWorld, Point, Setup, without_links
from tests.fixtures.repositories import Content, Executable, Symlink
from tests.integration.sync.index_events import (
    ANSWERS,
    ATTRIBUTES,
    EMBEDDING_ANSWERS,
    SETTINGS,
    Interruption,
    branches,
    code,
    contents,
    interruptions,
    paths,
)


@dataclass
class Served:
    """The live version as a run left it. `tried`: what its later runs may have brought into it, as far as each came."""

    version: str
    setup: Setup
    files: Files
    state: tuple[object, ...]
    tried: list[tuple[Files, frozenset[str]]]


class Index(RuleBasedStateMachine):
    """`make`: an empty world. `steps`, `runs`: of all examples."""

    loop: ClassVar[asyncio.AbstractEventLoop]
    make: ClassVar[Callable[[], contextlib.AbstractContextManager[IndexWorld]]]
    steps: ClassVar[int] = 0
    statuses: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.resources = contextlib.ExitStack()
        self.world = self.resources.enter_context(self.make())
        self.setup = Setup()
        self.world.configure(self.setup)
        self.served: Served | None = None
        self.building: dict[tuple[object, ...], list[Files]] = {}
        self.app: Application | None = None
        self.app_resources = contextlib.AsyncExitStack()

    def do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(what)

    def teardown(self) -> None:
        """Whatever happened, a run without faults ends exact: unless a person has to decide."""
        try:
            if self.app is not None and self.world.head(self.setup) is not None:
                self.world.quiet()
                run = self.do(self._sync(approved=True))
                assert run.status == "completed", f"{run.error_code}: {run.error_message}"
                assert run.files_failed == 0
        finally:
            self.world.quiet()
            self.do(self.app_resources.aclose())
            self.world.drop()
            self.resources.close()

    # Histories -----------------------------------------------------------------------------------------------------

    def commit(self, files: dict[bytes, Content], project: int | None = None, **options: Any) -> None:
        self.world.repositories[self.setup.project if project is None else project].commit(files, **options)

    def files(self, branch: str) -> dict[bytes, Content]:
        """Of the configured project."""
        if self.world.repositories[self.setup.project].head(branch) is None:
            return {}
        return self.files_of(branch)

    def files_of(self, revision: str) -> dict[bytes, Content]:
        rows = self.world.repositories[self.setup.project].ls_tree(revision)
        return {row.path: self.world.read(self.setup.project, row.sha) for row in rows if row.kind == "blob"}

    @initialize(files=st.dictionaries(paths, contents, min_size=2, max_size=6), words_first=st.booleans())
    def begin(self, files: dict[bytes, bytes], words_first: bool) -> None:
        if words_first:
            self.resources.enter_context(patch("reposync.sync.sync_run.WORDS_FIRST_FILES", 1))
        for project in range(2):
            self.commit({**files, b"p%d.py" % project: code("project", 3)}, project)
            self.commit({b"only/other.py": code("branch", 5)}, project, branch="other", parents=[])
        self.do(self._sync())

    @rule(files=st.dictionaries(paths, contents | st.none(), min_size=1, max_size=4), branch=branches)
    def push(self, files: dict[bytes, bytes | None], branch: str) -> None:
        present = self.files(branch)
        self.commit({path: each for path, each in files.items() if each is not None or path in present}, branch=branch)

    @rule(data=st.data(), to=paths, branch=branches, keep=st.booleans())
    def rename_or_copy(self, data: st.DataObject, to: bytes, branch: str, keep: bool) -> None:
        present = self.files(branch)
        if present:
            path = data.draw(st.sampled_from(sorted(present)))
            self.commit({**({} if keep or path == to else {path: None}), to: present[path]}, branch=branch)

    @rule(path=paths, kind=st.sampled_from(["symlink", "executable", "folder"]), content=contents)
    def change_type(self, path: bytes, kind: str, content: bytes) -> None:
        made: Content = Symlink(b"a.py") if kind == "symlink" else Executable(content)
        if kind == "folder":
            present = self.files("main")
            self.commit({**({path: None} if path in present else {}), path + b"/in.py": content})
        else:
            self.commit({path: made})

    @rule(content=st.sampled_from(ATTRIBUTES), folder=st.sampled_from([b"", b"lib/"]))
    def attributes(self, content: bytes, folder: bytes) -> None:
        self.commit({folder + b".gitattributes": content})

    @rule(data=st.data(), revert=st.booleans())
    def go_back(self, data: st.DataObject, revert: bool) -> None:
        """By a commit, or by a force-push."""
        repository = self.world.repositories[self.setup.project]
        past = repository.git("rev-list", "main").decode().split()
        sha = data.draw(st.sampled_from(past[:8]))
        if not revert:
            return repository.force(sha)
        self.commit(self.files_of(sha), replace=True)

    @rule(files=st.dictionaries(paths, contents, max_size=3), project=st.sampled_from([0, 1]))
    def start_over(self, files: dict[bytes, bytes], project: int) -> None:
        """A force-push of another history; of no file at all, too."""
        self.commit(dict(files), project, parents=[], replace=True)

    @rule(branch=branches)
    def change_default_branch(self, branch: str) -> None:
        self.world.repositories[self.setup.project].set_head(branch)

    # Settings ------------------------------------------------------------------------------------------------------

    @rule(change=st.sampled_from(SETTINGS))
    def configure(self, change: dict[str, Any]) -> None:
        self.setup = replace(self.setup, **change)
        self.world.configure(self.setup)
        self.do(self._close())

    @rule()
    def restart(self) -> None:
        self.do(self._close())

    # Runs ----------------------------------------------------------------------------------------------------------

    @rule(approved=st.booleans())
    def sync(self, approved: bool) -> None:
        run = self.do(self._sync(approved=approved))
        if (run.status, run.error_code) == ("cancelled", DeletionBlocked.code):
            # A repository has one blocked run: an earlier one waits for this one, too.
            assert self.app is not None
            (run,) = self.do(self.app.history.runs(status=RunStatus.BLOCKED))
        assert run.status in ("completed", "blocked"), f"{run.status}: {run.error_code}: {run.error_message}"
        assert run.files_failed == 0

    @rule(answer=st.sampled_from(sorted(ANSWERS)), refuse_git=st.booleans(), full=st.booleans())
    def sync_with_bad_answers(self, answer: str, refuse_git: bool, full: bool) -> None:
        if refuse_git:
            self.world.server.faults.refuse_git()
        ANSWERS[answer](self.world.server.faults)
        unproven = refuse_git and "listing" in answer
        self.do(self._sync(full=full, unproven=unproven))
        if unproven:
            # Rows of the root may have been missing, without any sign: the next commit brings them.
            self.commit({b"later.py": b"later = %d\n" % self.steps})

    @rule(answer=st.sampled_from(EMBEDDING_ANSWERS), full=st.booleans())
    def sync_with_a_bad_model(self, answer: tuple[int, int], full: bool) -> None:
        self.world.embeddings.answer_next(answer[0], times=answer[1])
        self.do(self._sync(full=full))

    @rule(interruption=interruptions, full=st.booleans(), approved=st.booleans())
    def sync_and_be_interrupted(self, interruption: Interruption, full: bool, approved: bool) -> None:
        self.do(self._sync(full=full, approved=approved, interruption=interruption))

    @rule(interruption=interruptions, answer=st.sampled_from(sorted(ANSWERS)))
    def sync_with_bad_answers_and_be_interrupted(self, interruption: Interruption, answer: str) -> None:
        ANSWERS[answer](self.world.server.faults)
        self.do(self._sync(interruption=interruption))

    # What it comes to ----------------------------------------------------------------------------------------------

    async def _opened(self) -> Application:
        if self.app is None:
            self.app = await self.app_resources.enter_async_context(self.world.opened())
        return self.app

    async def _close(self) -> None:
        resources, self.app_resources, self.app = self.app_resources, contextlib.AsyncExitStack(), None
        await resources.aclose()

    async def _sync(
        self,
        *,
        full: bool = False,
        approved: bool = False,
        unproven: bool = False,
        interruption: Interruption | None = None,
    ) -> Run:
        """`unproven`: it cannot be known whether the listing has all files."""
        app = await self._opened()
        commit = self.world.head(self.setup)
        if commit is not None:
            self._note_attempt(commit)
        begun = self._interrupting(app, interruption) if interruption is not None else lambda execution, task: None
        run = await self.world.run(app, full=full, approved=approved, begun=begun)
        self.world.quiet()
        type(self).steps += 1
        self.statuses[str(run.status)] = self.statuses.get(str(run.status), 0) + 1
        await self._check(app, run, commit, unproven)
        if interruption is not None and interruption.how in ("cancelled", "handed back", "taken over"):
            await self._close()
        return run

    def _of_live(self) -> Setup | None:
        """What the live version is made of, if a run brings it to the head before it builds a different one."""
        if self.served is None or self.served.setup.key == self.setup.key:
            return None
        made, rules = self.served.setup, ("include", "exclude", "keep_retired")
        if (made.project, made.branch) != (self.setup.project, self.setup.branch):
            return None
        return replace(made, **{name: getattr(self.setup, name) for name in rules})

    def _note_attempt(self, commit: str) -> None:
        """What the run may bring into the versions that it works on."""
        for setup in filter(None, (self.setup, self._of_live())):
            expected = self.world.expected(setup, commit)
            self.building.setdefault(setup.key, []).append(expected)
            if self.served is not None and setup.key == self.served.setup.key:
                self.served.tried.append((expected, frozenset(self.world.tree(setup, commit))))

    def _interrupting(
        self, app: Application, interruption: Interruption
    ) -> Callable[[Execution, asyncio.Task[Run]], None]:
        def begun(execution: Execution, task: asyncio.Task[Run]) -> None:
            boundaries = self.world.boundaries
            if interruption.how in ("refused", "lost", "down"):
                return boundaries.strike(interruption.at, Fault(interruption.how))

            def happen() -> None:
                if interruption.how == "cancelled":
                    task.cancel()
                elif interruption.how == "handed back":
                    execution.interrupt(STOPPING)

            def call() -> None:
                if interruption.how == "taken over":
                    asyncio.run_coroutine_threadsafe(app.runs.expire(execution.run), self.loop).result(30)
                    taken = app.runs.claim("another", 0.0, run_id=execution.run.id)
                    asyncio.run_coroutine_threadsafe(taken, self.loop).result(30)
                else:
                    self.loop.call_soon_threadsafe(happen)

            boundaries.strike(interruption.at, Fault.PASSED, call)

        return begun

    # What always holds ---------------------------------------------------------------------------------------------

    async def _check(self, app: Application, run: Run, commit: str | None, unproven: bool) -> None:
        live = await self.world.live(app)
        if live is None:
            assert run.status != "completed"
            return
        if commit is not None:
            assert run.files_processed <= len(self.world.tree(self.setup, commit)) * max(1, run.attempt)
        of_live = self._of_live() if self.served is not None and live.id == self.served.version else None
        wanted = self.setup if of_live is None else of_live
        assert of_live is None or run.status != "completed", "other settings are live than are configured"
        published = self.served is None or _state(live) != self.served.state
        if run.status == "completed" or published:
            assert commit is not None
            assert live.commit_sha == commit or live.partial_commit == commit
            await self._check_exact(app, run, live, wanted, commit, unproven)
        else:
            await self._check_between(app, live)
        await self._check_search(app, live)
        if run.status == "completed":
            assert live.meaning_pending is None and not self.world.without_vectors(live.id)

    async def _check_exact(
        self, app: Application, run: Run, live: IndexVersion, wanted: Setup, commit: str, unproven: bool
    ) -> None:
        points = self.world.points()
        mine = {path: frozenset(each) for path, each in points.get(live.id, {}).items()}
        expected = self.world.expected(wanted, commit)
        rows = await app.manifests.load(live.id)
        failed = {path for path, row in rows.items() if row.is_outdated or row.skip_reason == "failed"}
        assert run.status != "completed" or run.files_failed == len(failed)
        before = self.served.files if self.served is not None else {}
        unlisted = expected.keys() - mine.keys() - before.keys() if unproven else set()
        wrong = _difference(mine, expected, failed | unlisted)
        assert not wrong, wrong
        tried = self.building.get(wanted.key, [])
        for path in failed:
            had, has = without_links(before.get(path, frozenset())), without_links(mine.get(path, frozenset()))
            assert has in [had, *(without_links(each.get(path, frozenset())) for each in tried)], f"{path} is neither"
            assert has or not had, f"{path} could not be read, and lost what the index had of it"
        versions = await self.world.versions(app)
        if run.status == "completed":
            assert points.keys() <= {each.id for each in versions}, "points of a version that nobody knows"
        self.served = Served(live.id, wanted, mine, _state(live), [])
        building = {} if wanted.key == self.setup.key else self.building
        self.building = building | {wanted.key: [mine]}

    async def _check_between(self, app: Application, live: IndexVersion) -> None:
        """Old or new, never neither."""
        served = self.served
        assert served is not None and served.version == live.id
        points = self.world.points().get(live.id, {})
        if not served.tried:
            assert {path: frozenset(each) for path, each in points.items()} == served.files
            return
        for path, had in served.files.items():
            if all(path in expected for expected, _ in served.tried):
                has = without_links(points.get(path, set()))
                whole = [without_links(had), *(without_links(expected[path]) for expected, _ in served.tried)]
                assert any(each <= has for each in whole), f"{path} is neither what it was nor what it is to be"

    async def _check_search(self, app: Application, live: IndexVersion) -> None:
        hits = await app.searching.search("return value of alpha beta gamma", limit=100)
        assert {hit.version for hit in hits} <= {live.id}, "points of a version that is not live were found"


def _state(live: IndexVersion) -> tuple[object, ...]:
    """Another one after each run that published something new."""
    return live.id, live.commit_sha, live.partial_commit, live.live_at


def _difference(found: Files, expected: Files, but_for: set[str]) -> dict[str, list[list[object]]]:
    """Path -> what is too much, and what is missing."""
    empty: frozenset[Point] = frozenset()
    return {
        path: [sorted(here - there), sorted(there - here)]
        for path in sorted((found.keys() | expected.keys()) - but_for)
        if (here := found.get(path, empty)) != (there := expected.get(path, empty))
    }

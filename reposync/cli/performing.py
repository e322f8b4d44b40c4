"""How commands act: they perform operations, beside a daemon of the same state folder over HTTP, otherwise here, and
follow a run to its end, whoever executes it."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import urlencode

from reposync import operations
from reposync.cli.commands import current_user, interrupt_held, interrupt_on_sigterm, settings
from reposync.cli.output import Result, note, prints, warn
from reposync.cli.progress import Display, open_display
from reposync.cli.remote import RemoteServer
from reposync.cli.running_daemon import SLOW_SECONDS, TIMEOUT_SECONDS, RunningDaemon, running_daemon
from reposync.errors import CANNOT_HERE, RepoSyncError, StoreUnavailable
from reposync.store.status import RunStatus

if TYPE_CHECKING:
    import asyncio

    from pydantic import BaseModel

    from reposync.app.application import Application
    from reposync.operations.core import Operation
    from reposync.operations.following import Watch
    from reposync.operations.runs import Run, RunDetail

FOLLOW_SECONDS = 0.3
MOST_BARS = 12
OUTAGE_SECONDS = 60.0
"""How long `Performer.watch` waits for an unreachable database."""

A = TypeVar("A", bound="BaseModel")
T = TypeVar("T")
P = ParamSpec("P")
PageT = TypeVar("PageT", bound="BaseModel")
RunT = TypeVar("RunT", bound="Run")


class Performer:
    """Performs the operations of one command. The application is opened when an operation is first performed here.
    `server`: performs them all."""

    def __init__(self, server: RemoteServer | None = None) -> None:
        self._server = server
        self._settings = settings()
        self._user = current_user()
        self._resources = contextlib.AsyncExitStack()
        self._loop: asyncio.Runner | None = None
        self._app: Application | None = None

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run(self._resources.aclose())
            self._loop.close()

    @property
    def is_remote(self) -> bool:
        """Whether `--server` names a daemon elsewhere."""
        return self._server is not None

    @property
    def daemon(self) -> RunningDaemon | None:
        """The daemon that runs at this moment."""
        return running_daemon(self._settings)

    def has_workers(self) -> bool:
        """Whether somebody else executes what is requested."""
        daemon = self.daemon
        if daemon is not None and daemon.has_workers:
            return True
        return bool(self.here(lambda app: app.workers.alive()))

    def __call__(
        self, operation: Operation[A, T], arguments: A | Mapping[str, Any] | None = None, /, **named: str
    ) -> T:
        """The document of the operation. `named`: what its path names. Raises what the operation does, here or in the
        daemon, and UsageError for wrong arguments."""
        from pydantic import BaseModel, TypeAdapter

        core = operations.core
        if not isinstance(arguments, BaseModel):
            arguments = core.read_arguments(operation.arguments, arguments or {})
        if self._server is not None:
            answer = self._asked(self._server.request, operation, arguments, named)
        else:
            daemon = self.daemon
            ask = partial(daemon.request, user=self._user) if daemon is not None else None
            answer = None if ask is None else self._asked(ask, operation, arguments, named)
        if answer is None:
            actor = core.Actor.at_terminal(self._user)
            return self.here(lambda app: operation(app, actor, arguments, **named), with_engine=operation.uses_index)
        document: T = TypeAdapter(operation.answer).validate_json(answer)
        return document

    def _asked(
        self,
        ask: Callable[..., bytes | None],
        operation: Operation[Any, Any],
        arguments: BaseModel,
        named: Mapping[str, str],
    ) -> bytes | None:
        path = operations.paths.address_of(operation, **named)
        body = arguments.model_dump(mode="json", exclude_defaults=True)
        timeout = SLOW_SECONDS if operation.is_slow else TIMEOUT_SECONDS
        if operation.method not in ("GET", "DELETE"):
            return ask(operation.method, path, body, timeout_seconds=timeout)
        if operation.executes:
            body["wait"] = 0  # the command follows the run itself
        query = urlencode({key: str(value).lower() if value is True else value for key, value in body.items()}, True)
        return ask(operation.method, f"{path}?{query}", timeout_seconds=timeout)

    def all_pages(
        self,
        operation: Operation[A, PageT],
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        limit: float = math.inf,
        **named: str,
    ) -> PageT:
        """The first `limit` items of a list, or all, in one document, with the cursor of what follows them."""
        whole: Any = None
        while whole is None or (whole.next_cursor is not None and len(whole.items) < limit):
            items, cursor = ([], None) if whole is None else (whole.items, whole.next_cursor)
            size = min(operations.fields.MAX_PAGE_ITEMS, limit - len(items))
            page: Any = self(operation, {**(arguments or {}), "limit": size, "cursor": cursor}, **named)
            whole = page.model_copy(update={"items": [*items, *page.items]})
        return cast("PageT", whole)

    def request(
        self, operation: Operation[A, RunT], arguments: A | Mapping[str, Any] | None = None, /, **named: str
    ) -> RunT:
        """The run that the operation requests. Ctrl-C waits for the answer and then takes the run back, which would be
        executed otherwise; a second one ends the command at once. Raises as a call does."""
        with interrupt_held() as was_interrupted:
            run = self(operation, arguments, **named)
        if was_interrupted():
            self.withdraw(run)
            raise KeyboardInterrupt
        return run

    def follow(self, run: Run, others: Sequence[Run] = ()) -> RunDetail:
        """The run when it has ended, or has failed here and continues because somebody else asked for it too. Its
        progress is displayed. Without workers, or if they cannot execute it, it is executed here. Ctrl-C takes it with
        the command, unless somebody else asked for it too. The progress of `others` is displayed, too. Raises
        LeaseLost, StoreUnavailable."""
        try:
            return self._followed(run, self._execute, others=others)
        except KeyboardInterrupt:
            self.withdraw(run)
            raise

    def watch(self, run: Run) -> RunDetail:
        """The run when it has ended, whichever process executes it. Its progress is displayed. Raises StoreUnavailable
        if the database is unreachable for a minute."""
        return self._followed(run, lambda run, display: False, outage_seconds=OUTAGE_SECONDS)

    def _followed(
        self,
        run: Run,
        execute: Callable[[Run, Watch], bool],
        *,
        others: Sequence[Run] = (),
        outage_seconds: float = 0.0,
    ) -> RunDetail:
        """`execute`: see `_execute`."""
        latest, failures, read_at = run, None, time.monotonic()
        with open_display() as display:
            while True:
                has_ended = execute(latest, partial(display.update, run.repository))
                try:
                    latest, read_at = self(operations.runs.get_run, run_id=run.id), time.monotonic()
                except StoreUnavailable:
                    if time.monotonic() - read_at > outage_seconds:
                        raise
                    time.sleep(FOLLOW_SECONDS)
                    continue
                if has_ended or latest.is_final:
                    return latest
                if latest.status == RunStatus.RETRYING and failures is not None and latest.failures > failures:
                    what = f"attempt {latest.attempt} failed and will be retried: {latest.error_message}"
                    warn(run.repository, what)
                failures = latest.failures
                display.update(run.repository, operations.following.displayed_progress(latest))
                if others and display.shows_others:
                    self._show_running(others, display, run.repository)
                time.sleep(FOLLOW_SECONDS)

    def _show_running(self, runs: Sequence[Run], display: Display, followed: str) -> None:
        with contextlib.suppress(StoreUnavailable):
            page = self(operations.runs.history, {"status": [RunStatus.RUNNING], "limit": MOST_BARS})
            ids = {run.id for run in runs}
            running = {run.repository: run for run in page.items if run.id in ids}
            display.keep([followed, *running])
            for name, run in running.items():
                display.update(name, operations.following.displayed_progress(run))

    def _execute(self, run: Run, display: Watch) -> bool:
        """Whether the run was executed here, or has ended."""
        daemon = self.daemon
        if daemon is not None and daemon.has_workers and not (run.is_waiting and run.error_code in CANNOT_HERE):
            return run.is_final
        from reposync.app.command_runs import execute_for_command

        return self.here(lambda app: execute_for_command(app, run.id, display), with_engine=True)

    def withdraw(self, run: Run) -> None:
        """The command ends: its run does, too, unless somebody else asked for it."""
        with contextlib.suppress(RepoSyncError):
            self(operations.runs.cancel, {"if_unshared": True}, run_id=run.id)

    def here(self, act: Callable[[Application], Awaitable[T]], *, with_engine: bool = False) -> T:
        """The result of `act` with the application of this process; Ctrl-C and SIGTERM cancel it. `with_engine`: start
        the embedded engine while the libraries are imported. Raises RepoSyncError."""
        import asyncio

        loop = self._loop = self._loop or asyncio.Runner()
        app = self._app = self._app or loop.run(self._opened(with_engine=with_engine))

        async def main() -> T:
            return await act(app)

        try:
            return loop.run(main())
        except RepoSyncError as error:
            error.redact(app.secrets.redact)
            raise

    async def _opened(self, *, with_engine: bool) -> Application:
        from reposync.app.opening import open_application

        migrates = self._settings.has_own_database
        opened = open_application(self._settings, with_engine=with_engine, migrates=migrates)
        app = await self._resources.enter_async_context(opened)
        if self._settings.has_own_database and os.environ.get("DATABASE_URL") and not await app.repositories.names():
            note(
                f"note: nothing is registered in {self._settings.state_dir}. DATABASE_URL is used by `serve`, `apply` "
                "and `db` only: set REPOSYNC_DATABASE_URL for all commands."
            )
        return app


def performs(act: Callable[Concatenate[Performer, P], Result]) -> Callable[P, None]:
    """As `prints`, for a command that performs operations; with `server_option`, those of a different machine."""

    @prints
    @functools.wraps(act)
    def command(*args: P.args, **options: P.kwargs) -> Result:
        interrupt_on_sigterm()
        url = options.pop("server", None)
        server = RemoteServer.at(str(url)) if url is not None else None
        with contextlib.closing(Performer(server)) as perform:
            return act(perform, *args, **options)

    return command

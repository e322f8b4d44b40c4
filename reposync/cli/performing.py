"""How commands act: they perform operations, beside a daemon of the same state folder over HTTP, otherwise here."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from urllib.parse import urlencode

import click
from pydantic import BaseModel, TypeAdapter

from reposync.cli.commands import current_user, interrupt_on_sigterm, settings
from reposync.cli.running_daemon import SLOW_SECONDS, TIMEOUT_SECONDS, RunningDaemon, running_daemon
from reposync.errors import RepoSyncError
from reposync.operations.core import Actor, Operation, read_arguments
from reposync.operations.fields import MAX_PAGE_ITEMS
from reposync.operations.paths import address_of

if TYPE_CHECKING:
    import asyncio

    from reposync.app.application import Application

A = TypeVar("A", bound=BaseModel)
T = TypeVar("T")
PageT = TypeVar("PageT", bound=BaseModel)


class Performer:
    """Performs the operations of one command. The application is opened when an operation is first performed here."""

    def __init__(self) -> None:
        self._settings = settings()
        self._user = current_user()
        self._resources = contextlib.AsyncExitStack()
        self._loop: asyncio.Runner | None = None
        self._app: Application | None = None

    def __enter__(self) -> Self:
        interrupt_on_sigterm()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._loop is not None:
            self._loop.run(self._resources.aclose())
            self._loop.close()

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
        given = arguments if isinstance(arguments, BaseModel) else read_arguments(operation.arguments, arguments or {})
        daemon = self.daemon
        answer = None if daemon is None else self._asked(daemon, operation, given, named)
        if answer is None:
            actor = Actor.at_terminal(self._user)
            return self.here(lambda app: operation(app, actor, given, **named), with_engine=operation.uses_index)
        document: T = TypeAdapter(operation.answer).validate_json(answer)
        return document

    def _asked(
        self, daemon: RunningDaemon, operation: Operation[Any, Any], arguments: BaseModel, named: Mapping[str, str]
    ) -> bytes | None:
        path, body = address_of(operation, **named), arguments.model_dump(mode="json", exclude_defaults=True)
        timeout = SLOW_SECONDS if operation.is_slow else TIMEOUT_SECONDS
        if operation.method not in ("GET", "DELETE"):
            return daemon.request(operation.method, path, body, user=self._user, timeout_seconds=timeout)
        if operation.executes:
            body["wait"] = 0  # the command follows the run itself
        query = urlencode({key: str(value).lower() if value is True else value for key, value in body.items()}, True)
        return daemon.request(operation.method, f"{path}?{query}", user=self._user, timeout_seconds=timeout)

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
            size = min(MAX_PAGE_ITEMS, limit - len(items))
            page: Any = self(operation, {**(arguments or {}), "limit": size, "cursor": cursor}, **named)
            whole = page.model_copy(update={"items": [*items, *page.items]})
        return cast("PageT", whole)

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
        from reposync.app.application import open_application

        migrates = self._settings.has_own_database
        opened = open_application(self._settings, with_engine=with_engine, migrates=migrates)
        app = await self._resources.enter_async_context(opened)
        if self._settings.has_own_database and os.environ.get("DATABASE_URL") and not await app.repositories.names():
            click.echo(
                f"note: nothing is registered in {self._settings.state_dir}. DATABASE_URL is used by `serve`, `apply` "
                "and `db` only: set REPOSYNC_DATABASE_URL for all commands.",
                err=True,
            )
        return app

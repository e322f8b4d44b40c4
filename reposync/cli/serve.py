"""`reposync serve`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import sys
from collections.abc import Callable
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import settings
from reposync.cli.running_daemon import announced

if TYPE_CHECKING:
    from reposync.app.daemon import Roles
    from reposync.clock import Clock
    from reposync.config.loading import LoadedRegistry
    from reposync.config.settings import Settings
    from reposync.telemetry.redaction import Secrets
    from reposync.telemetry.traces import Traces

log = logging.getLogger(__name__)

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
DEFAULT_PORT = 8080


class Port(click.IntRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        # Kubernetes sets REPOSYNC_PORT=tcp://ADDRESS:PORT in pods beside a Service of the name `reposync`.
        return super().convert(DEFAULT_PORT if str(value).startswith("tcp://") else value, param, ctx)


def _root_path(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from reposync.config.sections import root_path

    try:
        return root_path(value)
    except ValueError as error:
        raise click.BadParameter(f"it {error}.") from error


_option = functools.partial(click.option, show_envvar=True, show_default=True)


@click.command(context_settings={"auto_envvar_prefix": "REPOSYNC"})
@_option("--host", default="127.0.0.1", help="Address to listen on.")
@_option("--port", type=Port(0, 65_535), default=DEFAULT_PORT, help="0: any free one.")
@click.option(
    "--root-path",
    show_envvar=True,
    callback=_root_path,
    metavar="PATH",
    help="Path prefix of a reverse proxy: /reposync.",
)
@click.option(
    "--no-workers", is_flag=True, allow_from_autoenv=False, help="Execute no runs: only schedule them and serve HTTP."
)
@click.option("--no-scheduler", is_flag=True, allow_from_autoenv=False, help="Queue no scheduled runs.")
@_option("--log-level", type=click.Choice(LOG_LEVELS, case_sensitive=False), default="INFO")
def serve(host: str, port: int, root_path: str | None, no_workers: bool, no_scheduler: bool, log_level: str) -> None:
    """Keep every registered repository in sync on its schedule, until SIGTERM or Ctrl-C.

    SIGHUP reads the registry file again, which also happens when it changes.

    Runs in progress then get some time to end (`daemon.shutdown_grace_seconds`), the rest is handed back to other
    pods, and the exit code is 0. A second signal hands back at once.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the registry is read, after which it reads it again
    from reposync.app.daemon import Roles
    from reposync.config.loading import load_registry
    from reposync.telemetry.logs import configure_logging
    from reposync.telemetry.redaction import Secrets

    environment = settings(bare_names=True)
    loaded = load_registry(environment.config_path)
    secrets = Secrets.of_environment()
    configure_logging(environment.log_format, pod=environment.pod_name, secrets=secrets, level=log_level.upper())
    roles = Roles(not no_workers, not no_scheduler)
    asyncio.run(serve_until_stopped(environment, loaded, roles, host, port, root_path, secrets))


async def serve_until_stopped(
    environment: Settings,
    loaded: LoadedRegistry,
    roles: Roles,
    host: str,
    port: int,
    root_path: str | None,
    secrets: Secrets,
    clock: Clock | None = None,
) -> None:
    """The daemon and its HTTP server, composed. `clock` is this machine's. Raises RepoSyncError."""
    from reposync import __version__
    from reposync.api.app import ApiParts, create_app
    from reposync.api.auth import Access
    from reposync.api.server import check_exposure, serve_http
    from reposync.app.daemon import Daemon
    from reposync.app.gitlab_access import GitLabAccess
    from reposync.config.settings import service_tokens
    from reposync.errors import first_error
    from reposync.store.status import LOST, RunStatus, RunTrigger
    from reposync.telemetry.health import Health
    from reposync.telemetry.metrics import Metrics

    http, server = loaded.registry.http, loaded.registry.access_server
    tokens = (*environment.api_tokens, *service_tokens(http))
    check_exposure(host, has_tokens=bool(tokens) or server is not None)
    if root_path is not None:
        http = http.model_copy(update={"root_path": root_path})
    triggers = [each.value for each in RunTrigger]
    metrics = Metrics(
        version=__version__,
        run_statuses=[*(each.value for each in RunStatus), LOST],
        run_triggers=triggers,
        traces=_open_traces(__version__),
    )
    health = Health()
    daemon = Daemon(environment, loaded, roles, metrics, health, secrets, clock)
    _on_signals(daemon.stop, daemon.read_registry)
    command_key = token_urlsafe()
    readers = (
        None if server is None else GitLabAccess(server, http.rights, daemon.application, audience=http.public_url)
    )
    people = None
    if server is not None and readers is not None:
        from reposync.api.people import people_of

        people = people_of(http, server, readers, daemon.application)
    access = Access(
        tokens,
        http,
        ended=daemon.ended_sessions,
        command_key=command_key,
        readers=readers,
        names=lambda: daemon.application().names.read(),
        people=people,
    )
    parts = ApiParts(
        health=health,
        metrics=metrics,
        refresh=daemon.refresh_metrics,
        version=__version__,
        application=daemon.application,
        access=access,
        secrets=secrets,
    )
    try:
        # Requests in progress need the database, so the server ends before it is closed.
        async with contextlib.AsyncExitStack() as resources, serve_http(create_app(parts), host, port) as address:
            if sys.stderr.isatty():
                click.echo(f"Pages: {click.style(address.url, bold=True)}/ (Ctrl-C stops)", err=True)
            log.info("listening", extra={"url": address.url, "version": __version__, "pid": os.getpid()})
            if not access.has_tokens:
                log.warning("no REPOSYNC_API_TOKEN is set: everybody on this machine has full access over HTTP")
            if readers is not None:
                resources.push_async_callback(readers.close)
            if people is not None:
                resources.push_async_callback(people.sign_ins.oauth.close)
            if metrics.traces is not None:
                resources.push_async_callback(asyncio.to_thread, metrics.traces.close)
            with announced(environment, address.url, key=command_key, has_workers=roles.workers):
                await daemon.run(resources)
    except ExceptionGroup as errors:
        raise first_error(errors) from errors


def _open_traces(version: str) -> Traces | None:
    """None if the standard variable names no receiver, or the extra is not installed: the daemon works without."""
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return None
    try:
        from reposync.telemetry.traces import Traces
    except ModuleNotFoundError as error:
        log.warning(
            "no traces are exported: OTEL_EXPORTER_OTLP_ENDPOINT needs `pip install reposync[otel]` (%s)", error
        )
        return None
    return Traces(version)


def _on_signals(stop: Callable[[], None], read_registry: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    # SIGHUP is what supervisors reload by, and what a closing SSH session sends.
    for number, act in ((signal.SIGTERM, stop), (signal.SIGINT, stop), (signal.SIGHUP, read_registry)):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, act)

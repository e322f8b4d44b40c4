"""`reposync mcp`: the tools for agents on stdin and stdout, and the configuration of agents."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import Group, current_user, settings
from reposync.cli.running_daemon import TIMEOUT_SECONDS, running_daemon
from reposync.errors import ConfigError, RepoSyncError, UsageError, first_error
from reposync.operations.core import Actor
from reposync.supervision import end

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from reposync.app.application import Application
    from reposync.config.settings import Settings
    from reposync.telemetry.redaction import Secrets

_LONGEST_WAIT_SECONDS = 3600.0
_CLOSE_SECONDS = 5.0
"""For the database and the index to be closed at the end."""


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def mcp(context: click.Context) -> None:
    """Serve the tools for agents on stdin and stdout, by the Model Context Protocol, until stdin ends.

    An agent starts this command by itself: `reposync mcp install` adds it to its configuration. A daemon with the same
    state folder answers the calls if one is running; a daemon also serves the same tools to other machines, at /mcp.
    """
    if context.invoked_subcommand is not None:
        return
    from reposync.telemetry.logs import configure_logging
    from reposync.telemetry.redaction import Secrets

    environment, secrets = settings(), Secrets.of_environment()
    # To stderr: stdout has nothing but the protocol.
    configure_logging(environment.log_format, pod=environment.pod_name, secrets=secrets, level="WARNING")
    asyncio.run(_serve(environment, secrets))


@mcp.command()
@click.argument("client", type=click.Choice(("claude", "codex", "cursor", "vscode", "gemini")))
@click.option("--http", "url", metavar="URL", help="Use the daemon at URL, and not a command on this machine.")
@click.option(
    "--token-variable",
    default="REPOSYNC_TOKEN",
    show_default=True,
    metavar="NAME",
    help="With --http: the variable that holds the token in the environment of the client; empty for no token.",
)
@click.option("--print", "only_print", is_flag=True, help="Print the command or the entry, and run nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation. Required without a terminal.")
@click.pass_context
def install(
    context: click.Context, client: str, url: str | None, token_variable: str, only_print: bool, yes: bool
) -> None:
    """Add reposync to the configuration of the agent CLIENT, by the command of its vendor, after showing that command.

    These commands change: claude: .mcp.json in this folder; vscode: the user's profile; codex: ~/.codex/config.toml;
    gemini: ~/.gemini/settings.json. Cursor has no such command: its entry is printed for ~/.cursor/mcp.json. A token is
    never written: the entry refers to a variable. It also prints what to add to the agent's instructions.
    """
    from reposync.config.settings import SECRET_VARIABLES
    from reposync.mcp.clients import GUIDE, Server, address, vendor_command

    if url is not None:
        server = Server(address(url), secret_variables=[token_variable] if token_variable else [])
    else:
        paths = {name: str(Path(os.environ[name]).expanduser().absolute()) for name in _PATHS if os.environ.get(name)}
        if (config := settings().config_path) is not None:  # also one that was found by this folder
            paths["REPOSYNC_CONFIG"] = str(config)
        names = (name for variable in sorted(SECRET_VARIABLES) for name in (variable, f"{variable}_FILE"))
        secrets = [name for name in names if os.environ.get(name)]
        server = Server(command=_own_command(), settings=paths, secret_variables=secrets)
    if client == "cursor":
        click.echo("For ~/.cursor/mcp.json:", err=True)
        click.echo(json.dumps({"mcpServers": {"reposync": server.entry("${env:%s}")}}, indent=2))
    else:
        program, *arguments = vendor_command(client, server)
        click.echo(shlex.join([program, *arguments]))
        if not only_print:
            if (path := shutil.which(program)) is None:
                raise ConfigError(f"There is no program `{program}` here.", remedy="Run the command where it is.")
            if not yes:
                if not sys.stdin.isatty():
                    raise UsageError("There is no terminal for the question.", remedy="--yes runs the command.")
                click.confirm("Run it?", abort=True, err=True)
            if code := subprocess.run([path, *arguments], check=False).returncode:  # noqa: S603 - shown and confirmed
                context.exit(code)
    if url is not None and token_variable:
        click.echo(f"\nSet {token_variable} in the environment of the client to a token that may read.", err=True)
    elif client == "codex" and server.secret_variables:  # `codex mcp add` has no option for them
        listed = json.dumps(server.secret_variables)
        click.echo(f"\nBelow [mcp_servers.reposync] in ~/.codex/config.toml, add: env_vars = {listed}", err=True)
    click.echo(f"\nFor the instructions of the agent (AGENTS.md, CLAUDE.md):\n\n{GUIDE}", nl=False, err=True)


# Where the state is: the agent is started elsewhere.
_PATHS = ("REPOSYNC_STATE_DIR", "REPOSYNC_CONFIG")


def _own_command() -> list[str]:
    """With its path: an agent may have a different PATH."""
    program = Path(sys.executable).with_name("reposync")
    found = str(program) if program.is_file() else shutil.which("reposync")
    return [found, "mcp"] if found else [sys.executable, "-m", "reposync", "mcp"]


async def _serve(environment: Settings, secrets: Secrets) -> None:
    """Serve until stdin ends, or SIGTERM or SIGINT, and end the process with `os._exit`: threads read stdin and wait
    for a daemon, cannot be interrupted, and Python waits for them. With a plain return, the process still ran 40 s
    after SIGTERM."""
    from mcp.server.stdio import stdio_server

    from reposync import __version__
    from reposync.garbage import collect_as_usual
    from reposync.mcp.server import make_server

    tools = _Tools(environment, secrets)
    server = make_server(__version__, tools.call, tools.actor, on_list=tools.prepare)
    collect_as_usual()

    async def serve() -> None:
        # A client may end before it has read an answer.
        with contextlib.suppress(BrokenPipeError):
            try:
                async with stdio_server() as (read, write):
                    await server.run(read, write, server.create_initialization_options())
            except ExceptionGroup as errors:
                raise first_error(errors) from errors

    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    serving, stopping = asyncio.create_task(serve()), asyncio.create_task(stopped.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    with contextlib.suppress(Exception):
        await asyncio.wait_for(tools.resources.aclose(), _CLOSE_SECONDS)
    if serving.done():
        serving.result()
    sys.stderr.flush()
    os._exit(0)


class _Tools:
    """The answer of the running daemon, else of an application that is opened here when it is first needed."""

    def __init__(self, environment: Settings, secrets: Secrets) -> None:
        self.resources = contextlib.AsyncExitStack()
        self.actor = replace(Actor.at_terminal(current_user()), via="mcp")
        self._settings, self._secrets = environment, secrets
        self._opening = asyncio.Lock()
        self._opened: Application | None = None

    def prepare(self) -> None:
        """Open the application, so that the first search need not wait for it."""
        if running_daemon(self._settings) is None:
            self._begin(self._application())

    def _begin(self, work: Coroutine[Any, Any, object]) -> None:
        """In a task that ends with the server."""

        async def main() -> None:
            # The call that needs the application tries again, and the history has what failed in a run.
            with contextlib.suppress(RepoSyncError):
                await work

        self.resources.push_async_callback(end, asyncio.create_task(main()))

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        from mcp_types import CallToolResult
        from pydantic import ValidationError

        from reposync.mcp.server import answered, failed
        from reposync.mcp.tools import Caller

        given = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        timeout = arguments.get("timeout")
        # Not yet validated: it may be NaN, or too large for the timeout of a socket.
        wait_seconds = min(max(0.0, timeout), _LONGEST_WAIT_SECONDS) if isinstance(timeout, int | float) else 0.0
        try:
            answer = await asyncio.to_thread(self._ask_daemon, given, TIMEOUT_SECONDS + wait_seconds)
        except RepoSyncError as error:
            return failed(f"{error.code}: {self._secrets.redact(str(error))}")
        if answer is not None:
            with contextlib.suppress(ValidationError):
                return CallToolResult.model_validate(json.loads(answer).get("result"))
        caller = Caller(self._application, self.actor, _always)
        result = await answered(caller, name, arguments, redact=self._secrets.redact)
        if name == "request_sync" and result.structured_content is not None:
            self._begin(self._execute(result.structured_content["run"]))
        return result

    async def _execute(self, run_id: str) -> None:
        """Without workers, nobody else does before a daemon is started."""
        from reposync.app.command_runs import finished

        await finished(await self._application(), run_id)

    def _ask_daemon(self, body: Mapping[str, Any], timeout_seconds: float) -> bytes | None:
        daemon = running_daemon(self._settings)
        if daemon is None:
            return None
        return daemon.request("POST", "/mcp", body, user=current_user(), timeout_seconds=timeout_seconds)

    async def _application(self) -> Application:
        from reposync.app.opening import open_application

        async with self._opening:
            if self._opened is None:
                own = self._settings.has_own_database
                opened = open_application(self._settings, secrets=self._secrets, with_engine=True, migrates=own)
                self._opened = await self.resources.enter_async_context(opened)
            return self._opened


async def _always() -> bool:
    return True

"""Building blocks of all commands: groups with suggestions, settings, the event loop and the database.

It is imported whenever the Tab key is pressed: nothing here may import what a command needs to do its work.
"""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import get_completion_class

from reposync.cli.terminal import color_option
from reposync.errors import ConfigError

if TYPE_CHECKING:
    from reposync.config.settings import Settings
    from reposync.store.database import Database

T = TypeVar("T")

COMPLETION_VARIABLE = "_REPOSYNC_COMPLETE"  # click derives it from the name of the program


class Group(click.Group):
    """A group that suggests a command for an unknown one. All its commands have `--color`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        return None if command is None else with_color(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(200)) for name, command in commands if command])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word, commands = args[0], self.list_commands(ctx)
        if word not in commands and not word.startswith("-") and not ctx.resilient_parsing:
            from reposync.words import nearest

            near = nearest(word, commands)
            hint = f"Did you mean `{ctx.command_path} {near}`?" if near else f"Commands: {', '.join(commands)}."
            ctx.fail(f"No such command: `{ctx.command_path} {word}`. {hint}")
        return super().resolve_command(ctx, args)


def with_color(command: click.Command) -> click.Command:
    """The command with the option `--color`, if it does something itself."""
    if not any("--color" in option.opts for option in command.params) and not isinstance(command, click.Group):
        command.params.append(color_option())
    return command


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in SHELL.

    \b
        bash:  echo 'eval "$(reposync completion bash)"' >> ~/.bashrc
        zsh:   echo 'eval "$(reposync completion zsh)"' >> ~/.zshrc        (after compinit)
        fish:  reposync completion fish > ~/.config/fish/completions/reposync.fish
    """
    script = get_completion_class(shell)
    assert script is not None  # noqa: S101 - click supports all three
    click.echo(script(click.get_current_context().find_root().command, {}, "reposync", COMPLETION_VARIABLE).source())


def with_database(act: Callable[[Database], Coroutine[Any, Any, T]]) -> Callable[[], T]:
    """Act with the database as it is, for commands that need neither registry nor index. Raises ConfigError,
    StoreUnavailable."""

    @functools.wraps(act)
    def command() -> T:
        return run_async(main())

    async def main() -> T:
        from reposync.config.settings import make_state_dir
        from reposync.store.database import Database

        environment = settings(bare_names=True)
        make_state_dir(environment)
        async with await Database.open(environment.database_url) as database:
            return await act(database)

    return command


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end. Ctrl-C and SIGTERM cancel it, so that it can clean up; the exit code is then 130."""
    import asyncio

    interrupt_on_sigterm()
    return asyncio.run(main)


def interrupt_on_sigterm() -> None:
    """SIGTERM does what Ctrl-C does, which cancels what the event loop runs."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


@contextlib.contextmanager
def interrupt_held() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C in the block does not end it: the caller asks for it afterwards."""
    before, came = signal.getsignal(signal.SIGINT), False

    def hold(*_: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    signal.signal(signal.SIGINT, hold)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)


def settings(*, bare_names: bool = False) -> Settings:
    """The settings from the environment. Raises ConfigError.

    `bare_names`: DATABASE_URL and the like count too. Other programs read these variables, so that a command must not
    use what they name, unless a running daemon of the same state folder uses it.
    """
    from reposync.config.settings import Settings

    environment = Settings.from_environment(bare_names=bare_names)
    with contextlib.suppress(ConfigError):  # the address of a different program, in a form that is unknown here
        others = Settings.from_environment(bare_names=True)
        if others != environment:
            from reposync.cli.running_daemon import is_served

            if is_served(others) and not is_served(environment):
                return others
    return environment


def current_user() -> str:
    """`user@host`, for the history. A container's user may have no name."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"

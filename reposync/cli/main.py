"""The entry point of the command line: the table of commands, and how errors are reported.

Exit codes: `reposync.errors.EXIT_CODES`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from reposync import __version__
from reposync.cli.commands import Group, with_color
from reposync.cli.output import note, print_json
from reposync.cli.terminal import COLORS, color_of
from reposync.errors import EXIT_CODES, FAILED, INTERRUPTED, RepoSyncError, UsageError
from reposync.garbage import collect_rarely

# Name -> (module of this package, attribute, line of `--help`). A module is imported when its command runs: `--help`
# must not import all of them. The line is also the help of a command that has no docstring.
COMMANDS = {
    "sync": ("sync", "sync", "Bring the index to the head of one, several or all repositories."),
    "search": ("search", "search", "Search the indexed code, in words or by identifiers."),
    "grep": ("search", "grep", "Print the lines of indexed files that match a pattern."),
    "cat": ("search", "cat", "Print the indexed text of a file, or some of its lines."),
    "eval": ("evaluate", "evaluate", "Measure how well search finds known answers."),
    "status": ("status", "status", "Whether everything is current, and what is not, on one screen."),
    "history": ("runs", "history", "The execution log: what ran, when, and how it ended."),
    "runs": (
        "runs",
        "runs",
        "One run: show it with its problems, watch it, cancel, retry or approve it. `reposync history` lists runs.",
    ),
    "groups": ("groups", "groups", "GitLab groups whose projects register themselves: list, set, remove."),
    "repos": ("repos", "repos", "The registered repositories: list, show, add, set, adopt, remove, pause, resume."),
    "index": ("index", "index", "The versions of each repository's index, and the progress of a change."),
    "verify": ("verify", "verify", "Verify that the index matches the recorded commits, and repair it."),
    "secrets": ("secrets", "secrets", "Secrets in the indexed code, without their values."),
    "access": ("access", "access", "The repositories that you see, and why."),
    "audit": ("audit", "audit", "Who searched and read what, and when."),
    "locks": ("index", "locks", "The locks of running syncs: list them, or release one."),
    "mcp": ("mcp", "mcp", "Let agents search: a server of the Model Context Protocol, and its set-up."),
    "init": ("init", "init", "Register projects of a GitLab server: ask, test, and write the registry file."),
    "doctor": ("doctor", "doctor", "Check everything that a daemon needs, with what to do about it."),
    "serve": ("serve", "serve", "Keep all repositories in sync until it is stopped."),
    "open": ("open", "open_", "Open the page of a repository or a run in the browser."),
    "apply": ("config", "apply", "Write the registry file to the catalogue, or show what would change."),
    "config": ("config", "config", "The registry file: check it, or print its schema."),
    "db": ("db", "db", "The database: its schema, and a backup of it."),
    "version": ("db", "version", "Versions of reposync and of its main dependencies."),
    "completion": ("commands", "completion", "Complete commands and options in bash, zsh or fish."),
}

SECTIONS = {
    "Search": ("search", "grep", "cat", "eval", "access", "mcp"),
    "Sync": ("sync", "status", "history", "runs", "verify"),
    "Operate": ("serve", "open", "index", "locks", "secrets", "audit", "db", "doctor"),
    "Set up": ("init", "repos", "groups", "apply", "config", "completion", "version"),
}
"""How `--help` groups the commands."""


class LazyGroup(Group):
    """A group that knows its commands' names and one-line help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, text = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(f"reposync.cli.{module}"), attribute)
        assert isinstance(command, click.Command)  # noqa: S101 - for the type checker
        command.help = command.help or text
        return with_color(command)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        names = [
            CompletionItem(name, help=text) for name, (*_, text) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        margin = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                lines = [(f"{name:<{margin}}", COMMANDS[name][2]) for name in names if name in COMMANDS]
                formatter.write_dl(lines)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) + ".",
)
@click.option(
    "--color",
    type=click.Choice(COLORS),
    expose_value=False,
    help="Of every command: colors on a terminal (auto, the default), always or never.",
)
@click.version_option(__version__, prog_name="reposync")
def cli() -> None:
    """Keep source code from GitLab searchable in Qdrant: exactly, cheaply, from a laptop to many pods.

    Try it on any git repository, with nothing configured:

    \b
        reposync sync .
        reposync search "where are expired sessions removed"
        reposync history
    """


def main() -> NoReturn:
    """Run the command line and exit. Errors are sentences, not tracebacks (REPOSYNC_DEBUG=1 shows them)."""
    collect_rarely()
    # The interpreter collects garbage several times while it exits, which takes 18% of the CPU time of `history` and
    # 14% of `search`; with nothing to collect, 2% and 3%.
    atexit.register(gc.freeze)
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Execute a command; its exit code. An error is one line on stderr, and with --json also a document on stdout."""
    color = color_of(arguments)
    try:
        # Without its standalone mode, click returns the exit code of a command that called `ctx.exit`.
        code = cli.main(list(arguments), prog_name="reposync", standalone_mode=False, color=color)
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        # The reader is gone (`reposync history | head`): exit silently, as other tools do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        is_expected = isinstance(error, click.ClickException | click.Abort | KeyboardInterrupt)
        if os.environ.get("REPOSYNC_DEBUG") and not is_expected:
            raise
        exit_code, document = _report(error, color)
        if "--json" in itertools.takewhile(lambda word: word != "--", arguments):
            print_json({"error": document})
        return exit_code


def _report(error: BaseException, color: bool | None) -> tuple[int, dict[str, Any]]:
    """One line per problem on stderr: what failed, where, what to do. The exit code, and the error as JSON."""
    match error:
        case click.exceptions.NoArgsIsHelpError():
            error.show()
            return error.exit_code, _document(UsageError.code, error.format_message())
        case click.ClickException():
            context = getattr(error, "ctx", None)
            hints = [] if context is None else [f"Help: {context.command_path} --help"]
            _print_error([error.format_message()], hints, color)
            return error.exit_code, _document(UsageError.code, error.format_message())
        case click.Abort() | KeyboardInterrupt():
            click.echo("Interrupted.", err=True)
            return INTERRUPTED, _document("INTERRUPTED", "Interrupted.")
        case RepoSyncError():
            from reposync.cli.advice import advice

            problems: tuple[Any, ...] = getattr(error, "problems", ())
            hints = [] if problems else [_redacted(line) for line in advice(error)]
            _print_error([*map(str, problems)] or [_redacted(error.message)], hints, color)
            steps = [step.document() for step in error.next_steps]
            return error.exit_code, _document(
                error.code, _redacted(str(error)), details=dict(error.details), next=steps
            )
    # SQLAlchemy adds the statement to the message of the database.
    cause = getattr(error, "orig", None) or error
    message = _redacted(f"{type(error).__name__}: {cause}")
    hint = "This error is unexpected. REPOSYNC_DEBUG=1 shows the traceback; please report it."
    _print_error([message], [hint], color)
    return FAILED, _document(RepoSyncError.code, message)


def _print_error(problems: Sequence[str], hints: Sequence[str], color: bool | None) -> None:
    for problem in problems:
        note(f"{click.style('error:', fg='red', bold=True)} {problem}", color=color)
    for hint in hints:
        note(f"  {hint}", hang=0, color=color)


def _document(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"code": code, "message": message, "details": {}, "next": [], **more}


def _redacted(text: str) -> str:
    """Servers quote requests, and libraries quote addresses with their passwords."""
    from reposync.telemetry.redaction import Secrets

    return Secrets.of_environment().redact(text)

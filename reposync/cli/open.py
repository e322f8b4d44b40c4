"""`reposync open`: a page of the running daemon, in the browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from urllib.parse import quote

import click

from reposync import operations
from reposync.cli.commands import settings
from reposync.cli.completion import pages
from reposync.cli.output import Result
from reposync.cli.performing import Performer, performs
from reposync.cli.running_daemon import running_daemon
from reposync.errors import ConfigError, RunNotFound


@click.command("open")
@click.argument("what", required=False, metavar="[REPOSITORY|RUN]", shell_complete=pages)
@performs
def open_(perform: Performer, what: str | None) -> Result:
    """Open the page of a REPOSITORY, or of a RUN (its id, or a unique prefix), of the daemon that runs here; without
    either the first page. Without a browser, only its address is printed."""
    daemon = running_daemon(settings())
    if daemon is None:
        raise ConfigError("No daemon runs here, so there is no page.", remedy="Start one: `reposync serve`.")
    address = f"{daemon.url}{_path(perform, what)}"
    if _has_browser():
        webbrowser.open(address)
    return Result({"url": address}, [address])


def _path(perform: Performer, what: str | None) -> str:
    if what is None:
        return "/"
    try:
        return f"/runs/{perform(operations.runs.get_run, run_id=what).id}"
    except RunNotFound:
        return f"/repositories/{quote(perform(operations.repositories.get_repository, name=what).name)}"


def _has_browser() -> bool:
    """Not a browser of the terminal, which would take it over."""
    return (sys.platform == "darwin" or "DISPLAY" in os.environ or "BROWSER" in os.environ) and sys.stdout.isatty()

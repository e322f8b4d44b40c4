"""`reposync doctor`: everything that a daemon needs, checked, with what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import run_async, settings
from reposync.cli.output import Result, prints
from reposync.cli.serve import DEFAULT_PORT, Port
from reposync.cli.terminal import width_of, wrapped
from reposync.errors import FAILED, ConfigError
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.app.diagnosis import Finding

_COLORS = {"ok": "green", "warning": "yellow", "failed": "red", "skipped": "cyan"}
_STATUS_CHARS, _CHECK_CHARS = 9, 10


@click.command()
@click.option("--host", envvar="REPOSYNC_HOST", default="127.0.0.1", help="Address of `serve`.", show_default=True)
@click.option("--port", envvar="REPOSYNC_PORT", type=Port(0, 65_535), default=DEFAULT_PORT, show_default=True)
@prints
def doctor(host: str, port: int) -> Result:
    """Check everything that a daemon needs, with the settings that `serve` would have, and change nothing.

    Registry file, database, state folder, Redis, Qdrant, embedding (with a real question), each GitLab server with its
    token's scopes and last day, clock, queue, HTTP port and webhooks. The exit code is 0 unless a check has failed:
    then 2 if only settings are wrong, else 1.
    """
    from reposync.app.diagnosis import Diagnosis
    from reposync.cli.running_daemon import running_daemon
    from reposync.config.loading import LoadedRegistry, load_registry

    environment = settings(bare_names=True)
    loaded: LoadedRegistry | ConfigError
    try:
        loaded = load_registry(environment.config_path)
    except ConfigError as error:
        loaded = error.without_traceback()
    daemon = running_daemon(environment)
    diagnosis = Diagnosis(environment, loaded, host, port, daemon.url if daemon is not None else None)
    findings = run_async(diagnosis.run())
    codes = {each.problem.exit_code for each in findings if each.status == "failed" and each.problem is not None}
    code = 0 if not codes else codes.pop() if len(codes) == 1 else FAILED
    return Result({"ok": not code, "items": list(map(_document, findings))}, _lines(findings), exit_code=code)


def _document(finding: Finding) -> dict[str, Any]:
    remedy = " ".join(_remedy(finding)) or None
    return {"check": finding.check, "status": finding.status, "message": finding.message, "remedy": remedy}


def _remedy(finding: Finding) -> list[str]:
    from reposync.cli.advice import advice

    return advice(finding.problem) if finding.problem is not None else []


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    width = width_of(sys.stdout)
    checks = max(_CHECK_CHARS, *(len(each.check) + 2 for each in findings))
    indent = _STATUS_CHARS + checks
    for each in findings:
        status = click.style(f"{each.status:<{_STATUS_CHARS}}", fg=_COLORS[each.status])
        yield wrapped(f"{status}{each.check:<{checks}}{escape_unprintable(each.message)}", width, indent)
        yield from (wrapped(f"{'':{indent}}{escape_unprintable(line)}", width, 0) for line in _remedy(each))
    failed, warnings = (sum(each.status == word for each in findings) for word in ("failed", "warning"))
    yield ""
    if failed or warnings:
        counts = [f"{failed} failed"] * bool(failed) + [f"{warnings} to look at"] * bool(warnings)
        yield ", ".join(counts)
    else:
        yield "All is well."

"""`reposync config`: check the registry file, print its schema."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import Group, json_option, settings
from reposync.cli.output import Result, print_json

if TYPE_CHECKING:
    from reposync.config.document import Problem
    from reposync.config.loading import LoadedRegistry

_FILE = click.argument("file", required=False, type=click.Path(path_type=Path))


@click.group(cls=Group)
def config() -> None:
    """The registry file and the settings."""


@config.command()
@_FILE
@json_option
def check(file: Path | None, as_json: bool) -> None:
    """Check the registry FILE (default: the one in use).

    All problems are listed at once, each with file, line and column; the exit code is then 2.
    """
    loaded = _load(file, as_json=as_json)
    registry = loaded.registry
    counts = [f"{len(registry.repositories)} repositories" if len(registry.repositories) != 1 else "1 repository"]
    counts += [f"{len(registry.groups)} group{'s' * (len(registry.groups) > 1)}"] if registry.groups else []
    counts += [f"{len(registry.gitlab)} GitLab server{'s' * (len(registry.gitlab) > 1)}"] if registry.gitlab else []
    report = _report(loaded.path, warnings=loaded.warnings) | {"repositories": len(registry.repositories)}
    text = f"ok: {', '.join(counts)} in {loaded.path}" if loaded.path else "ok: no registry file, the defaults apply"
    Result(report, [text]).print(as_json=as_json)


@config.command()
def schema() -> None:
    """Print the JSON schema of the registry file (config/schema.json)."""
    from reposync.config.schema import registry_schema

    click.echo(registry_schema(), nl=False)


def _load(file: Path | None, *, as_json: bool) -> LoadedRegistry:
    """Prints warnings, or all errors and exits."""
    from reposync.config.document import RegistryErrors
    from reposync.config.loading import load_registry

    try:
        # With a file on the command line, the check does not depend on the settings of this machine.
        loaded = load_registry(file or settings().config_path, os.environ)
    except RegistryErrors as error:
        if as_json:
            print_json(_report(file, errors=error.problems))
        for problem in error.problems:
            click.echo(str(problem), err=True)
        raise SystemExit(error.exit_code) from None
    if not as_json:
        for problem in loaded.warnings:
            click.echo(f"warning: {problem}", err=True)
    return loaded


def _report(path: Path | None, errors: Sequence[Problem] = (), warnings: Sequence[Problem] = ()) -> dict[str, Any]:
    from dataclasses import asdict

    found = {"errors": list(map(asdict, errors)), "warnings": list(map(asdict, warnings))}
    return {"ok": not errors, "file": str(path) if path else None, **found}

"""`reposync config`: check the registry file, show what is in effect, print its schema."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import Group, json_option
from reposync.cli.output import print_json

if TYPE_CHECKING:
    from reposync.config.loading import LoadedRegistry
    from reposync.config.problems import Problem

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
    if as_json:
        print_json(_report(loaded.path, loaded.warnings, repositories=len(registry.repositories)))
        return
    _print_warnings(loaded.warnings)
    counts = (
        (len(registry.repositories), "repository", "repositories"),
        (len(registry.groups), "group", "groups"),
        (len(registry.gitlab), "GitLab server", "GitLab servers"),
    )
    found = ", ".join(
        f"{count} {one if count == 1 else many}" for count, one, many in counts if count or one == "repository"
    )
    click.echo(f"ok: {found} in {loaded.path}" if loaded.path else "ok: no registry file, the defaults apply")


@config.command()
def schema() -> None:
    """Print the JSON schema of the registry file (config/schema.json)."""
    from reposync.config.schema import registry_schema

    click.echo(registry_schema(), nl=False)


@config.command()
@_FILE
@json_option
def show(file: Path | None, as_json: bool) -> None:
    """Show what is in effect: settings, servers, every repository with all defaults. Secrets are masked."""
    from reposync.config.show import effective_configuration

    loaded = _load(file, as_json=as_json)
    document = effective_configuration(_settings(file), loaded)
    if as_json:
        print_json(document)
        return
    _print_warnings(loaded.warnings)
    for title, section in document.items():
        click.secho(title, bold=True)
        _print_section(section, "  ")


def _settings(file: Path | None) -> Any:
    from reposync.config.settings import Settings

    # A file on the command line overrides REPOSYNC_CONFIG, even an invalid one.
    return Settings.from_environment({**os.environ, "REPOSYNC_CONFIG": str(file)} if file else os.environ)


def _load(file: Path | None, *, as_json: bool) -> LoadedRegistry:
    from reposync.config.loading import load_registry
    from reposync.config.problems import RegistryErrors

    try:
        # With a file on the command line, the check does not depend on the settings of this machine.
        return load_registry(file or _settings(None).config_path, os.environ)
    except RegistryErrors as error:
        if as_json:
            print_json(_report(file, (), errors=error.problems))
        for problem in error.problems:
            click.echo(str(problem), err=True)
        raise SystemExit(error.exit_code) from None


def _report(path: Path | None, warnings: tuple[Problem, ...], **more: Any) -> dict[str, Any]:
    import dataclasses

    errors = more.pop("errors", ())
    return {
        "ok": not errors,
        "file": str(path) if path else None,
        "errors": [dataclasses.asdict(problem) for problem in errors],
        "warnings": [dataclasses.asdict(problem) for problem in warnings],
        **more,
    }


def _print_warnings(warnings: tuple[Problem, ...]) -> None:
    for problem in warnings:
        click.echo(f"warning: {problem}", err=True)


def _print_section(section: Any, indent: str) -> None:
    if isinstance(section, list):
        for number, item in enumerate(section):
            if number:
                click.echo()
            _print_section(item, indent)
        return
    width = max((len(key) for key in section), default=0)
    for key, value in section.items():
        if value is None or value == []:
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        click.echo(f"{indent}{key:<{width}}  {text}")

"""`reposync version`."""

from __future__ import annotations

import platform

import click

from reposync import __version__
from reposync.cli.commands import json_option
from reposync.cli.output import print_json

DEPENDENCIES = (
    "qdrant-client",
    "qdrant-edge-py",
    "python-gitlab",
    "dulwich",
    "langchain-text-splitters",
    "onnxruntime",
    "sqlmodel",
)


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Versions of reposync and of its main dependencies."""
    from importlib import metadata

    versions = {"reposync": __version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in DEPENDENCIES}
    if as_json:
        print_json(versions)
        return
    for name, number in versions.items():
        click.echo(f"{name} {number}")

"""`reposync version`."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from reposync import __version__
from reposync.cli.output import json_option, print_json

PARTS = (
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
    """Versions of reposync and of what it stands on."""
    versions = {"reposync": __version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in PARTS}
    if as_json:
        print_json(versions)
        return
    for name, number in versions.items():
        click.echo(f"{name} {number}")

"""How commands print: JSON for programs (one document, nothing else on stdout), tables and sentences for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from reposync.store.run_keys import RUN_KEYS, run_json
from reposync.telemetry.visible import visible
from reposync.words import ago, duration, until

__all__ = ["RUN_KEYS", "ago", "duration", "json_option", "print_json", "run_json", "short", "until", "visible"]

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")


def print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def short(sha: str | None) -> str:
    return sha[:10] if sha else "-"

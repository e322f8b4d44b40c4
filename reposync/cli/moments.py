"""Points in time as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_AGE = re.compile(r"(\d{1,6}) *(s|m|min|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


class Since(click.ParamType[datetime]):
    """An age (`24h`), or a date or time of ISO 8601, in UTC unless it names a zone."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if age := _AGE.fullmatch(value.strip()):
            return datetime.now(UTC) - timedelta(seconds=int(age[1]) * _SECONDS[age[2]])
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            self.fail(
                f"{value!r} is neither an age such as 30min, 24h or 7d, nor a date such as 2026-11-01.", param, ctx
            )
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)

"""The filters of the page of the history, as its address and its one field have them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from starlette.datastructures import QueryParams

from reposync.api.web.rendering import query as query_of
from reposync.config.schedule import ScheduleError, zone
from reposync.operations.fields import MAX_NAME_CHARS
from reposync.operations.runs import RunStatus, RunTrigger

PRESETS: dict[str, timedelta] = {
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
TABS: dict[str, tuple[RunStatus, ...]] = {
    "Running": (RunStatus.RUNNING,),
    "Queued": (RunStatus.QUEUED, RunStatus.RETRYING),
    "Failed": (RunStatus.FAILED,),
    "Blocked": (RunStatus.BLOCKED,),
    "Completed": (RunStatus.COMPLETED,),
    "Cancelled": (RunStatus.CANCELLED,),
}
ORDERS = ("newest", "oldest", "longest")
CHARTS = {"results": "Results", "duration": "Duration", "wait": "Queue wait", "chunks": "Chunks embedded"}
KEYS = {"repo": "repository", "trigger": "trigger", "code": "code", "commit": "commit", "worker": "worker"}
"""The words before a colon in the field, and what they filter by."""

_MAX_FIELD_CHARS = 1_000
_MAX_ZONE_CHARS = 64
_COMMIT = re.compile("[0-9a-f]{4,64}")
_LONG_COMMIT = re.compile("[0-9a-f]{7,64}")


@dataclass(frozen=True, slots=True)
class RunsQuery:
    """What the address asks for. `values`: by the names of `KEYS`. `since`, `until`: as given, days or moments; `zone`:
    of days. `problems`: what of it was not understood, in sentences."""

    values: dict[str, str] = field(default_factory=dict)
    statuses: tuple[RunStatus, ...] = ()
    preset: str = ""
    since: str = ""
    until: str = ""
    zone: str = ""
    shows_idle: bool = False
    order: str = "newest"
    chart: str = "results"
    problems: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What the field shows."""
        words = {name: word for word, name in KEYS.items()}
        return " ".join(f"{words[name]}:{value}" for name, value in self.values.items())

    @property
    def repository(self) -> str:
        return self.values.get("repository", "")

    @property
    def is_search(self) -> bool:
        """For certain runs, which are shown whether they had something to do or not."""
        return bool(self.values.keys() & {"code", "commit", "worker"})

    @property
    def is_needle(self) -> bool:
        """For few runs, which no index finds together with other conditions: they are neither counted nor drawn."""
        return bool(self.values.keys() & {"commit", "worker"})

    @property
    def hides_idle(self) -> bool:
        return not self.shows_idle and not self.is_search

    @property
    def is_filtered(self) -> bool:
        return bool(self.values or self.statuses or self.preset or self.since or self.until)

    def conditions(self, now: datetime) -> dict[str, Any]:
        """Arguments of `history`."""
        since, until = self._moment(self.since, 0), self._moment(self.until, 1)
        if self.preset:
            since = now - PRESETS[self.preset]
        return {
            **{name: value for name, value in self.values.items() if value},
            "status": list(self.statuses),
            "since": since,
            "until": until,
            "hide_idle": self.hides_idle,
            "order": self.order,
        }

    def address(self, **changes: Any) -> str:
        """The query string of this one with changes; `statuses` as a list."""
        pairs: dict[str, Any] = {
            **self.values,
            "status": [str(each) for each in self.statuses],
            "range": self.preset,
            "since": self.since,
            "until": self.until,
            "zone": self.zone,
            "idle": "show" if self.shows_idle else "",
            "order": "" if self.order == "newest" else self.order,
            "chart": "" if self.chart == "results" else self.chart,
        }
        return query_of(pairs | changes)

    def toggled(self, statuses: Sequence[RunStatus]) -> str:
        """With these statuses if they are not chosen, else without them."""
        others = [each for each in self.statuses if each not in statuses]
        is_chosen = len(others) < len(self.statuses)
        return self.address(status=[str(each) for each in (others if is_chosen else [*self.statuses, *statuses])])

    def _moment(self, text: str, days: int) -> datetime | None:
        """The beginning of a day in its zone, `days` later, or a moment as it is."""
        if (day := _day(text)) is not None:
            at = datetime.combine(day + timedelta(days=days), time.min, zone(self.zone or "UTC"))
            return at.astimezone(UTC)
        return _instant(text)


def read_query(given: QueryParams) -> RunsQuery:
    """What of the address can be used; the rest is as if it were not there."""
    values, problems = _values(given)
    named = set(given.getlist("status"))
    since, until = given.get("since", "")[:40], given.get("until", "")[:40]
    since, until = (text if _day(text) or _instant(text) else "" for text in (since, until))
    here = given.get("zone", "")[:_MAX_ZONE_CHARS] if since or until else ""
    try:
        zone(here or "UTC")
    except ScheduleError:
        here = ""
    return RunsQuery(
        values=values,
        statuses=tuple(status for status in RunStatus if status in named),
        preset=given.get("range", "") if given.get("range") in PRESETS else "",
        since=since,
        until=until,
        zone=here,
        shows_idle=given.get("idle") == "show",
        order=given.get("order", "") if given.get("order") in ORDERS else "newest",
        chart=given.get("chart", "") if given.get("chart") in CHARTS else "results",
        problems=tuple(problems),
    )


def _values(given: QueryParams) -> tuple[dict[str, str], list[str]]:
    """The values in the field and in parameters of their own."""
    found = {name: given.get(name, "").strip()[:MAX_NAME_CHARS] for name in KEYS.values()}
    problems: list[str] = []
    for word in given.get("q", "")[:_MAX_FIELD_CHARS].split():
        key, colon, value = word.partition(":")
        if not colon:
            found["commit" if _LONG_COMMIT.fullmatch(word) else "repository"] = word
        elif key in KEYS:
            found[KEYS[key]] = value[:MAX_NAME_CHARS]
        else:
            problems.append(f"There is no filter `{key}`. Use {', '.join(f'`{each}:`' for each in KEYS)}.")
    if found["trigger"] and found["trigger"] not in list(RunTrigger):
        problems.append(f"`{found['trigger']}` is no trigger. These are: {', '.join(RunTrigger)}.")
        found["trigger"] = ""
    found["commit"] = found["commit"].lower()
    if found["commit"] and not _COMMIT.fullmatch(found["commit"]):
        problems.append("A commit is written as 4 to 64 hexadecimal digits.")
        found["commit"] = ""
    return {name: value for name, value in found.items() if value}, problems


def _day(text: str) -> date | None:
    """None if it is not a date within the range that `timedelta` and the database can handle."""
    with contextlib.suppress(ValueError):
        day = date.fromisoformat(text)
        return day if 1971 <= day.year <= 9_000 else None
    return None


def _instant(text: str) -> datetime | None:
    """None if it is no moment with a zone."""
    with contextlib.suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo is not None and 1971 <= moment.year <= 9_000 else None
    return None

"""When a repository is synced: crontab, @daily or plain words, in a time zone."""

from __future__ import annotations

import functools
import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from cronsim import CronSim, CronSimError

from reposync.errors import ConfigError
from reposync.words import suggestion

_WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_SHORTHANDS = {
    "hourly": "0 * * * *",
    "daily": "0 0 * * *",
    "midnight": "0 0 * * *",
    "weekly": "0 0 * * 0",
    "monthly": "0 0 1 * *",
    "yearly": "0 0 1 1 *",
    "annually": "0 0 1 1 *",
}
_DAYS = {"day": "*", "weekday": "1-5", "weekend": "0,6"} | {day: str(n) for n, day in enumerate(_WEEKDAYS)}
_DAY = 86_400  # seconds
_UNIT_SECONDS = {"second": 1, "sec": 1, "minute": 60, "min": 60, "hour": 3600, "day": _DAY, "week": 7 * _DAY}
_COUNTED = re.compile(rf"every (?:([0-9]{{1,5}}) )?({'|'.join(_UNIT_SECONDS)})s?")
_DURATION = re.compile(
    r"(?:@?every )?(?=[0-9])(?:([0-9]{1,5})d ?)?(?:([0-9]{1,5})h ?)?(?:([0-9]{1,5})m ?)?(?:([0-9]{1,5})s)?"
)
_INTERVALS = (
    {count * 60: f"*/{count} * * * *" for count in range(2, 60) if 60 % count == 0}
    | {count * 3600: f"0 */{count} * * *" for count in range(2, 24) if 24 % count == 0}
    | {60: "* * * * *", 3600: "0 * * * *", _DAY: "0 0 * * *"}
)
"""Interval in seconds -> its crontab."""
_SECONDS_OF = {crontab: seconds for seconds, crontab in _INTERVALS.items() if seconds < _DAY}
_WEEKDAY_RANGE = re.compile(r"([0-7]|[a-z]{3})-([0-7]|[a-z]{3})(?:/([0-9]{1,2}))?")
_EXAMPLES = "`*/30 * * * *`, `@daily`, `every 6 hours`, `daily at 03:00`, `every monday at 9:00`"
# The reverse search of cronsim starts from the wall clock, which may have been set back; the largest change is 2 hours.
_CLOCK_CHANGE = timedelta(hours=2)

NEVER = "never"
"""The schedule of a registered repository without ticks: only people, pushes and commands start a sync."""
NEVER_WORDS = "on request only"
_NEVER_SPELLINGS = frozenset({NEVER, "none", "off", "manual", "manually", "manual only", "on request", NEVER_WORDS})


class ScheduleError(ConfigError, ValueError):
    """A schedule or time zone that cannot be read, or a schedule that never fires."""

    is_sentence = True  # see `_sentence` in `reposync.config.loading`
    quotes_value = True


@dataclass(frozen=True, slots=True)
class Schedule:
    """Ticks in a time zone. Changes of its clocks are handled as in Debian's cron: a tick at a time of day that is
    skipped fires right after the gap, and one at a time that comes twice fires once; ticks every few minutes or hours
    follow elapsed time.
    """

    cron: str
    """Five crontab fields, or `@every 1h30m` for an interval that no crontab can express."""
    timezone: str
    seconds: int | None = None
    """The interval of `@every`: a divisor of a day, counted from midnight UTC."""

    @classmethod
    @functools.lru_cache(maxsize=1_000)
    def parse(cls, text: str, timezone: str = "UTC") -> Schedule:
        """Read five crontab fields (0 and 7 are Sunday), `@hourly`, `@every 10m`, or words. Raises ScheduleError."""
        zone(timezone)
        try:
            return cls(*_read(text, timezone))
        except ValueError as error:
            raise ScheduleError(f"schedule {text[:100]!r}: {error}") from None

    def words(self) -> str:
        """In English, with the time zone if it is not UTC."""
        seconds = self.seconds or _SECONDS_OF.get(self.cron)
        if seconds is not None:
            words = _interval_words(seconds)
        else:
            explained: str = CronSim(self.cron, datetime.now(UTC)).explain()
            words = explained[0].lower() + explained[1:]
        return words if self.timezone == "UTC" else f"{words} ({self.timezone})"

    def next_after(self, moment: datetime) -> datetime:
        """The first tick after `moment` (aware), in UTC. Raises ValueError for a moment without a time zone."""
        if moment.tzinfo is None:
            raise ValueError("a moment without a time zone")
        moment = moment.astimezone(UTC)
        if self.seconds is not None:
            return datetime.fromtimestamp((int(moment.timestamp()) // self.seconds + 1) * self.seconds, UTC)
        return next(tick for tick in self._ticks(moment) if tick > moment)

    def last_before(self, moment: datetime) -> datetime:
        """The last tick that is not after `moment` (aware), in UTC."""
        moment = moment.astimezone(UTC)
        if self.seconds is not None:
            return datetime.fromtimestamp(int(moment.timestamp()) // self.seconds * self.seconds, UTC)
        start = moment + (timedelta(microseconds=1) if self.timezone == "UTC" else _CLOCK_CHANGE)
        return next(tick for tick in self._ticks(start, reverse=True) if tick <= moment)

    def _ticks(self, start: datetime, *, reverse: bool = False) -> Iterator[datetime]:
        for tick in CronSim(self.cron, start.astimezone(zone(self.timezone)), reverse=reverse):
            yield tick.astimezone(UTC)


@functools.cache
def zone(name: str) -> tzinfo:
    """The time zone of that IANA name. Raises ScheduleError, which names the nearest one."""
    if name == "UTC":
        return UTC  # needs no time zone database
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        near = suggestion(name, zoneinfo.available_timezones() | {"UTC"})
        near = near if "did you mean" in near else "; write a name such as UTC or Europe/Berlin"
        raise ScheduleError(f"unknown time zone {name[:100]!r}{near}") from None


def is_never(text: str) -> bool:
    """Whether `text` is one of the spellings of `never`."""
    return _folded(text) in _NEVER_SPELLINGS


def _folded(text: str) -> str:
    return " ".join(text.lower().split())


def _read(text: str, timezone: str) -> tuple[str, str, int | None]:
    """The fields of a Schedule. Raises ValueError."""
    words = _folded(text)
    if not words:
        raise ValueError(f"it is empty; write for example {_EXAMPLES}")
    if (seconds := _interval_seconds(words)) is not None:
        _check_interval(seconds, words.removeprefix("@").removeprefix("every "))
        if seconds in _INTERVALS:
            return _INTERVALS[seconds], timezone, None
        return f"@every {_duration_text(seconds)}", timezone, seconds
    shorthand = words.removeprefix("@")
    if shorthand in _SHORTHANDS:
        return _SHORTHANDS[shorthand], timezone, None
    if words.startswith("@"):
        known = [f"@{name}" for name in _SHORTHANDS]
        raise ValueError(f"unknown shorthand{suggestion(words, known)}; or `@every 1h30m`, with whole numbers")
    return _crontab(_from_words(words) if words[0].isalpha() else words), timezone, None


def _crontab(text: str) -> str:
    """The five fields as cronsim reads them. Raises ValueError."""
    fields = text.split()
    if len(fields) != 5:
        raise ValueError(f"a crontab has 5 fields (minute hour day month weekday), this has {len(fields)}")
    fields[2], fields[4] = (re.sub(r"^\?", "*", fields[number]) for number in (2, 4))
    fields[3], fields[4] = (_short_names(fields[3], _MONTHS), _short_names(fields[4], _WEEKDAYS))
    fields[4] = _WEEKDAY_RANGE.sub(_forward_range, fields[4])
    if fields[2] != "*" and fields[4] != "*":
        raise ValueError(
            "day of the month and day of the week are both restricted: cron runs on days that match either, "
            "others on days that match both; restrict one, and write * for the other"
        )
    crontab = " ".join(fields)
    try:
        next(CronSim(crontab, datetime.now(UTC)))
    except CronSimError as error:
        raise ValueError(f"the {str(error).removeprefix('Bad ')} is wrong or never comes") from None
    except StopIteration:
        raise ValueError("it never fires") from None
    return crontab


def _short_names(field: str, names: tuple[str, ...]) -> str:
    return re.sub("|".join(sorted(names, key=len, reverse=True)), lambda match: match[0][:3], field)


def _forward_range(match: re.Match[str]) -> str:
    """fri-mon as 5,6,0,1: the week goes round."""
    short = [day[:3] for day in _WEEKDAYS]
    if any(not each.isdecimal() and each not in short for each in match.group(1, 2)):
        return match[0]
    first, last = (int(each) if each.isdecimal() else short.index(each) for each in match.group(1, 2))
    if first <= last:
        return match[0]
    return ",".join(str(day % 7) for day in range(first, last + 8, int(match[3] or 1)))


def _from_words(words: str) -> str:
    match = re.fullmatch(r"(?:(daily|weekdays|weekends)|every ([a-z, ]+?))(?: at ([0-9]{1,2}):([0-9]{2}))?", words)
    if not match:
        raise ValueError(f"cannot be read; write for example {_EXAMPLES}")
    days = ["day" if match[1] == "daily" else match[1][:-1]] if match[1] else re.split(r",? and |, ?", match[2])
    numbers = []
    for day in days:
        singular = day if day in _DAYS else day.removesuffix("s")
        if singular not in _DAYS:
            raise ValueError(f"{day!r} is no day{suggestion(day, [*_DAYS, 'minute', 'hour'])}")
        numbers.append(_DAYS[singular])
    hour, minute = int(match[3] or 0), int(match[4] or 0)
    if hour > 23 or minute > 59:
        raise ValueError(f"{match[3]}:{match[4]} is no time of the day (0:00-23:59)")
    return f"{minute} {hour} * * {'*' if '*' in numbers else ','.join(numbers)}"


def _interval_seconds(words: str) -> int | None:
    """Of `every 5 hours`, `every minute`, `@every 1h30m`, `10m`; None if it is no interval."""
    if (match := _COUNTED.fullmatch(words)) and (match[1] or match[2] != "day"):
        return int(match[1] or 1) * _UNIT_SECONDS[match[2]]
    if match := _DURATION.fullmatch(words):
        days, hours, minutes, seconds = (int(count or 0) for count in match.groups())
        return days * _DAY + hours * 3600 + minutes * 60 + seconds
    return None


def _check_interval(seconds: int, written: str) -> None:
    """Raises ValueError for an interval whose ticks would not be evenly spaced from day to day."""
    if seconds == 0:
        raise ValueError("0 is no interval; write `never` for a repository that is synced on request only")
    if seconds > _DAY:
        raise ValueError(f"{written} is more than a day; write a crontab, for example `0 0 */2 * *`, or `@weekly`")
    if _DAY % seconds:
        below = max(each for each in range(1, seconds) if _DAY % each == 0)
        raise ValueError(
            f"{written} does not divide a day evenly; the next shorter interval that does is "
            f"`@every {_duration_text(below)}`"
        )


def _duration_text(seconds: int) -> str:
    """`1h30m`"""
    counts = ((seconds // 3600, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    return "".join(f"{count}{unit}" for count, unit in counts if count)


def _interval_words(seconds: int) -> str:
    unit, length = next(
        (unit, each) for unit, each in (("hour", 3600), ("minute", 60), ("second", 1)) if not seconds % each
    )
    count = seconds // length
    return f"every {unit}" if count == 1 else f"every {count} {unit}s"

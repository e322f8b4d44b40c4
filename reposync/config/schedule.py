"""When a repository is synced: crontab, @daily or plain words, in a time zone."""

from __future__ import annotations

import functools
import hashlib
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
_SPREAD = re.compile(r"h(?:\(([0-9]{1,2})-([0-9]{1,2})\))?(?:/([0-9]{1,2}))?")
_SPREAD_RANGES = {0: (0, 59), 1: (0, 23), 2: (1, 28), 4: (0, 6)}
"""Number of a crontab field -> what `H` stands for. Every month has 28 days. It cannot be a month: `0 0 30 H *`
would never come for a name that has February."""
_TIME = re.compile(r"([0-9]{1,2})(?::([0-9]{2}))?(?: ?([ap]m))?")
_EXAMPLES = "`*/30 * * * *`, `@daily`, `every 6 hours`, `daily at 03:00`, `every monday at 9:00`"
# The reverse search of cronsim starts from the wall clock, which may have been set back; the largest change is 2 hours.
_CLOCK_CHANGE = timedelta(hours=2)

NEVER = "never"
"""The schedule of a registered repository without ticks: only people, pushes and commands start a sync."""
NEVER_WORDS = "on request only"
_NEVER_SPELLINGS = frozenset({NEVER, "none", "off", "manual", "manually", "manual only", "on request", NEVER_WORDS})

_FIRST_WORDS = sorted(
    {"every", "weekdays", "weekends", *_SHORTHANDS, *(words.split()[0] for words in _NEVER_SPELLINGS)}
)
SCHEDULE_PATTERN = (
    rf"^\s*(?:[0-9*@]|[hH][\s,/(]|{'|'.join(''.join(f'[{c}{c.upper()}]' for c in word) for word in _FIRST_WORDS)})"
)
"""How every schedule and every spelling of `never` begins: a regular expression for editors, which know no flags."""


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
    def parse(cls, text: str, timezone: str = "UTC", name: str = "") -> Schedule:
        """Read five crontab fields (0 and 7 are Sunday), `@hourly`, `@every 10m`, or words. An `H` in a crontab becomes
        a number that depends on `name` only, as in Jenkins, so that many names spread. Raises ScheduleError."""
        zone(timezone)
        try:
            crontab, seconds = _read(_spread(_folded(text), name))
        except ValueError as error:
            raise ScheduleError(f"schedule {text[:100]!r}: {error}") from None
        return cls(crontab, timezone, seconds)

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


@functools.lru_cache(maxsize=1_000)
def _read(words: str) -> tuple[str, int | None]:
    """`cron` and `seconds` of a Schedule. Raises ValueError."""
    if not words:
        raise ValueError(f"it is empty; write for example {_EXAMPLES}")
    if (seconds := _interval_seconds(words)) is not None:
        _check_interval(seconds, words.removeprefix("@").removeprefix("every "))
        if seconds in _INTERVALS:
            return _INTERVALS[seconds], None
        return f"@every {_duration_text(seconds)}", seconds
    shorthand = words.removeprefix("@")
    if shorthand in _SHORTHANDS:
        return _SHORTHANDS[shorthand], None
    if words.startswith("@"):
        known = [f"@{name}" for name in _SHORTHANDS]
        raise ValueError(f"unknown shorthand{suggestion(words, known)}; or `@every 1h30m`, with whole numbers")
    return _crontab(_from_words(words) if _is_prose(words) else words), None


def _is_prose(words: str) -> bool:
    """Whether it begins with a word; the first field of a crontab may be the letter `h`."""
    return words[:2].isalpha()


def _spread(words: str, name: str) -> str:
    """`words`, with a number in place of each `h` of a crontab. Raises ValueError."""
    fields = words.split()
    if _is_prose(words) or len(fields) != 5:
        return words
    return " ".join(
        ",".join(_chosen(part, number, name) if part.startswith("h") else part for part in field.split(","))
        for number, field in enumerate(fields)
    )


def _chosen(part: str, number: int, name: str) -> str:
    """What `h`, `h/15`, `h(0-29)` or `h(0-29)/10` in the crontab field with this number is for `name`: always the same,
    in every version of this program. Raises ValueError."""
    match, limits = _SPREAD.fullmatch(part), _SPREAD_RANGES.get(number)
    if limits is None:
        raise ValueError("`H` cannot stand for a month; write the months, or *")
    if match is None:
        raise ValueError(f"`{part.upper()}` cannot be read; write `H`, `H/15`, `H(0-29)` or `H(0-29)/10`")
    first, last = (int(match[1]), int(match[2])) if match[1] else limits
    values = last - first + 1
    step = int(match[3] or values)
    if not (limits[0] <= first <= last <= limits[1] and 1 <= step <= values):
        raise ValueError(f"`{part.upper()}` leaves the range of its field, {limits[0]} to {limits[1]}")
    chosen = first + int.from_bytes(hashlib.sha256(f"{number} {name}".encode()).digest()[:8]) % step
    return f"{chosen}-{last}/{step}" if match[3] else f"{chosen}"


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
    match = re.fullmatch(r"(?:(daily|weekdays|weekends)|every ([a-z, ]+?))(?:(?: at)? ([0-9].*))?", words)
    if not match:
        raise ValueError(f"cannot be read; write for example {_EXAMPLES}")
    days = ["day" if match[1] == "daily" else match[1][:-1]] if match[1] else re.split(r",? and |, ?", match[2])
    numbers = []
    for day in days:
        singular = day if day in _DAYS else day.removesuffix("s")
        if singular not in _DAYS:
            raise ValueError(f"{day!r} is no day{suggestion(day, [*_DAYS, 'minute', 'hour'])}")
        numbers.append(_DAYS[singular])
    hour, minute = _time_of_day(match[3] or "0:00")
    return f"{minute} {hour} * * {'*' if '*' in numbers else ','.join(numbers)}"


def _time_of_day(text: str) -> tuple[int, int]:
    """`3:00`, `15:30`, `3am`, `3:30 pm`. Raises ValueError."""
    match = _TIME.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"{text} is no time of the day; write for example 03:00, 15:30 or 3am")
    hour, minute, half = int(match[1]), int(match[2] or 0), match[3]
    if hour > 23 or minute > 59 or (half is not None and not 1 <= hour <= 12):
        raise ValueError(f"{text} is no time of the day (0:00-23:59)")
    if half is not None:
        hour = hour % 12 + (12 if half == "pm" else 0)
    return hour, minute


def _interval_seconds(words: str) -> int | None:
    """The seconds in `every 5 hours`, `every minute`, `@every 1h30m`, `10m`; None if it is no interval."""
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

"""When a repository is synced: crontab, @daily or plain words, in a time zone."""

from __future__ import annotations

import itertools
import re
import zoneinfo
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import TYPE_CHECKING

from reposync.config.crontab import WEEKDAYS, Crontab
from reposync.config.spelling import hint
from reposync.errors import ConfigError

if TYPE_CHECKING:
    from reposync.config.trigger import ScheduleTrigger

_SHORTHANDS = {
    "hourly": "0 * * * *",
    "daily": "0 0 * * *",
    "midnight": "0 0 * * *",
    "weekly": "0 0 * * 0",
    "monthly": "0 0 1 * *",
    "yearly": "0 0 1 1 *",
    "annually": "0 0 1 1 *",
}
_DAYS = {"day": "*", "weekday": "1-5", "weekend": "0,6"} | {day.lower(): str(n) for n, day in enumerate(WEEKDAYS)}
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
"""The crontabs whose ticks are so many seconds apart."""
# Samoa skipped a whole day in 2011.
_LARGEST_CHANGE = timedelta(hours=25)
# From 29 February 2096 to that of 2104.
_LONGEST_PAUSE_DAYS = 366 * 8 + 2
_SPANS = tuple(timedelta(days=days) for days in (1 / 24, 1, 31, 366, _LONGEST_PAUSE_DAYS))
_EXAMPLES = "`*/30 * * * *`, `@daily`, `every 6 hours`, `daily at 03:00`, `every monday at 9:00`"

NEVER = "never"
"""The schedule of a registered repository that has none: people, pushes and commands alone sync it."""
NEVER_WORDS = "on request only"
_NEVER_SPELLINGS = frozenset({NEVER, "none", "off", "manual", "manually", "manual only", "on request", NEVER_WORDS})


class ScheduleError(ConfigError, ValueError):
    """A schedule or time zone that cannot be read, or that never fires."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Two schedules are equal where they fire at the same times for the same reason: same crontab, same time zone.

    Around a change of clocks a skipped wall-clock time still fires, moved by the change, and a doubled one fires
    twice: nothing that was asked for is left out.
    """

    crontab: Crontab
    timezone: str
    seconds: int | None = None
    """Every so many seconds (a divisor of a day, counted from midnight UTC), which no crontab can say: `@every 1h30m`.
    Then `crontab` is every minute."""

    @classmethod
    def parse(cls, text: str, timezone: str = "UTC") -> Schedule:
        """Read five crontab fields (0 and 7 are Sunday), `@hourly`, `@every 10m`, or words. Raises ScheduleError."""
        zone(timezone)
        try:
            crontab, seconds = _read(text)
            return cls(Crontab.parse(crontab), timezone, seconds)
        except ValueError as error:
            raise ScheduleError(f"schedule {text[:100]!r}: {error}") from None

    @property
    def cron(self) -> str:
        """The five crontab fields in normal form; `@every 1h30m` for what no crontab can say."""
        return self.crontab.text if self.seconds is None else f"@every {_duration_text(self.seconds)}"

    def words(self) -> str:
        """In English, with the time zone where it is not UTC."""
        words = self.crontab.words() if self.seconds is None else _interval_words(self.seconds)
        return words if self.timezone == "UTC" else f"{words} ({self.timezone})"

    def trigger(self) -> ScheduleTrigger:
        """The same schedule for APScheduler 3.x: a CronTrigger with the ticks of `next_after`."""
        from reposync.config.trigger import ScheduleTrigger

        # Values are spelt out and weekdays named: APScheduler counts them from Monday and refuses some steps.
        weekdays = ",".join(WEEKDAYS[day][:3].lower() for day in self.crontab.weekdays)
        return ScheduleTrigger(
            self.next_after,
            month=_values(self.crontab.months, 12),
            day=_values(self.crontab.days, 31),
            day_of_week="*" if len(self.crontab.weekdays) == 7 else weekdays,
            hour=_values(self.crontab.hours, 24),
            minute=_values(self.crontab.minutes, 60),
            second=0 if self.seconds is None else "*",
            timezone=zone(self.timezone),
        )

    def next_after(self, moment: datetime) -> datetime:
        """The first tick after `moment` (aware), in UTC. Raises ValueError for a moment without a time zone."""
        if moment.tzinfo is None:
            raise ValueError("a moment without a time zone")
        here, moment = zone(self.timezone), moment.astimezone(UTC)
        if self.seconds is not None:
            return datetime.fromtimestamp((int(moment.timestamp()) // self.seconds + 1) * self.seconds, UTC)
        found: datetime | None = None
        last = datetime.max
        for wall in self._walls(_wall(moment, here) - _disorder(moment, here)):
            if wall > last:
                break
            for tick in _instants(wall, here):
                if tick > moment and (found is None or tick < found):
                    found, last = tick, _wall(tick, here) + _disorder(tick, here)
        if found is None:
            raise ScheduleError(f"schedule `{self.cron}` has no tick after {moment.isoformat()}")
        return found

    def last_before(self, moment: datetime, since: datetime) -> datetime | None:
        """The last tick after `since` that is not after `moment`, in UTC; None where there is none."""
        # Looked for in ever longer spans before `moment`: a dense schedule has few ticks in the first, a sparse one few
        # in any.
        for span in _SPANS:
            start = max(since, moment - span)
            tick, last = self.next_after(start), None
            while tick <= moment:
                last, tick = tick, self.next_after(tick)
            if last is not None or start == since:
                return last
        return None

    def _walls(self, start: datetime) -> Iterator[datetime]:
        """What wall clocks show when it is time, in ascending order, from `start` on (without a time zone)."""
        months, days, weekdays = set(self.crontab.months), set(self.crontab.days), set(self.crontab.weekdays)
        for number in range(_LONGEST_PAUSE_DAYS):
            day = start.date() + timedelta(days=number)
            if day.month not in months or day.day not in days or day.isoweekday() % 7 not in weekdays:
                continue
            since = start.time() if number == 0 else time.min
            for hour, minute in itertools.product(self.crontab.hours, self.crontab.minutes):
                if (hour, minute) >= (since.hour, since.minute):
                    yield datetime.combine(day, time(hour, minute))


def zone(name: str) -> tzinfo:
    """The time zone of that IANA name. Raises ScheduleError naming the nearest one."""
    if name == "UTC":
        return UTC  # needs no time zone database
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        near = hint(name, zoneinfo.available_timezones() | {"UTC"})
        near = near if "did you mean" in near else "; write a name such as UTC or Europe/Berlin"
        raise ScheduleError(f"unknown time zone {name[:100]!r}{near}") from None


def _wall(moment: datetime, here: tzinfo) -> datetime:
    return moment.astimezone(here).replace(tzinfo=None)


def _disorder(moment: datetime, here: tzinfo) -> timedelta:
    """How far around `moment` ticks may come in another order than their wall-clock times: as clocks change there."""
    if here is UTC:
        return timedelta(0)
    around = (moment - _LARGEST_CHANGE, moment, moment + _LARGEST_CHANGE)
    offsets = [each.astimezone(here).utcoffset() or timedelta(0) for each in around]
    return max(offsets) - min(offsets)


def _instants(wall: datetime, here: tzinfo) -> list[datetime]:
    """When clocks show `wall` (UTC): twice where they go back; as much later as they skip where they do not show it."""
    first, second = (wall.replace(tzinfo=here, fold=fold).astimezone(UTC) for fold in (0, 1))
    return [first, second] if second > first else [first]


def _values(values: tuple[int, ...], span: int) -> str:
    return "*" if len(values) == span else ",".join(map(str, values))


def is_never(text: str) -> bool:
    """Whether `text` is one of the ways to write `never`."""
    return _folded(text) in _NEVER_SPELLINGS


def _folded(text: str) -> str:
    return " ".join(text.lower().split())


def _read(text: str) -> tuple[str, int | None]:
    """A crontab, and the seconds of an interval that no crontab can say. Raises ValueError."""
    words = _folded(text)
    if not words:
        raise ValueError(f"it is empty; write for example {_EXAMPLES}")
    if (seconds := _interval_seconds(words)) is not None:
        return _interval(seconds, words.removeprefix("@").removeprefix("every "))
    shorthand = words.removeprefix("@")
    if shorthand in _SHORTHANDS:
        return _SHORTHANDS[shorthand], None
    if words.startswith("@every"):
        raise ValueError("write `@every` with whole numbers of h, m and s: `@every 1h30m`")
    if words.startswith("@"):
        raise ValueError(f"unknown shorthand{hint(words, [f'@{name}' for name in _SHORTHANDS])}")
    return _from_words(words) if words[0].isalpha() else text, None


def _from_words(words: str) -> str:
    match = re.fullmatch(r"(?:(daily|weekdays|weekends)|every ([a-z, ]+?))(?: at ([0-9]{1,2}):([0-9]{2}))?", words)
    if not match:
        raise ValueError(f"cannot be read; write for example {_EXAMPLES}")
    days = ["day" if match[1] == "daily" else match[1][:-1]] if match[1] else re.split(r",? and |, ?", match[2])
    numbers = []
    for day in days:
        singular = day if day in _DAYS else day.removesuffix("s")
        if singular not in _DAYS:
            raise ValueError(f"{day!r} is no day{hint(day, [*_DAYS, 'minute', 'hour'])}")
        numbers.append(_DAYS[singular])
    hour, minute = int(match[3] or 0), int(match[4] or 0)
    if hour > 23 or minute > 59:
        raise ValueError(f"{match[3]}:{match[4]} is no time of the day (0:00-23:59)")
    return f"{minute} {hour} * * {'*' if '*' in numbers else ','.join(numbers)}"


def _interval_seconds(words: str) -> int | None:
    """Of `every 5 hours`, `every minute`, `@every 1h30m`, `10m`; None for what is no interval."""
    if (match := _COUNTED.fullmatch(words)) and (match[1] or match[2] != "day"):
        return int(match[1] or 1) * _UNIT_SECONDS[match[2]]
    if match := _DURATION.fullmatch(words):
        days, hours, minutes, seconds = (int(count or 0) for count in match.groups())
        return days * _DAY + hours * 3600 + minutes * 60 + seconds
    return None


def _interval(seconds: int, said: str) -> tuple[str, int | None]:
    """As `_read`. Raises ValueError for an interval whose ticks would not be equally far apart from day to day."""
    if seconds in _INTERVALS:
        return _INTERVALS[seconds], None
    if seconds and _DAY % seconds == 0:
        return "* * * * *", seconds
    if seconds == 0:
        raise ValueError("0 is no interval; write `never` for a repository that is synced on request only")
    if seconds > _DAY:
        days = round(seconds / _DAY)
        near = {1: "0 0 * * *", 7: "0 0 * * 0"}.get(days, f"0 0 */{days} * *" if days < 16 else "0 0 1 * *")
        raise ValueError(f"{said} cannot be counted across months; the nearest crontab is {_in_words(near)}")
    if seconds < 60:
        near = " and ".join(
            f"`@every {each}s`" for each in _neighbours(seconds, [n for n in range(1, 61) if 60 % n == 0])
        )
        raise ValueError(f"{said} do not divide a minute evenly; the nearest are {near}")
    near = " and ".join(_in_words(_INTERVALS[each]) for each in _neighbours(seconds, _INTERVALS))
    raise ValueError(f"{said} do not divide a day evenly; the nearest crontabs are {near}")


def _neighbours(number: int, known: Collection[int]) -> tuple[int, int]:
    """The nearest known numbers below and above."""
    return max(each for each in known if each < number), min(each for each in known if each > number)


def _in_words(crontab: str) -> str:
    return f"`{crontab}` ({Crontab.parse(crontab).words()})"


def _duration_text(seconds: int) -> str:
    """`1h30m`"""
    counts = ((seconds // 3600, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    return "".join(f"{count}{unit}" for count, unit in counts if count)


def _interval_words(seconds: int) -> str:
    if seconds == 1:
        return "every second"
    return f"every {seconds} seconds" if seconds % 60 else f"every {seconds // 60} minutes"

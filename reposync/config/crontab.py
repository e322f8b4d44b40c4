"""Five crontab fields, as cron reads them: sets of minutes, hours, days, months and weekdays (0 = Sunday)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
# The longest that each month gets: 29 February is a day on which a schedule fires.
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_ITEM = re.compile(r"(?:(?P<all>[*?])|(?P<first>[A-Za-z0-9]+)(?:-(?P<last>[A-Za-z0-9]+))?)(?:/(?P<step>[0-9]+))?")


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: Mapping[str, int]


def _numbered(names: tuple[str, ...], first: int) -> dict[str, int]:
    return {form: first + index for index, name in enumerate(names) for form in (name.lower(), name[:3].lower())}


_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of the month", 1, 31, {}),
    _Field("month", 1, 12, _numbered(MONTHS, 1)),
    _Field("day of the week", 0, 6, _numbered(WEEKDAYS, 0)),
)


@dataclass(frozen=True, slots=True, repr=False)
class Crontab:
    """Each field's values in ascending order. A day must be in `days` and in `weekdays`; one of the two is full."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Crontab:
        """Read `minute hour day month weekday`. Raises ValueError with a sentence for a person."""
        words = text.split()
        if len(words) != len(_FIELDS):
            seconds = "; seconds and years are not supported" if len(words) in (6, 7) else ""
            raise ValueError(f"a crontab has 5 fields (minute hour day month weekday), this has {len(words)}{seconds}")
        minutes, hours, days, months, weekdays = (
            _values(word, field) for word, field in zip(words, _FIELDS, strict=True)
        )
        if not _is_star(words[2]) and not _is_star(words[4]):
            raise ValueError(
                "day of the month and day of the week are both restricted: cron runs on days that match either, "
                "others on days that match both; restrict one, and write * for the other"
            )
        if not any(day <= _MONTH_DAYS[month - 1] for day in days for month in months):
            raise ValueError(
                f"it never fires: there is no day {days[0]} in {' or '.join(MONTHS[month - 1] for month in months)}"
            )
        return cls(minutes, hours, days, months, weekdays)

    @property
    def text(self) -> str:
        """The five fields in normal form: crontabs that fire at the same times have the same text."""
        columns = (self.minutes, self.hours, self.days, self.months, self.weekdays)
        return " ".join(_text(values, field) for values, field in zip(columns, _FIELDS, strict=True))

    def __repr__(self) -> str:
        return f"Crontab({self.text!r})"

    def words(self) -> str:
        """In English: `every 6 hours`, `at 03:00 on Monday`."""
        on = self._day_words()
        times = _time_words(self.minutes, self.hours)
        if not on and times.startswith("at "):
            on = "every day"
        return f"{times} {on}".strip()

    def _day_words(self) -> str:
        words = []
        if len(self.weekdays) < 7:
            match self.weekdays:
                case (1, 2, 3, 4, 5):
                    words.append("on weekdays")
                case (0, 6):
                    words.append("at weekends")
                case _:
                    monday_first = sorted(self.weekdays, key=lambda day: (day - 1) % 7)
                    words.append(f"on {_listed([WEEKDAYS[day] for day in monday_first])}")
        if len(self.days) < 31:
            of = "" if len(self.months) < 12 else " of the month"
            words.append(f"on day{'s' if len(self.days) > 1 else ''} {_listed(_runs(self.days))}{of}")
        if len(self.months) < 12:
            words.append(f"in {_listed([MONTHS[month - 1] for month in self.months])}")
        return " ".join(words)


def uneven_step(text: str) -> str | None:
    """A sentence about the first `*/n` in a crontab whose ticks are not equally far apart, because the field starts
    again before the next one: `*/5` hours pause for 4 at midnight. None if there is none, or if `text` is no crontab.
    """
    words = text.split()
    if len(words) != len(_FIELDS):
        return None
    for word, field in zip(words, _FIELDS, strict=True):
        for match in map(_ITEM.fullmatch, word.split(",")):
            step, span = int(match["step"] or 1) if match and match["all"] else 1, field.high - field.low + 1
            if match and span % step:
                last = range(field.low, field.high + 1, step)[-1]
                unit, pause = field.name.split()[0], span + field.low - last
                even = ", ".join(str(number) for number in range(2, span) if span % number == 0)
                return (
                    f"`{match[0]}` starts again at {unit} {field.low}: after {unit} {last} the next tick comes "
                    f"{pause} {unit}{'s' if pause > 1 else ''} later, not {step}"
                    + (f"; steps that come out even: {even}" if even else "")
                )
    return None


def _is_star(word: str) -> bool:
    return word in ("*", "?", "*/1")


def _values(word: str, field: _Field) -> tuple[int, ...]:
    found: set[int] = set()
    for item in word.split(","):
        found.update(_item(item, field))
    return tuple(sorted(found))


def _item(item: str, field: _Field) -> range | set[int]:
    match = _ITEM.fullmatch(item)
    if not match:
        raise ValueError(f"{item!r} is no value, range (a-b) or step (*/n) for the {field.name}")
    days_of_week = field.high == 6
    if match["all"]:
        if match["all"] == "?" and field.name not in ("day of the month", "day of the week"):
            raise ValueError(f"`?` is not for the {field.name}; write *")
        first, last = field.low, field.high
    else:
        first = _number(match["first"], field)
        last = _number(match["last"], field) if match["last"] else (field.high if match["step"] else first)
        if days_of_week and match["last"] and last < first:
            last += 7  # fri-mon, and 5-sun where Sunday ends the week
    if first > last:
        raise ValueError(
            f"the range {item!r} of the {field.name} runs backwards; write {first}-{field.high},{field.low}-{last}"
        )
    step = int(match["step"] or 1)
    if step == 0:
        raise ValueError(f"the step in {item!r} is 0; a step is at least 1")
    if step > 1 and step > last - first:
        raise ValueError(
            f"the step in {item!r} never comes twice in {first}-{last}, because the {field.name} starts again at "
            f"{field.low}; write {first} if that is meant"
        )
    values = range(first, last + 1, step)
    return {value % 7 for value in values} if days_of_week else values


def _number(text: str, field: _Field) -> int:
    if text.isdecimal():
        # Both 0 and 7 are Sunday; the 7 stays here, so that 5-7 is a range that runs forward.
        high = 7 if field.high == 6 else field.high
        if len(text) <= 3 and field.low <= int(text) <= high:
            return int(text)
        raise ValueError(f"{text} is no {field.name} ({field.low}-{high})")
    if text.lower() in field.names:
        return field.names[text.lower()]
    names = "".join(f", {name}" for name in field.names if len(name) == 3)
    raise ValueError(f"{text!r} is no {field.name} ({field.low}-{field.high}{names})")


def _text(values: tuple[int, ...], field: _Field) -> str:
    span = field.high - field.low + 1
    if len(values) == span:
        return "*"
    if len(values) > 1 and values[0] == field.low:
        step = values[1] - values[0]
        evenly = values == tuple(range(field.low, field.high + 1, step))
        if evenly and step > 1 and (len(values) > 3 or (field.low == 0 and span % step == 0)):
            return f"*/{step}"
    return ",".join(_runs(values))


def _runs(values: tuple[int, ...]) -> list[str]:
    """3,4,5,9 as 3-5 and 9."""
    texts: list[str] = []
    start = 0
    for index in range(1, len(values) + 1):
        if index < len(values) and values[index] == values[index - 1] + 1:
            continue
        run = values[start:index]
        texts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
        start = index
    return texts


def _listed(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _interval(values: tuple[int, ...], span: int) -> int | None:
    """How far apart they are, if that is the same everywhere, also where the span starts again; None if it is not."""
    apart = span // len(values)
    return apart if apart < span and values == tuple(range(0, span, apart)) else None


def _time_words(minutes: tuple[int, ...], hours: tuple[int, ...]) -> str:
    every_minutes, every_hours = _interval(minutes, 60), _interval(hours, 24)
    if every_hours == 1:
        if every_minutes:
            return "every minute" if every_minutes == 1 else f"every {every_minutes} minutes"
        return "every hour" if minutes == (0,) else f"every hour at minute {_listed(_runs(minutes))}"
    if every_hours and len(minutes) == 1:
        return f"every {every_hours} hours" + (f" at minute {minutes[0]}" if minutes[0] else "")
    if len(minutes) * len(hours) <= 6:
        return f"at {_listed([f'{h:02}:{m:02}' for h in hours for m in minutes])}"
    past = f"in the hours {_listed(_runs(hours))}"
    if every_minutes:
        return f"every minute {past}" if every_minutes == 1 else f"every {every_minutes} minutes {past}"
    return f"at minute {_listed(_runs(minutes))} {past}"

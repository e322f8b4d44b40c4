from __future__ import annotations

import itertools
import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.config.schedule import Schedule, ScheduleError

MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1))


SPREAD_MINUTES = ["H", "H/60", "H(59-59)/1", "H(0-29),H(30-59)", "*/5"]
SPREAD_DAYS = ["* * H", "* * H/2", "H * *", "H(28-28) 2 *"]

ZONES = ["Europe/Berlin", "America/New_York", "Europe/Dublin", "Australia/Lord_Howe", "Antarctica/Troll"]


@pytest.mark.parametrize("zone", ZONES)
def test_ticks_every_few_minutes_follow_elapsed_time_when_clocks_change(zone: str) -> None:
    schedule, before = Schedule.parse("*/30 * * * *", zone), datetime(2025, 10, 4, tzinfo=UTC)

    ticks = list(itertools.islice(_ticks(schedule, before), 31 * 48))

    assert {after - before for before, after in itertools.pairwise(ticks)} == {timedelta(minutes=30)}


def test_a_skipped_time_of_day_fires_after_the_gap_and_a_doubled_one_once() -> None:
    schedule = Schedule.parse("30 2 * * *", "Europe/Berlin")

    in_spring = schedule.next_after(datetime(2025, 3, 29, 12, tzinfo=UTC))
    in_autumn = schedule.next_after(datetime(2025, 10, 25, 12, tzinfo=UTC))

    assert in_spring == datetime(2025, 3, 30, 1, 0, tzinfo=UTC)
    assert in_autumn == datetime(2025, 10, 26, 0, 30, tzinfo=UTC)
    assert schedule.next_after(in_autumn) == datetime(2025, 10, 27, 1, 30, tzinfo=UTC)
    # A whole day that a country skipped: Samoa had no 30 December 2011.
    in_apia = Schedule.parse("0 12 * * *", "Pacific/Apia").next_after(datetime(2011, 12, 29, 23, tzinfo=UTC))
    assert in_apia == datetime(2011, 12, 30, 10, tzinfo=UTC)


def test_a_time_is_meant_in_the_time_zone_of_the_schedule() -> None:
    schedule = Schedule.parse("daily at 03:00", "Asia/Tokyo")

    assert schedule.next_after(datetime(2025, 6, 1, tzinfo=UTC)) == datetime(2025, 6, 1, 18, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "cron", "words"),
    [
        ("*/30 * * * *", "*/30 * * * *", "every 30 minutes"),
        ("0 */6 * * *", "0 */6 * * *", "every 6 hours"),
        ("every 6 hours", "0 */6 * * *", "every 6 hours"),
        ("every minute", "* * * * *", "every minute"),
        ("daily at 03:00", "0 3 * * *", "at 03:00 every day"),
        ("every day at 3am", "0 3 * * *", "at 03:00 every day"),
        ("daily 12:05 am", "5 0 * * *", "at 00:05 every day"),
        ("Daily at 3pm", "0 15 * * *", "at 15:00 every day"),
        ("weekdays at 9:00", "0 9 * * 1-5", "at 09:00 on Monday through Friday"),
        ("weekends at 23:59", "59 23 * * 0,6", "at 23:59 on Sunday and Saturday"),
        ("every monday at 03:00", "0 3 * * 1", "at 03:00 on Monday"),
        ("every monday, wednesday and friday at 3:00", "0 3 * * 1,3,5", "at 03:00 on Monday, Wednesday, and Friday"),
        ("@hourly", "0 * * * *", "every hour"),
        ("@daily", "0 0 * * *", "at 00:00 every day"),
        ("@yearly", "0 0 1 1 *", "at 00:00 on January 1"),
        ("0 3 * * FRI-MON", "0 3 * * 5,6,0,1", "at 03:00 on Friday, Saturday, Sunday, and Monday"),
        ("0 3 * * Friday-sun", "0 3 * * 5,6,0", "at 03:00 on Friday, Saturday, and Sunday"),
        ("0 3 L * *", "0 3 l * *", "at 03:00 on the last day of every month"),
        ("0 0 1,15 * ?", "0 0 1,15 * *", "at 00:00 on the first and the 15th day of month"),
        ("0 12 * january,JUL *", "0 12 * jan,jul *", "at 12:00 every day in January and July"),
        ("@every 10m", "*/10 * * * *", "every 10 minutes"),
        ("every 1h 30m", "@every 1h30m", "every 90 minutes"),
        ("every 45 minutes", "@every 45m", "every 45 minutes"),
        ("every 90 seconds", "@every 1m30s", "every 90 seconds"),
        ("every second", "@every 1s", "every second"),
        ("10m", "*/10 * * * *", "every 10 minutes"),
    ],
)
def test_a_schedule_is_read_and_displayed_in_words(text: str, cron: str, words: str) -> None:
    schedule, elsewhere = Schedule.parse(text), Schedule.parse(text, "Europe/Berlin")

    assert (schedule.cron, schedule.words()) == (cron, words)
    assert (elsewhere.cron, elsewhere.words()) == (cron, f"{words} (Europe/Berlin)")
    assert Schedule.parse(cron) == schedule


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "it is empty"),
        ("mondays", "cannot be read"),
        ("often", "cannot be read; write for example"),
        ("* * * *", "a crontab has 5 fields (minute hour day month weekday), this has 4"),
        ("60 * * * *", "the minute is wrong or never comes"),
        ("0 24 * * *", "the hour is wrong"),
        ("0 0 * 13 *", "the month is wrong"),
        *((text, "the day-of-week is wrong") for text in ("0 0 * * 8", "0 0 * * mo-fri")),
        *((f"0 0 {days}", "the day-of-month is wrong") for days in ("0 * *", "30 2 *", "31 4,6,9,11 *")),
        *((text, "of the month and day of the week are both restricted") for text in ("0 3 1 * 1", "0 3 */2 * mon")),
        ("every 7 minutes", "does not divide a day evenly; the next shorter interval that does is `@every 6m40s`"),
        ("every 2 days", "2 days is more than a day; write a crontab, for example `0 0 */2 * *`, or `@weekly`"),
        ("every 0 hours", "0 is no interval; write `never`"),
        ("@every 1.5h", "or `@every 1h30m`, with whole numbers"),
        ("every mondy at 3:00", "'mondy' is no day; did you mean `monday`?"),
        ("daily at 25:00", "25:00 is no time of the day"),
        ("daily at 3:60", "3:60 is no time of the day"),
        ("daily at 3", "3 is no time of the day; write for example 03:00, 15:30 or 3am"),
        ("daily at 13pm", "13pm is no time of the day"),
        ("daily at noon", "write for example `*/30 * * * *`, `@daily`, `every 6 hours`, `daily at 03:00`"),
        *(
            (f"{field} * * * *", "leaves the range of its field, 0 to 59")
            for field in ("H/0", "H(5-60)", "H(9-5)", "H/61")
        ),
        ("H# * * * *", "`H#` cannot be read; write `H`, `H/15`, `H(0-29)` or `H(0-29)/10`"),
        ("0 0 31 H *", "`H` cannot stand for a month"),
        ("H", "cannot be read; write for example"),
        ("@dayly", "unknown shorthand; did you mean `@daily`?"),
        ("@reboot", "unknown shorthand"),
    ],
)
def test_a_wrong_schedule_is_refused_in_words(text: str, complaint: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        Schedule.parse(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Berlni", "did you mean `Europe/Berlin`?"),
        ("utc", "did you mean `UTC`?"),
        ("Mars", "write a name such as UTC or Europe/Berlin"),
        ("", "write a name such as UTC or Europe/Berlin"),
        ("../../etc/passwd", "unknown time zone"),
        ("Europe", "unknown time zone"),
        ("/etc/localtime", "unknown time zone"),
        ("a\0b", "unknown time zone"),
    ],
)
def test_an_unknown_time_zone_is_refused(name: str, hint: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        Schedule.parse("@daily", name)
    assert hint in str(caught.value)


def test_a_moment_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="without a time zone"):
        Schedule.parse("@daily").next_after(datetime(2025, 1, 1))


def test_ticks_of_seconds_are_the_same_on_every_machine() -> None:
    schedule = Schedule.parse("every 15 seconds")
    start = datetime(2026, 3, 1, 23, 59, 44, 999_999, tzinfo=UTC)

    ticks = list(itertools.islice(_ticks(schedule, start), 3))

    assert [f"{tick:%H:%M:%S}" for tick in ticks] == ["23:59:45", "00:00:00", "00:00:15"]


@given(
    st.one_of(st.integers(1, 90_000), st.sampled_from([each for each in range(1, 86_401) if 86_400 % each == 0])),
    st.sampled_from(["UTC", "Asia/Kolkata"]),
    MOMENTS,
)
def test_an_interval_comes_evenly_or_is_refused_with_schedules_that_do(
    seconds: int, zone: str, moment: datetime
) -> None:
    try:
        schedule = Schedule.parse(f"@every {seconds}s", zone)
    except ScheduleError as refused:
        assert 86_400 % seconds
        suggested = re.findall("`(.+?)`", str(refused))
        assert suggested
        assert all(Schedule.parse(each).cron for each in suggested)
        return

    ticks = list(itertools.islice(_ticks(schedule, moment.replace(tzinfo=UTC)), 5))

    assert {b - a for a, b in itertools.pairwise(ticks)} == {timedelta(seconds=seconds)}
    assert Schedule.parse(schedule.cron, zone) == schedule
    words = schedule.words().removesuffix(f" ({zone})")
    assert seconds == 86_400 or Schedule.parse(words, zone) == schedule


def _ticks(schedule: Schedule, start: datetime):
    while True:
        start = schedule.next_after(start)
        yield start


@given(
    st.sampled_from(["@every 20s", "*/7 3-5 * * *", "0 0 29 2 *", "30 2 * * 0", "0 12 1 * *", "@hourly"]),
    st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Antarctica/Troll"]),
    MOMENTS,
)
def test_the_last_tick_that_was_missed_is_the_one_that_no_other_follows(text: str, zone: str, moment: datetime) -> None:
    schedule, now = Schedule.parse(text, zone), moment.replace(tzinfo=UTC)

    last = schedule.last_before(now)

    assert last <= now < schedule.next_after(last)


@pytest.mark.parametrize(
    ("text", "cron", "words"),
    [
        ("H */6 * * *", "48 */6 * * *", "at minute 48 past every sixth hour"),
        ("H/15 * * * *", "3-59/15 * * * *", "every 15th minute from 3 through 59 of every hour"),
        ("h(0-29)/10 H * * *", "8-29/10 20 * * *", "every 10th minute from 8 through 29 past hour 20"),
        ("0,H H(1-5) * * 1-5", "0,48 4 * * 1-5", "at 04:00 and 04:48 on Monday through Friday"),
        ("H H * * H", "48 20 * * 3", "at 20:48 on Wednesday"),
    ],
)
def test_a_repository_has_the_same_ticks_on_every_machine_and_in_every_version(
    text: str, cron: str, words: str
) -> None:
    schedule = Schedule.parse(text, name="platform/payments")

    assert (schedule.cron, schedule.words()) == (cron, words)
    assert Schedule.parse(schedule.cron) == schedule


@given(st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=12))
def test_a_thousand_names_on_one_schedule_are_spread_over_the_hour(prefix: str) -> None:
    ticks = Counter(Schedule.parse("H */6 * * *", name=f"{prefix}/service-{number}").cron for number in range(1_000))

    assert len(ticks) == 60
    assert max(ticks.values()) < 3 * 1_000 / 60


@given(st.text(max_size=20), st.sampled_from(SPREAD_MINUTES), st.sampled_from(SPREAD_DAYS))
def test_a_schedule_that_spreads_can_be_read_for_every_name(name: str, minutes: str, days: str) -> None:
    schedule = Schedule.parse(f"{minutes} H/7 {days}", "Europe/Berlin", name)

    assert Schedule.parse(schedule.cron, "Europe/Berlin") == schedule
    assert schedule.words()

"""`schedule: never`: a registered repository that people, pushes and commands alone sync."""

from __future__ import annotations

from pathlib import Path

import pytest

from reposync.config.effective import effective
from reposync.config.loading import checked_repository
from reposync.config.registry import Registry
from reposync.config.settings import Settings
from tests.unit.config.conftest import Load

ONE = "defaults: {schedule: '@daily', timezone: Europe/Berlin}\nrepositories:\n  - {name: one, path: .%s}\n"
GROUP = "gitlab: [{name: m, url: https://x}]\ndefaults: {schedule: '@daily'}\ngroups: [{gitlab: m, group: g%s}]\n"
SPELLINGS = ["never", "Never", "null", "~", "", "none", "off", "manual", "manual only", "on request", "on request only"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_repository_whose_schedule_is_never_or_null_has_none(spelling: str, load: Load) -> None:
    (one,) = load(ONE % f", schedule: {spelling}").registry.resolved()

    assert one.schedule is None


def test_a_schedule_that_is_left_out_is_the_defaults_one_also_by_an_empty_variable(load: Load) -> None:
    for key in ("", ", schedule: '${NOT_SET:-}'"):
        (one,) = load(ONE % key).registry.resolved()
        assert one.schedule is not None
        assert (one.schedule.cron, one.schedule.timezone, one.timezone) == (
            "0 0 * * *",
            "Europe/Berlin",
            "Europe/Berlin",
        )


def test_a_variable_may_say_never(load: Load) -> None:
    (one,) = load(ONE % ", schedule: '${WHEN}'", WHEN="never").registry.resolved()

    assert one.schedule is None


@pytest.mark.parametrize("spelling", ["never", "null"])
def test_defaults_of_never_hold_for_whom_says_nothing_else(spelling: str, load: Load) -> None:
    registry = load(
        f"defaults: {{schedule: {spelling}}}\nrepositories:\n"
        "  - {name: a, path: .}\n  - {name: b, path: .., schedule: hourly}\n"
    ).registry

    silent, hourly = registry.resolved()

    assert silent.schedule is None
    assert hourly.schedule is not None
    assert hourly.schedule.cron == "0 * * * *"


@pytest.mark.parametrize("spelling", ["never", "null"])
def test_projects_of_a_group_get_its_never_and_the_group_is_looked_through_all_the_same(
    spelling: str, load: Load
) -> None:
    registry = load(GROUP % f", schedule: {spelling}").registry
    (group,) = registry.groups

    project = checked_repository(registry, group.definition("g/p", "g/p"))

    assert project.schedule is None
    assert group.definition("g/p", "g/p")["schedule"] == "never"
    assert group.discover == "*/30 * * * *"


def test_a_group_that_does_not_say_leaves_the_schedule_to_the_defaults(load: Load) -> None:
    registry = load(GROUP % "").registry

    definition = registry.groups[0].definition("g/p", "g/p")

    assert "schedule" not in definition
    assert checked_repository(registry, definition).schedule is not None


def test_what_is_in_effect_says_that_it_is_synced_on_request_only(load: Load, tmp_path: Path) -> None:
    settings = Settings.from_environment({"REPOSYNC_STATE_DIR": str(tmp_path)})

    shown = effective(settings, load(ONE % ", schedule: never"))["repositories"][0]

    assert (shown["cron_expression"], shown["schedule"]) == (None, "on request only")


def test_over_http_null_is_the_default_and_never_has_to_be_written() -> None:
    place = {"name": "a", "git": "https://x/y"}

    assert checked_repository(Registry(), {**place, "schedule": None}).schedule is not None
    assert checked_repository(Registry(), {**place, "schedule": "never"}).schedule is None

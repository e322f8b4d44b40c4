"""`groups:` of the registry: what it may say, what its projects get, and each kind of mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reposync.config.effective import effective
from reposync.config.loading import checked_repository
from reposync.config.settings import Settings
from tests.unit.config.conftest import Complaints, Load

SERVER = "gitlab: [{name: main, url: https://gitlab.example.com}]\n"
GROUP = SERVER + "groups:\n  - {gitlab: main, group: platform%s}\n"
FULL = (
    ", include: ['platform/**'], exclude: [archive-*], archived: true, discover: daily at 4:00, schedule: every 2 hours"
    ", timezone: Europe/Berlin, collection: ours, chunk: {size: 900}, max_file_bytes: 5000"
)


def test_a_group_that_says_nothing_looks_every_half_hour_and_leaves_archived_projects_out(load: Load) -> None:
    (group,) = load(GROUP % "").registry.groups

    assert (group.discover, group.archived, group.include, group.exclude) == ("*/30 * * * *", False, (), ())
    assert group.definition("platform/a", "platform/a") == {
        "name": "platform/a",
        "gitlab": "main",
        "project": "platform/a",
    }


def test_its_projects_get_what_the_group_says_and_the_rest_from_the_defaults(load: Load) -> None:
    registry = load(GROUP % FULL + "defaults: {chunk: {overlap: 100}, exclude: ['*.snap']}\n").registry

    definition = registry.groups[0].definition("platform/a", "platform/a")
    project = checked_repository(registry, json.loads(json.dumps(definition)))

    assert definition["chunk"] == {"size": 900}
    assert (project.name, project.project, project.collection) == ("platform/a", "platform/a", "ours")
    assert (project.schedule.cron, project.schedule.timezone) == ("0 */2 * * *", "Europe/Berlin")
    assert (project.chunk_size, project.chunk_overlap, project.max_file_bytes) == (900, 180, 5000)
    assert (project.include, project.exclude) == ((), ("*.snap",))


def test_what_is_in_effect_for_a_group_has_its_defaults_filled_in(load: Load, tmp_path: Path) -> None:
    settings = Settings.from_environment({"REPOSYNC_STATE_DIR": str(tmp_path)})

    (shown,) = effective(settings, load(GROUP % FULL + "defaults: {chunk: {overlap: 100}}\n"))["groups"]

    assert shown == {
        "gitlab": "main",
        "group": "platform",
        "include": ["platform/**"],
        "exclude": ["archive-*"],
        "archived": True,
        "discover": "0 4 * * *",
        "discovery": "at 04:00 every day (Europe/Berlin)",
        "cron_expression": "0 */2 * * *",
        "timezone": "Europe/Berlin",
        "schedule": "every 2 hours (Europe/Berlin)",
        "collection": "ours",
        "chunk_size": 900,
        "chunk_overlap": 180,
        "max_file_bytes": 5000,
    }


def test_values_may_come_from_variables(load: Load) -> None:
    (group,) = load(GROUP % ", archived: '${A}', schedule: '${S:-}'", A="true").registry.groups
    assert (group.archived, group.schedule) == (True, None)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (", discover: often", "groups[0]: schedule 'often': cannot be read"),
        (", discover: null", "groups[0].discover must be text"),
        (", discover: '0 0 30 2 *'", "the day-of-month is wrong or never comes"),
        (", schedule: hourl", "groups[0]: schedule 'hourl': cannot be read"),
        (", timezone: Berlin", "unknown time zone 'Berlin'"),
        (", archived: 1", "groups[0].archived must be true or false"),
        (", archived: 'true'", "groups[0].archived must be true or false"),
        (", colection: x", "unknown key `colection` in groups[0]; did you mean `collection`?"),
        (", collection: a/b", "groups[0].collection must be 1 to 255 letters"),
        (", branch: main", "unknown key `branch` in groups[0]"),
        (", chunk: {overlap: 7000}", "groups[0].chunk.overlap: overlap must be below size: 7000 is not below 7000"),
        (", archived: yes", "groups[0].archived must be true or false: write true"),
        (", cron: '@daily'", "unknown key `cron` in groups[0]; write `schedule`"),
        (", chunk: {sise: 1000}", "unknown key `sise` in groups[0].chunk; did you mean `size`?"),
        (", max_file_bytes: 0", "groups[0].max_file_bytes must be at least 1"),
        (", include: [/]", "groups[0].include[0] matches nothing"),
    ],
)
def test_each_mistake_is_a_sentence(complaints: Complaints, keys: str, expected: str) -> None:
    (complaint,) = complaints(GROUP % keys)
    assert complaint.startswith("3:")
    assert expected in complaint


@pytest.mark.parametrize("second", ["{gitlab: main, group: Platform}", "{gitlab: same, group: platform}"])
def test_one_group_under_two_spellings_is_a_mistake(complaints: Complaints, second: str) -> None:
    servers = "gitlab:\n  - {name: main, url: https://x}\n  - {name: same, url: https://x/}\n"
    (complaint,) = complaints(f"{servers}groups:\n  - {{gitlab: main, group: platform}}\n  - {second}\n")
    assert "is there already: groups[0], in line 5" in complaint


def test_the_same_path_on_two_servers_is_two_groups(load: Load) -> None:
    servers = "gitlab:\n  - {name: main, url: https://x}\n  - {name: other, url: https://y}\n"
    groups = "groups:\n  - {gitlab: main, group: platform}\n  - {gitlab: other, group: platform}\n"
    assert len(load(servers + groups).registry.groups) == 2

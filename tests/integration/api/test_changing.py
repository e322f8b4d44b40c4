"""Changing a repository beside others who do the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from reposync.store.status import RunStatus
from tests.integration.api.rest import API, Rest

PUBLIC = "https://93.184.215.14/team/handbook.git"
HANDBOOK = f"{API}/repositories/handbook"


@pytest.fixture
async def handbook(rest: Rest) -> Rest:
    await rest.answers("POST", "/repositories", 201, json={"name": "handbook", "git": PUBLIC, "branch": "next"})
    return rest


async def test_concurrent_changes_of_different_keys_are_all_kept(handbook: Rest) -> None:
    changes: list[dict[str, Any]] = [
        {"schedule": "daily at 04:00"},
        {"timezone": "Europe/Berlin"},
        {"include": ["docs/"]},
        {"exclude": ["*.txt"]},
        {"branch": "main"},
        {"max_file_bytes": 5_000},
        {"is_active": False, "paused_reason": "why"},
    ]

    answers = await asyncio.gather(*(handbook.client.patch(HANDBOOK, json=change) for change in changes))

    assert [each.status_code for each in answers] == [200] * len(changes), [each.text for each in answers]
    shown = (await handbook.client.get(HANDBOOK)).json()
    wanted = {key: value for change in changes[:-1] for key, value in change.items()}
    assert shown["definition"] == {"name": "handbook", "git": PUBLIC, **wanted}
    assert shown["paused_reason"] == "why"


async def test_a_schedule_becomes_never_by_its_word_and_the_default_again_by_null(handbook: Rest) -> None:
    never = await handbook.answers("PATCH", "/repositories/handbook", 200, json={"schedule": "never"})
    moved = await handbook.answers("PATCH", "/repositories/handbook", 200, json={"branch": "main"})
    again = await handbook.answers("PATCH", "/repositories/handbook", 200, json={"schedule": None})

    for shown in (never, moved):
        assert (shown["schedule"], shown["cron_expression"], shown["next_due_at"]) == ("on request only", None, None)
        assert (shown["state"], shown["definition"]["schedule"]) == ("active", "never")
    assert (again["schedule"], "schedule" in again["definition"]) == ("every 6 hours", False)
    assert again["next_due_at"] is not None


async def test_if_match_refuses_a_change_after_a_different_change(handbook: Rest) -> None:
    seen = (await handbook.client.get(HANDBOOK)).headers["etag"]
    mine = await handbook.client.patch(HANDBOOK, json={"include": ["docs/"]}, headers={"If-Match": seen})
    theirs = await handbook.client.patch(HANDBOOK, json={"include": ["src/"]}, headers={"If-Match": seen})
    paused = await handbook.client.patch(HANDBOOK, json={"is_active": False}, headers={"If-Match": seen})
    again = await handbook.client.patch(
        HANDBOOK, json={"include": ["src/"], "is_active": False}, headers={"If-Match": f"W/{mine.headers['etag']}"}
    )

    assert mine.status_code == 200
    assert mine.headers["etag"] != seen
    for refused in (theirs, paused):
        assert (refused.status_code, refused.json()["error"]["code"]) == (412, "REPOSITORY_CHANGED")
    assert again.status_code == 200, again.text
    assert again.headers["etag"] == (await handbook.client.get(HANDBOOK)).headers["etag"]
    assert (again.json()["definition"]["include"], again.json()["state"]) == (["src/"], "paused")


async def test_of_many_requests_with_the_same_if_match_one_succeeds(handbook: Rest) -> None:
    seen = (await handbook.client.get(HANDBOOK)).headers["etag"]

    answers = await asyncio.gather(
        *(
            handbook.client.patch(HANDBOOK, json={"include": [f"{number}/"]}, headers={"If-Match": seen})
            for number in range(6)
        )
    )

    assert sorted(each.status_code for each in answers) == [200, 412, 412, 412, 412, 412]
    (done,) = [each.json() for each in answers if each.status_code == 200]
    assert (await handbook.client.get(HANDBOOK)).json()["definition"] == done["definition"]


async def test_a_sync_in_between_is_no_reason_to_refuse_a_change(handbook: Rest) -> None:
    seen = (await handbook.client.get(HANDBOOK)).headers["etag"]
    run = await handbook.answers("POST", "/repositories/handbook/sync", 202)
    await handbook.ended(run["id"], RunStatus.FAILED)
    now = (await handbook.client.get(HANDBOOK)).headers["etag"]

    changed = await handbook.client.patch(HANDBOOK, json={"include": ["docs/"]}, headers={"If-Match": seen})

    assert now != seen, "who polls is told of the sync"
    assert changed.status_code == 200, changed.text

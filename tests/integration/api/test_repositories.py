"""`/api/v1/repositories` as its clients see it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from reposync.config.loading import checked_repository
from reposync.store.endings import Finish
from reposync.store.run import RunFigures
from reposync.store.status import RunStatus
from tests.fixtures.applied import apply_again
from tests.fixtures.repositories import GitRepository
from tests.integration.api.rest import API, Rest

PUBLIC = "https://93.184.215.14/team/handbook.git"
HANDBOOK = f"{API}/repositories/handbook"


async def names(rest: Rest, **query: object) -> list[str]:
    return [each["name"] for each in (await rest.get("/repositories", **query))["items"]]


async def test_the_list_goes_page_by_page_in_the_order_of_names(rest: Rest) -> None:
    first = await rest.get("/repositories", limit=2)
    second = await rest.get("/repositories", limit=2, cursor=first["next_cursor"])

    assert [each["name"] for each in first["items"]] == ["payments", "platform/api"]
    assert [each["name"] for each in second["items"]] == ["platform/wait"]
    assert second["next_cursor"] is None
    assert first["items"][1]["schedule"] == "at 03:00 every day"


async def test_the_list_is_narrowed_by_name_and_state(rest: Rest) -> None:
    await rest.answers("PATCH", "/repositories/platform/api", 200, json={"is_active": False, "paused_reason": "why"})

    assert await names(rest, name="PLATFORM") == ["platform/api", "platform/wait"]
    assert await names(rest, state="paused") == ["platform/api"]
    assert await names(rest, state="active", name="platform") == ["platform/wait"]
    assert await names(rest, state="inactive") == []
    assert await rest.refusal("GET", "/repositories?state=asleep", 422) == "REQUEST_INVALID"
    assert await rest.refusal("GET", "/repositories?nam=x", 422) == "REQUEST_INVALID"
    assert await rest.refusal("GET", "/repositories?cursor=%25", 422) == "USAGE"


async def test_a_list_that_has_not_changed_is_not_sent_again(rest: Rest) -> None:
    first = await rest.client.get(f"{API}/repositories")
    again = await rest.client.get(f"{API}/repositories", headers={"If-None-Match": f'"x", W/{first.headers["etag"]}'})
    await rest.answers("PATCH", "/repositories/payments", 200, json={"is_active": False})
    changed = await rest.client.get(f"{API}/repositories", headers={"If-None-Match": first.headers["etag"]})

    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert changed.status_code == 200 and changed.headers["etag"] != first.headers["etag"]
    assert first.headers["cache-control"] == "private, no-cache"


async def test_the_action_of_a_path_does_not_depend_on_repository_names(rest: Rest) -> None:
    assert await rest.refusal("GET", "/repositories/platform/sync", 405) == "METHOD_NOT_ALLOWED"
    # `wait` of a repository `platform`, and not the repository `platform/wait`.
    assert await rest.refusal("DELETE", "/repositories/platform/wait", 405) == "METHOD_NOT_ALLOWED"
    assert await rest.refusal("DELETE", "/repositories/platform%2Fwait", 409) == "REPOSITORY_READ_ONLY"
    assert await rest.refusal("POST", "/repositories/platform%2Fsync", 405) == "METHOD_NOT_ALLOWED"
    run = await rest.answers("POST", "/repositories/platform%2Fwait/sync", 202)
    assert run["repository"] == "platform/wait"
    for path in ("platform/api", "platform%2Fapi", "platform%2fwait"):
        assert (
            await rest.refusal("GET", f"/repositories/{path}/wait?commit=8843d7f&timeout=0", 504)
            == "NOT_SEARCHABLE_YET"
        )
    assert await rest.refusal("GET", "/repositories/", 404) == "NOT_FOUND"


# Registering ---------------------------------------------------------------------------------------------------------


async def test_a_registered_repository_is_there_with_what_it_was_registered_with(rest: Rest) -> None:
    definition = {"name": "team/sync", "git": PUBLIC, "branch": "main", "include": ["*.md"], "chunk": {"size": 2000}}

    answer = await rest.client.post(f"{API}/repositories", json=definition)

    assert answer.status_code == 201, answer.text
    shown = answer.json()
    assert answer.headers["location"] == f"{API}/repositories/team%2Fsync"
    assert shown == (await rest.client.get(answer.headers["location"])).json()
    assert (shown["origin"], shown["state"], shown["branch"]) == ("http", "active", "main")
    assert shown["definition"] == definition
    row = await rest.app.repositories.get("team/sync")
    assert rest.app.catalog.of_row(row).repository.include == ("*.md",)


async def test_a_definition_is_checked_as_the_registry_file_is(rest: Rest) -> None:
    wrong = {"name": "a b", "gitlab": "mian", "shedule": "x", "branch": "a..b", "max_file_bytes": "7"}
    error = (await rest.answers("POST", "/repositories", 422, json=wrong))["error"]

    assert error["code"] == "CONFIG_INVALID"
    for words in (
        "`shedule`; did you mean `schedule`",
        "max_file_bytes must be a whole number",
        "branch is not a branch name in git",
    ):
        assert words in error["message"]
    with pytest.raises(Exception, match="did you mean"):
        checked_repository(rest.app.configuration.registry, wrong)


async def test_a_name_is_given_once(rest: Rest) -> None:
    said = {"name": "handbook", "git": PUBLIC, "schedule": "never"}
    added = await rest.answers("POST", "/repositories", 201, json=said)
    default = await rest.answers("POST", "/repositories", 201, json={**said, "name": "other", "schedule": None})
    assert (added["schedule"], default["schedule"]) == ("on request only", "every 6 hours")

    again = {"name": "handbook", "git": PUBLIC, "branch": "other"}
    assert await rest.refusal("POST", "/repositories", 409, json=again) == "REPOSITORY_EXISTS"
    of_file = {"name": "payments", "git": PUBLIC}
    assert await rest.refusal("POST", "/repositories", 409, json=of_file) == "REPOSITORY_READ_ONLY"


async def test_sources_that_only_the_server_can_reach_are_refused(rest: Rest) -> None:
    for source in ({"path": "/etc"}, {"git": "http://127.1/x.git"}, {"git": "http://169.254.169.254/latest/meta-data"}):
        asked = {"name": "x", "branch": "main", **source}
        assert await rest.refusal("POST", "/repositories", 403, json=asked) == "SOURCE_NOT_ALLOWED"
    assert await names(rest, name="x") == []


async def test_sources_that_are_none_are_refused(rest: Rest) -> None:
    for source in (
        {"git": "file:///etc"},
        {"git": "git@example.com:x.git"},
        {"git": "ext::sh -c id"},
        {"git": "https://hunter22@93.184.215.14/x.git"},
        {"git": "https://${REPOSYNC_API_TOKEN}@93.184.215.14/x.git"},
        {"git": PUBLIC, "password": "hunter22"},
        {"git": PUBLIC, "username": "MySecretDeployToken123"},
        {"git": f"{PUBLIC}\ud800"},
        {"gitlab": "main"},
        {},
    ):
        error = (await rest.answers("POST", "/repositories", 422, content=json.dumps({"name": "x", **source})))["error"]
        assert error["code"] in ("CONFIG_INVALID", "USAGE"), source
        assert "hunter22" not in error["message"]
    assert await names(rest, name="x") == []


async def test_servers_of_the_registry_and_sources_that_the_operator_allows_are_accepted(rest: Rest) -> None:
    shown = await rest.answers("POST", "/repositories", 201, json={"name": "p", "gitlab": "main", "project": "a/b"})
    assert shown["location"] == "https://gitlab.example.com/a/b"

    path = rest.folder / "repositories.yaml"
    path.write_text(path.read_text() + "http: {allow_local_sources: true}\n")
    await apply_again(rest.app)
    repository = GitRepository.create(rest.folder / "x.git")
    await rest.answers("POST", "/repositories", 201, json={"name": "x", "path": str(repository.path)})
    await rest.answers("POST", "/repositories", 201, json={"name": "y", "git": "http://127.0.0.1:1/y.git"})


# Changing ------------------------------------------------------------------------------------------------------------


async def test_pausing_and_resuming_say_why_and_when(rest: Rest) -> None:
    paused = await rest.answers(
        "PATCH", "/repositories/payments", 200, json={"is_active": False, "paused_reason": "holidays"}
    )
    resumed = await rest.answers("PATCH", "/repositories/payments", 200, json={"is_active": True})

    assert (paused["state"], paused["paused_reason"], paused["next_due_at"]) == ("paused", "holidays", None)
    assert (resumed["state"], resumed["paused_reason"]) == ("active", None)
    assert resumed["next_due_at"] is not None


async def test_a_change_that_does_not_fit_changes_nothing(rest: Rest) -> None:
    before = await rest.answers("POST", "/repositories", 201, json={"name": "handbook", "git": PUBLIC})
    for code, wrong in (
        ("CONFIG_INVALID", {"name": "other"}),
        ("CONFIG_INVALID", {"git": PUBLIC}),
        ("CONFIG_INVALID", {"password": "hunter22"}),
        ("CONFIG_INVALID", {"schedule": "whenever"}),
        ("CONFIG_INVALID", {"branch": "a\ud800"}),
        ("CONFIG_INVALID", {"paused_reason": "why"}),
        ("USAGE", {"is_active": "false"}),
        ("USAGE", {"is_active": False, "paused_reason": "a\u0000"}),
        ("REQUEST_INVALID", [1]),
    ):
        assert await rest.refusal("PATCH", "/repositories/handbook", 422, content=json.dumps(wrong)) == code, wrong

    assert await rest.get("/repositories/handbook") == before


async def test_what_stands_in_the_registry_file_is_changed_there(rest: Rest) -> None:
    seen = (await rest.client.get(f"{API}/repositories/payments")).headers["etag"]
    for condition in (seen, "*"):
        options: dict[str, Any] = {"json": {"is_active": True}, "headers": {"If-Match": condition}}
        await rest.answers("PATCH", "/repositories/payments", 200, **options)
    for name in ("payments", "platform/api"):
        changed = await rest.refusal("PATCH", f"/repositories/{name}", 409, json={"branch": "next"})
        assert changed == "REPOSITORY_READ_ONLY"
        assert await rest.refusal("DELETE", f"/repositories/{name}", 409) == "REPOSITORY_READ_ONLY"
    assert (await rest.answers("POST", "/repositories/payments/sync", 202))["status"] == "queued"


async def test_what_left_the_registry_file_is_neither_synced_nor_resumed(rest: Rest) -> None:
    (rest.folder / "repositories.yaml").write_text("")
    await apply_again(rest.app)

    assert (await rest.get("/repositories/payments"))["state"] == "inactive"
    assert await rest.refusal("POST", "/repositories/payments/sync", 409) == "REPOSITORY_INACTIVE"
    assert await rest.refusal("PATCH", "/repositories/payments", 409, json={"is_active": True}) == "REPOSITORY_INACTIVE"


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


async def test_a_schedule_becomes_never_by_its_word_and_null_means_the_default_again(handbook: Rest) -> None:
    never = await handbook.answers("PATCH", "/repositories/handbook", 200, json={"schedule": "never"})
    moved = await handbook.answers("PATCH", "/repositories/handbook", 200, json={"branch": "main"})
    again = await handbook.answers("PATCH", "/repositories/handbook", 200, json={"schedule": None, "branch": None})

    for shown in (never, moved):
        assert (shown["schedule"], shown["cron_expression"], shown["next_due_at"]) == ("on request only", None, None)
        assert (shown["state"], shown["definition"]["schedule"]) == ("active", "never")
    assert (again["schedule"], again["branch"]) == ("every 6 hours", None)
    assert not {"schedule", "branch"} & set(again["definition"])
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


# Removing ------------------------------------------------------------------------------------------------------------


async def test_removing_is_a_run_that_any_pod_executes(rest: Rest) -> None:
    await rest.answers("POST", "/repositories", 201, json={"name": "a/handbook", "git": PUBLIC})
    sync = await rest.answers("POST", "/repositories/a/handbook/sync", 202)
    running = await rest.claimed(sync["id"])

    asked = await rest.client.delete(f"{API}/repositories/a/handbook", params={"wait": 0})
    again = await rest.answers("DELETE", "/repositories/a/handbook?wait=0", 202)

    assert asked.status_code == 202
    removal = (await rest.client.get(asked.headers["location"])).json()
    assert (removal["status"], removal["removal"]) == ("queued", True)
    assert again["id"] == removal["id"] != sync["id"]
    assert (await rest.get(f"/runs/{sync['id']}"))["cancel_requested"] is True
    assert (await rest.get("/repositories/a/handbook"))["state"] == "paused"
    await rest.other.end(running, Finish(status=RunStatus.CANCELLED), RunFigures())
    claimed = await rest.claimed(removal["id"])
    await rest.app.repositories.remove("a/handbook", by=claimed)
    await rest.other.end(claimed, Finish(), RunFigures(files_deleted=7))
    assert await rest.refusal("GET", "/repositories/a/handbook", 404) == "REPOSITORY_NOT_FOUND"
    assert await rest.refusal("DELETE", "/repositories/a/handbook", 404) == "REPOSITORY_NOT_FOUND"
    assert (await rest.get("/runs", repository="a/handbook"))["items"][0]["files_deleted"] == 7


async def test_a_removal_answers_when_it_is_recorded_and_the_name_is_free(rest: Rest) -> None:
    await rest.answers("POST", "/repositories", 201, json={"name": "handbook", "git": PUBLIC})
    removing = asyncio.create_task(rest.answers("DELETE", "/repositories/handbook", 200))
    while not (waiting := (await rest.get("/runs", repository="handbook", status="queued"))["items"]):
        await asyncio.sleep(0)
    claimed = await rest.claimed(waiting[0]["id"])
    await rest.app.repositories.remove("handbook", by=claimed)
    await rest.other.end(claimed, Finish(), RunFigures())

    assert (await removing)["status"] == "completed"
    await rest.answers("POST", "/repositories", 201, json={"name": "handbook", "git": PUBLIC})


async def test_a_definition_is_put_and_put_again(rest: Rest) -> None:
    entry = {"git": PUBLIC, "schedule": "daily at 04:00", "include": ["docs/"]}
    first = await rest.answers("PUT", "/repositories/handbook", 200, json=entry)
    again = await rest.answers("PUT", "/repositories/handbook", 200, json={"name": "handbook", **entry})
    less = await rest.answers("PUT", "/repositories/handbook", 200, json={"git": PUBLIC, "branch": "next"})

    assert again == first
    assert first["definition"] == {"name": "handbook", **entry}
    assert less["definition"] == {"name": "handbook", "git": PUBLIC, "branch": "next"}
    for wrong in ({"git": f"{PUBLIC}x"}, {**entry, "name": "other"}, {**entry, "shedule": "never"}, {}):
        assert await rest.refusal("PUT", "/repositories/handbook", 422, json=wrong) == "CONFIG_INVALID", wrong
    assert await rest.get("/repositories/handbook") == less
    assert await rest.refusal("PUT", "/repositories/payments", 409, json={"git": PUBLIC}) == "REPOSITORY_READ_ONLY"

"""What a refused client reads: which key, which name, which header, which request would help."""

from __future__ import annotations

from collections import Counter

from reposync.store.status import RunStatus
from tests.integration.api.rest import API, Rest

# What curl and browsers say of a body if nobody tells them better.
FORM = "application/x-www-form-urlencoded"
WITH_BODY = [("POST", "/repositories"), ("PATCH", "/repositories/payments"), ("POST", "/repositories/payments/sync")]
NAMED = [
    ("GET", "/repositories/paymets"),
    ("PATCH", "/repositories/paymets"),
    ("DELETE", "/repositories/paymets"),
    ("POST", "/repositories/paymets/sync"),
    ("GET", "/repositories/paymets/wait?commit=8843d7f&timeout=0"),
    ("GET", "/repositories/paymets/index"),
    ("GET", "/runs?repository=paymets"),
    ("GET", "/runs?repository=paymets&status=failed&trigger=http"),
    ("GET", "/search?q=sessions&repository=paymets"),
]


async def test_a_body_without_a_json_content_type_gets_415_with_the_header(rest: Rest) -> None:
    for media_type in (FORM, "text/plain", "application/jsonl", "multipart/form-data", None):
        headers = {} if media_type is None else {"Content-Type": media_type}
        for method, path in WITH_BODY:
            answer = await rest.client.request(method, API + path, content=b'{"full": true}', headers=headers)

            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (415, "MEDIA_TYPE_UNSUPPORTED"), (media_type, path)
            assert "`Content-Type: application/json`" in error["message"]
    # No body needs no header: this is what `curl -X POST -d ''` sends.
    await rest.answers("POST", "/repositories/payments/sync", 202, content=b"", headers={"Content-Type": FORM})


async def test_json_is_json_by_all_its_names(rest: Rest) -> None:
    for media_type in ("application/json", "Application/JSON; charset=utf-8", "application/x+json"):
        options = {"content": '{"is_active": false}', "headers": {"Content-Type": media_type}}
        await rest.answers("PATCH", "/repositories/payments", 200, **options)


async def test_a_misspelt_repository_is_answered_with_the_nearest(rest: Rest) -> None:
    await rest.run("payments", status=RunStatus.COMPLETED)

    for method, path in NAMED:
        options = {"json": {"is_active": False}} if method == "PATCH" else {}
        error = (await rest.answers(method, path, 404, **options))["error"]
        assert error["code"] == "REPOSITORY_NOT_FOUND", path
        assert error["message"].endswith("Did you mean 'payments'?"), path


async def test_a_name_like_no_other_is_answered_with_the_request_that_names_them(rest: Rest) -> None:
    error = (await rest.answers("POST", "/repositories/zzzzzz/sync", 404))["error"]

    assert error["message"].endswith("Next: `GET /api/v1/repositories`.")
    assert error["next"] == [{"step": "ListRepositories"}]


async def test_the_beginning_of_several_ids_is_a_conflict(rest: Rest) -> None:
    # More than there are digits.
    runs = [await rest.run("payments", status=RunStatus.COMPLETED) for _ in range(17)]
    digit = Counter(run.id[0] for run in runs).most_common(1)[0][0]

    for path in (f"/runs/{digit}", f"/runs/{digit}/problems", f"/runs/{digit}/events"):
        error = (await rest.answers("GET", path, 409))["error"]
        assert error["code"] == "RUN_AMBIGUOUS", path
        assert error["message"] == f"The ids of several runs begin with '{digit}'. Give more of the id."


async def test_a_change_of_an_unknown_key_names_it_and_the_nearest(rest: Rest) -> None:
    for key, near in (("is_actve", "is_active"), ("shedule", "schedule")):
        error = (await rest.answers("PATCH", "/repositories/payments", 422, json={key: None}))["error"]
        assert error["message"] == f"unknown key `{key}`; did you mean `{near}`?"

    error = (await rest.answers("PATCH", "/repositories/payments", 422, json={"zzzz" * 500: 1}))["error"]

    assert error["message"].startswith(f"unknown key `{'zzzz' * 50}`; known here: ")
    assert error["message"].endswith(".")


async def test_a_refusal_names_the_request_that_helps(rest: Rest) -> None:
    done = await rest.run("payments", status=RunStatus.COMPLETED)
    public = {"name": "handbook", "git": "https://93.184.215.14/team/handbook.git"}
    await rest.answers("POST", "/repositories", 201, json=public)
    running = await rest.run("platform/api")
    await rest.claimed(running.id)
    helped_by = [
        ("GET", "/runs/none", 404, None, "`GET /api/v1/runs`"),
        ("POST", f"/runs/{done.id}/retry", 409, None, "`POST /api/v1/repositories/payments/sync`"),
        ("POST", f"/runs/{done.id}/approve", 409, None, '/sync` with `{"allow_mass_delete": true}`'),
        ("POST", "/repositories", 409, public, "`DELETE /api/v1/repositories/handbook`"),
        ("GET", "/search?q=sessions", 422, None, "`GET /api/v1/repositories`"),
        ("GET", "/search?q=sessions&repository=payments", 422, None, "`POST /api/v1/repositories/payments/sync`"),
        ("DELETE", "/locks/payments", 404, None, "`GET /api/v1/locks`"),
        ("DELETE", "/locks/platform/api", 409, None, f"`POST /api/v1/runs/{running.id}/cancel`"),
    ]
    for method, path, status, body, request in helped_by:
        error = (await rest.answers(method, path, status, json=body))["error"]
        assert request in error["message"], path

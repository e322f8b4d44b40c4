"""`--server`: commands of a reader ask a daemon that is elsewhere, with a token from the environment."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from reposync.app.application import Application
from tests.fixtures.gitlab_server import GitLabServer, OtherHost
from tests.fixtures.reader_commands import types
from tests.fixtures.rights_world import AUDIENCE, PROJECTS, SERVICE, RightsWorld, canary, sent

PAYMENTS, EVERYBODYS, HIDDEN = PROJECTS[1], "folder-of-everybody", PROJECTS[4]


@pytest.fixture
async def client(rights_world: RightsWorld) -> AsyncGenerator[httpx.AsyncClient, None]:
    ada = rights_world.adds("ada")
    rights_world.projects[1].members[ada.id] = 20
    async with rights_world.opened() as app:
        await rights_world.index(app, PAYMENTS, EVERYBODYS, HIDDEN)
        assert isinstance(app, Application)
        async with rights_world.served(app) as client:
            yield client


async def test_a_reader_types_what_they_type_beside_a_daemon_and_sees_what_gitlab_shows_them(
    tmp_path: Path, client: httpx.AsyncClient
) -> None:
    async def asks(*words: str) -> Any:
        code, out, err = await types(
            tmp_path, *words, "--server", str(client.base_url), "--json", GITLAB_TOKEN="glpat-of-ada"
        )
        assert code == 0, err
        return json.loads(out)

    assert {row["name"] for row in (await asks("repos", "list"))["items"]} == {PAYMENTS, EVERYBODYS}
    assert {hit["repository"] for hit in (await asks("search", "shared", "word"))["items"]} == {PAYMENTS, EVERYBODYS}
    assert {hit["repository"] for hit in (await asks("grep", "shared"))["items"]} == {PAYMENTS, EVERYBODYS}
    assert canary(PAYMENTS) in (await asks("cat", PAYMENTS, f"{canary(PAYMENTS)}.py"))["text"]
    assert {run["repository"] for run in (await asks("history"))["items"]} == {PAYMENTS, EVERYBODYS}
    code, out, err = await types(
        tmp_path, "cat", HIDDEN, f"{canary(HIDDEN)}.py", "--server", str(client.base_url), REPOSYNC_TOKEN="glpat-of-ada"
    )
    assert (code, out) == (3, "")
    assert err == f"error: No repository '{HIDDEN}' is registered.\n"


async def test_the_owner_of_a_token_is_told_what_they_see_and_why(
    tmp_path: Path, rights_world: RightsWorld, client: httpx.AsyncClient
) -> None:
    server = ("--server", str(client.base_url))
    code, out, err = await types(tmp_path, "access", *server, "--json", REPOSYNC_TOKEN="glpat-of-ada")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["actor"], document["visible"], document["total"]) == ("@ada", 2, len(rights_world.names))
    assert (document["gitlab"], document["is_explained"]) == (rights_world.gitlab.url, True)
    assert {row["name"]: row["reason"] for row in document["items"]} == {
        PAYMENTS: "member: Reporter",
        EVERYBODYS: "its readers are everybody (`readers` of the registry)",
    }

    code, out, _ = await types(tmp_path, "access", *server, REPOSYNC_TOKEN="glpat-of-ada")
    assert re.match(r"@ada: 2 of 10 repositories are yours to see, as of \d\d:\d\d:\d\d UTC\.\n", out)
    assert re.search(rf"^{PAYMENTS} +member: Reporter", out, re.MULTILINE)
    code, out, _ = await types(tmp_path, "access", *server, REPOSYNC_TOKEN=SERVICE)
    assert out.startswith("token 1: 10 of 10 repositories are yours to see")

    for token in ("glpat-of-nobody", "no token"):
        code, out, err = await types(tmp_path, "access", *server, REPOSYNC_TOKEN=token)
        assert (code, out) == (1, "") and "token" in err

    rights_world.seconds.now += 61
    rights_world.gitlab.faults.answer(502, path="/api/graphql", times=None)
    code, out, _ = await types(tmp_path, "access", *server, REPOSYNC_TOKEN="glpat-of-ada")
    assert code == 0 and "did not say now why" in out and PAYMENTS in out
    rights_world.gitlab.faults.clear()


async def test_a_job_is_told_what_it_sees(client: httpx.AsyncClient, rights_world: RightsWorld) -> None:
    jobs = rights_world.gitlab.jobs
    token = jobs.sign(jobs.claims(rights_world.projects[1], AUDIENCE))
    document = (await client.get("/api/v1/access", headers=sent(token))).json()
    assert [(row["name"], row["reason"]) for row in document["items"]] == [(PAYMENTS, "the project of the job")]


@pytest.mark.parametrize("environment", [{}, {"REPOSYNC_TOKEN": "glpat-of-nobody"}])
async def test_without_a_good_token_there_is_one_sentence(
    tmp_path: Path, client: httpx.AsyncClient, environment: dict[str, str]
) -> None:
    code, out, err = await types(tmp_path, "repos", "list", "--server", str(client.base_url), **environment)
    assert (code, out) == (1, "")
    assert "token" in err and "Traceback" not in err


async def test_the_token_follows_no_redirect_and_is_not_sent_in_the_clear(tmp_path: Path) -> None:
    with GitLabServer() as first, OtherHost() as other:
        first.faults.redirect(other.url, path="/api/v1/", times=None)
        code, _, err = await types(tmp_path, "repos", "list", "--server", first.url, REPOSYNC_TOKEN="glpat-of-ada")
        assert (code, other.requests) == (1, [])
        assert other.url in err
        code, _, err = await types(tmp_path, "search", "x", "--server", "http://reposync.example.com",
                                   REPOSYNC_TOKEN="glpat-of-ada")  # fmt: skip
        assert code == 2
        assert "https://" in err
        code, _, err = await types(tmp_path, "search", "x", "--server", other.url, REPOSYNC_TOKEN="glpat-of-ada")
        assert code in (1, 2)
        assert "Traceback" not in err
        first.stop()
        code, _, err = await types(tmp_path, "search", "x", "--server", first.url)
        assert code == 1
        assert "does not answer" in err

"""A job of a pipeline searches with the token that GitLab signed for it: its project, and what names that project."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx
import pytest

from reposync.app.application import Application
from reposync.operations import syncs
from tests.fixtures.gitlab_server import Project
from tests.fixtures.repositories import GitRepository
from tests.fixtures.rights_world import AUDIENCE, PROJECTS, RightsWorld, asked, canary, found, listed

PAYMENTS, BILLING = PROJECTS[1], PROJECTS[2]
NAMED = "folder-of-a-job"


@pytest.fixture
def world(rights_world: RightsWorld) -> RightsWorld:
    return rights_world


@pytest.fixture
async def app(world: RightsWorld) -> AsyncGenerator[Application, None]:
    world.repository(NAMED)
    world.configure(f'\n  - {{name: {NAMED}, path: "{world.path(NAMED)}", readers: ["project:{PAYMENTS.upper()}"]}}')
    async with world.opened() as app:
        await world.index(app, PAYMENTS, BILLING, NAMED, "folder-of-everybody")
        yield app


@pytest.fixture
async def client(world: RightsWorld, app: Application) -> AsyncGenerator[httpx.AsyncClient, None]:
    async with world.served(app) as client:
        yield client


def token(world: RightsWorld, project: Project, audience: str = AUDIENCE, *, source: Project | None = None) -> str:
    return world.gitlab.jobs.sign(world.gitlab.jobs.claims(project, audience, source=source))


async def test_a_job_sees_its_project_and_what_names_that_project(
    world: RightsWorld, client: httpx.AsyncClient
) -> None:
    job = token(world, world.projects[1])
    assert await listed(client, job) == {PAYMENTS, NAMED}
    assert await found(client, job) == {PAYMENTS, NAMED}
    assert await found(client, job, "/grep") == {PAYMENTS, NAMED}
    assert await listed(client, token(world, world.projects[2])) == {BILLING}


async def test_what_a_job_may_not_see_does_not_exist_for_it(world: RightsWorld, client: httpx.AsyncClient) -> None:
    job = token(world, world.projects[1])
    word = canary(BILLING)
    hidden = await asked(client, f"/files/{BILLING}/-/{word}.py", job)
    nothing = await asked(client, f"/files/{BILLING}x/-/{word}.py", job)
    assert (hidden.status_code, hidden.text) == (404, nothing.text.replace(f"{BILLING}x", BILLING))


async def test_a_fork_gains_nothing_by_a_merge_request_that_it_builds_itself(
    world: RightsWorld, client: httpx.AsyncClient
) -> None:
    """GitLab runs it in the fork: `job_project_id` is that of the fork, whatever the target is."""
    fork = world.gitlab.add_project("somebody/payments", world.projects[1].repository.path, id=99)
    assert await listed(client, token(world, fork, source=world.projects[1])) == set()


async def test_a_job_changes_nothing(world: RightsWorld, client: httpx.AsyncClient) -> None:
    headers = {"Authorization": f"Bearer {token(world, world.projects[1])}"}
    answer = await client.post(f"/api/v1/repositories/{PAYMENTS}/sync", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN")


async def test_a_refused_job_learns_why_and_what_to_do(world: RightsWorld, client: httpx.AsyncClient) -> None:
    answer = await asked(client, "/repositories", token(world, world.projects[1], "https://other.example.com"))
    assert answer.status_code == 401
    assert answer.json()["error"]["message"].startswith(f"It is for a different audience: `aud` has to be {AUDIENCE}.")


async def test_gitlab_away_is_no_refusal(world: RightsWorld, client: httpx.AsyncClient) -> None:
    world.gitlab.faults.bad_gateway(path="/oauth/discovery/keys", times=None)
    answer = await asked(client, "/repositories", token(world, world.projects[1]))
    assert answer.status_code == 503


async def test_a_wait_ends_when_what_may_be_seen_has_to_be_decided_again(
    world: RightsWorld, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncs, "MAX_LIMITED_WAIT_SECONDS", 0.0)
    commit = GitRepository(world.path(PAYMENTS)).commit({"new.py": b"def new(): pass\n"})
    job = token(world, world.projects[1])
    answer = await asked(client, f"/repositories/{PAYMENTS}/wait", job, commit=commit, timeout=300)
    assert answer.status_code == 504, answer.text

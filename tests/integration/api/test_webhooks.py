"""GitLab tells of pushes: what its sender gets for an answer, and which runs wait afterwards."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import http.client
import json
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reposync.api import app as api
from reposync.api.auth import Access
from reposync.api.routes import webhooks
from reposync.app.application import Application
from reposync.catalog.apply import registry_in_force
from reposync.store.database import Database
from reposync.store.endings import Finish
from reposync.store.run import Ask, Run, RunFigures
from reposync.store.status import RunStatus, RunTrigger
from tests.fixtures.applied import apply_again
from tests.fixtures.gitlab_server import Change, Delivery, GitLabServer, Project
from tests.fixtures.gitlab_server.state import Hook
from tests.fixtures.gitlab_server.webhooks import sign
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.repositories import GitRepository
from tests.fixtures.versions import publish_commit
from tests.integration.api.rest import opened
from tests.integration.api.serving import client_of, code, parts_of, status_of

SECRET = "a-secret-of-webhooks-1"
OTHER_SECRET = "a-secret-of-webhooks-2"
SIGNING = "whsec_" + base64.b64encode(b"k" * 32).decode()
SHA, NEXT_SHA = "1" * 40, "2" * 40
PUSH = {
    "object_kind": "push",
    "ref": "refs/heads/main",
    "after": SHA,
    "project_id": 42,
    "project": {"path_with_namespace": "platform/app", "default_branch": "main", "web_url": ""},
}


@dataclass
class Site:
    """reposync's HTTP side on a database of its own, and a GitLab that knows where it is."""

    folder: Path
    gitlab: GitLabServer
    project: Project
    repository: GitRepository
    app: Application = field(init=False)
    client: httpx.AsyncClient = field(init=False)

    @property
    def url(self) -> str:
        return str(self.client.base_url.join(webhooks.PATH))

    @contextlib.asynccontextmanager
    async def open(
        self, *repositories: str, secrets: str = "webhook_secret: '${HOOK}'", more: str = ""
    ) -> AsyncIterator[Site]:
        """`repositories`: entries of the registry, of server `main`. All are registered as a daemon does it."""
        entries = "".join(f"  - {{{each}}}\n" for each in repositories)
        text = f'gitlab:\n  - {{name: main, url: "{self.gitlab.url}", {secrets}}}\n{more}repositories:\n{entries}'
        async with (
            opened(self.folder, text) as self.app,
            client_of(parts_of(self.app, Access(["read:" + "x" * 40]))) as self.client,
        ):
            yield self

    def hook(self, token: str | None = SECRET, *, signing: str | None = None) -> Hook:
        """A hook of the project that leads here."""
        hook = Hook(len(self.project.hooks) + 1, self.url, token, signing)
        self.project.hooks[hook.id] = hook
        return hook

    async def push(self, branch: str = "main", *, before: str | None = None, after: str | None = None) -> Any:
        """What the only hook is answered when `branch` moved to the head of the repository, or was deleted."""
        change = Change(branch, before, after)
        (delivery,) = await asyncio.to_thread(self.gitlab.webhooks.push, self.project, change)
        return answered(delivery)

    async def posts(self, event: Any = PUSH, *, kind: str = "Push Hook", **headers: str) -> httpx.Response:
        """By hand, with the right secret token unless `headers` say otherwise."""
        said = {"X-Gitlab-Event": kind, "X-Gitlab-Token": SECRET}
        said |= {name.replace("_", "-"): value for name, value in headers.items()}
        content = event if isinstance(event, bytes) else json.dumps(event).encode()
        return await self.client.post(self.url, content=content, headers={k: v for k, v in said.items() if v})

    async def runs(self, repository: str | None = None) -> list[Run]:
        return await self.app.history.runs(repository)

    async def indexed(self, name: str, commit: str, number: int | None = None) -> None:
        """As after a run that came to its end."""
        run, _ = await self.app.runs.enqueue(name, Ask(RunTrigger.COMMAND))
        claimed = await self.app.runs.claim("test", 60, run_id=run.id)
        assert claimed is not None
        await publish_commit(self.app.database, claimed, commit, project_id=number)
        await self.app.runs.end(claimed, Finish(), RunFigures())


def answered(delivery: Delivery) -> Any:
    """Status and the essence of the answer."""
    told = json.loads(delivery.answer)
    if "error" in told:
        return delivery.status, told["error"]["code"]
    started = [(each["repository"], each["status"]) for each in told["runs"]]
    return delivery.status, started, [(each["repository"], each["reason"]) for each in told["ignored"]]


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    repository = GitRepository.create(tmp_path / "app.git")
    repository.commit({"a.py": b"x = 1\n"})
    return repository


@pytest.fixture
def site(
    tmp_path: Path, repository: GitRepository, upgraded_sqlite_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    # All that stands around the route is there; to build the other routes for each test would take most of its time.
    monkeypatch.setattr(api, "ROUTES", (webhooks.webhook_routes,))
    secrets = {"HOOK": SECRET, "OTHER_HOOK": OTHER_SECRET, "SIGNING": SIGNING, "GITLAB_TOKEN": "glpat-x"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "state").mkdir()
    shutil.copyfile(upgraded_sqlite_file, tmp_path / "state" / "reposync.db")
    with GitLabServer() as gitlab:
        project = gitlab.add_project("platform/app", repository.path, id=42)
        yield Site(tmp_path, gitlab, project, repository)


APP = "name: app, gitlab: main, project: platform/app"


# Pushes that start a run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [
        APP,
        "name: app, gitlab: main, project: Platform/App",
        'name: app, git: "GITLAB/platform/app.git"',
        f"{APP}, schedule: never",
    ],
)
async def test_a_push_to_the_default_branch_queues_one_run_however_the_repository_is_registered(
    site: Site, entry: str
) -> None:
    async with site.open(entry.replace("GITLAB", site.gitlab.url)):
        site.hook()
        assert await site.push(after=site.repository.head()) == (202, [("app", "queued")], [])
        (run,) = await site.runs()
        assert (run.trigger, run.status) == (RunTrigger.WEBHOOK, RunStatus.QUEUED)

        again = await site.posts(X_Gitlab_Event_UUID="8f1a3c52-8a55-4c47-9d12-0f6a1f6f2a11")
        assert again.json()["runs"] == [{"repository": "app", "run_id": run.id, "status": "queued", "is_new": False}]
        askers = (await site.app.history.get(run.id)).askers
        assert askers[-1] == "push to platform/app, delivery 8f1a3c52-8a55-4c47-9d12-0f6a1f6f2a11"


async def test_two_branches_of_one_project_each_have_their_run(site: Site) -> None:
    async with site.open(f"{APP}-x, branch: x".replace("app-x", "app"), f"name: next, {APP[11:]}, branch: y"):
        site.hook()
        head = site.repository.head()
        assert await site.push("x", after=head) == (202, [("app", "queued")], [("next", "other_branch")])
        assert await site.push("y", after=head) == (202, [("next", "queued")], [("app", "other_branch")])
        assert {run.repository for run in await site.runs()} == {"app", "next"}
    # A branch that the registry no longer names does not count.
    async with site.open(APP):
        answer = (await site.posts(PUSH | {"after": NEXT_SHA})).json()
        assert [each["repository"] for each in answer["runs"]] == ["app"]


async def test_a_project_is_known_by_its_number_and_not_by_its_former_path(site: Site) -> None:
    async with site.open(APP):
        await site.indexed("app", SHA, number=42)
        site.hook()
        site.project.move("elsewhere/renamed")
        assert await site.push(after=site.repository.head()) == (202, [("app", "queued")], [])
        unknown = PUSH | {"project_id": 7}
        assert (await site.posts(unknown)).json()["ignored"][0]["reason"] == "unknown_project"


async def test_a_push_to_a_project_that_was_created_again_says_how_to_adopt_it(site: Site) -> None:
    async with site.open(APP):
        await site.indexed("app", SHA, number=42)
        ignored = (await site.posts(PUSH | {"project_id": 51})).json()["ignored"][0]
        assert (ignored["reason"], ignored["message"]) == (
            "unknown_project",
            "platform/app is number 51, but app is registered as number 42. If the project was created again: "
            "`reposync repos adopt app`.",
        )


async def test_the_same_number_on_another_server_is_another_project(site: Site) -> None:
    other = '  - {name: other, url: "https://other.example.com", webhook_secret: "${OTHER_HOOK}"}\n'
    there = "name: there, gitlab: other, project: platform/app"
    async with site.open(APP, there, more=other):
        await site.indexed("app", SHA, number=42)
        await site.indexed("there", SHA, number=42)
        event = PUSH | {"after": NEXT_SHA}
        assert (await site.posts(event)).json()["runs"][0]["repository"] == "app"
        answer = await site.posts(event, X_Gitlab_Token=OTHER_SECRET)
        assert [each["repository"] for each in answer.json()["runs"]] == ["there"]
    # With the same secret, the address in the event decides.
    async with site.open(APP, there, more=other.replace("OTHER_HOOK", "HOOK")):
        site.hook()
        assert (await site.push(after=site.repository.head()))[1] == [("app", "queued")]


async def test_a_system_hook_may_contain_many_branches(site: Site) -> None:
    async with site.open(APP, f"name: dev, {APP[11:]}, branch: dev"):
        update = {
            "event_name": "repository_update",
            "project_id": 42,
            "project": PUSH["project"],
            "changes": [{"before": SHA, "after": NEXT_SHA, "ref": f"refs/heads/{name}"} for name in ("a", "b", "main")],
        }
        answer = (await site.posts(update, kind="System Hook")).json()
        assert [each["repository"] for each in answer["runs"]] == ["app"]
        pushed = {name: value for name, value in PUSH.items() if name != "object_kind"} | {"event_name": "push"}
        answer = (await site.posts(pushed | {"ref": "refs/heads/dev"}, kind="System Hook")).json()
        assert [each["repository"] for each in answer["runs"]] == ["dev"]


# Pushes that start none, and are no failure of the hook ---------------------------------------------------------------


async def test_what_is_no_reason_for_a_run_is_answered_with_200_and_the_reason(site: Site) -> None:
    async with site.open(APP):
        site.hook()
        head = site.repository.head()
        assert await site.push("feature", after=head) == (200, [], [("app", "other_branch")])
        assert await site.push("main", before=head) == (200, [], [("app", "branch_deleted")])
        await site.indexed("app", head)
        assert await site.push(after=head) == (200, [], [("app", "already_indexed")])
        for kind, reason in (("Tag Push Hook", "tag_push"), ("Issue Hook", "other_event"), ("Job Hook", "other_event")):
            answer = await site.posts({}, kind=kind)
            assert (answer.status_code, answer.json()["ignored"][0]["reason"]) == (200, reason)
        for name, reason in (
            ("tag_push", "tag_push"),
            ("project_rename", "other_event"),
            ("key_create", "other_event"),
        ):
            answer = await site.posts({"event_name": name}, kind="System Hook")
            assert (answer.status_code, answer.json()["ignored"][0]["reason"]) == (200, reason)
        tag = await site.posts(PUSH | {"ref": "refs/tags/v1"})
        assert (tag.status_code, tag.json()["ignored"][0]["reason"]) == (200, "tag_push")
        await site.app.repositories.pause("app", "being moved")
        assert await site.push(after=site.repository.commit({"b.py": b"2\n"})) == (200, [], [("app", "paused")])
        (site.folder / "repositories.yaml").write_text(
            (site.folder / "repositories.yaml").read_text().replace(f"  - {{{APP}}}\n", "")
        )
        await apply_again(site.app)
        assert await site.push(after=site.repository.head()) == (200, [], [("app", "inactive")])
        assert [run.trigger for run in await site.runs()] == [RunTrigger.COMMAND]


# Who may -----------------------------------------------------------------------------------------------------------


async def test_a_wrong_or_missing_secret_is_refused_and_a_bearer_token_does_not_help(site: Site) -> None:
    async with site.open(APP):
        hook = site.hook("wrong-secret-wrong-secret")
        assert await site.push(after=site.repository.head()) == (401, "WEBHOOK_REFUSED")
        hook.token = None
        assert await site.push(after=site.repository.head()) == (401, "WEBHOOK_REFUSED")
        with_bearer = await site.posts(X_Gitlab_Token="", Authorization="Bearer " + "x" * 40)
        assert code(with_bearer) == (401, "WEBHOOK_REFUSED")
        assert code(await site.posts(X_Gitlab_Token=SECRET[:-1])) == (401, "WEBHOOK_REFUSED")
        # Refused while the body has only been announced.
        head = f"POST {webhooks.PATH} HTTP/1.1\r\nHost: localhost\r\nX-Gitlab-Event: Push Hook\r\nX-Gitlab-Token: wrong"
        assert await status_of(site.client.base_url, f"{head}\r\nContent-Length: 20000000\r\n\r\n") == 401
        assert await site.runs() == []

        text = (site.folder / "repositories.yaml").read_text().replace("${HOOK}", "${OTHER_HOOK}")
        (site.folder / "repositories.yaml").write_text(text)
        await apply_again(site.app)
        assert code(await site.posts()) == (401, "WEBHOOK_REFUSED")
        assert (await site.posts(X_Gitlab_Token=OTHER_SECRET)).status_code == 202


async def test_without_a_secret_webhooks_are_off_and_the_answer_says_how_to_switch_them_on(site: Site) -> None:
    async with site.open(APP, secrets="token: '${GITLAB_TOKEN}'"):
        site.hook("any-secret-any-secret")
        assert await site.push(after=site.repository.head()) == (403, "WEBHOOKS_OFF")
        answer = await site.posts(X_Gitlab_Token="")
        assert code(answer) == (403, "WEBHOOKS_OFF")
        assert "webhook_secret" in answer.text


async def test_a_signed_push_is_let_in_and_one_that_was_changed_is_not(site: Site) -> None:
    async with site.open(APP, secrets="webhook_signing: '${SIGNING}'"):
        hook = site.hook(None, signing=SIGNING)
        assert await site.push(after=site.repository.head()) == (202, [("app", "queued")], [])
        assert code(await site.posts(X_Gitlab_Token="")) == (401, "WEBHOOK_REFUSED")
        hook.signing_token = "whsec_" + base64.b64encode(b"x" * 32).decode()
        assert await site.push(after=site.repository.head()) == (401, "WEBHOOK_REFUSED")
        body, now = json.dumps(PUSH).encode(), str(int(time.time()))
        right = sign(SIGNING, "id", now, body)
        signed = {"X_Gitlab_Token": "", "webhook_id": "id", "webhook_timestamp": now, "webhook_signature": right}
        assert (await site.posts(body, **signed)).status_code == 202
        several = signed | {"webhook_signature": f"v1,AAAA {right}"}
        assert (await site.posts(body, **several)).status_code == 202
        for change in ({"webhook_id": "other"}, {"webhook_timestamp": str(int(now) - 1)}, {"webhook_signature": "v1,"}):
            assert code(await site.posts(body, **signed | change)) == (401, "WEBHOOK_REFUSED")
        assert code(await site.posts(body + b" ", **signed)) == (401, "WEBHOOK_REFUSED")


async def test_an_old_signature_is_refused_and_says_why(site: Site) -> None:
    async with site.open(APP, secrets="webhook_signing: '${SIGNING}'"):
        site.hook(None, signing=SIGNING)
        for now in (time.time() - 301, time.time() + 400):
            site.gitlab.clock = lambda now=now: now
            (delivery,) = await asyncio.to_thread(
                site.gitlab.webhooks.push, site.project, Change("main", None, site.repository.head())
            )
            assert delivery.status == 401
            assert "clocks of both machines" in json.loads(delivery.answer)["error"]["message"]


async def test_a_signature_must_hold_where_the_server_signs_whatever_token_comes_with_it(site: Site) -> None:
    async with site.open(APP, secrets="webhook_signing: '${SIGNING}', webhook_secret: '${HOOK}'"):
        hook = site.hook(SECRET)  # a hook from the time before
        assert (await site.push(after=site.repository.head()))[0] == 202
        hook.signing_token = "whsec_" + base64.b64encode(b"x" * 32).decode()
        assert await site.push(after=site.repository.head()) == (401, "WEBHOOK_REFUSED")
        hook.signing_token = SIGNING
        assert (await site.push(after=site.repository.head()))[0] == 202


async def test_a_pod_without_the_variable_of_the_secret_lets_gitlab_try_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.open(APP):
        assert (await site.posts()).status_code == 202
        monkeypatch.delenv("HOOK")
        site.app.adopt(await registry_in_force(site.app.database))
        assert code(await site.posts()) == (503, "WEBHOOK_SECRET_MISSING")


# Bounds -----------------------------------------------------------------------------------------------------------


async def test_the_largest_event_that_gitlab_sends_is_taken_and_a_larger_one_is_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "MAX_BODY_BYTES", 3_000_000)
    async with site.open(APP):
        body = json.dumps(PUSH | {"commits": ["x" * 1_000]}).encode()
        exactly = body + b" " * (3_000_000 - len(body))
        assert (await site.posts(exactly)).status_code == 202
        assert code(await site.posts(exactly + b" ")) == (413, "BODY_TOO_LARGE")


async def test_a_sender_of_25_mb_that_is_refused_reads_why(site: Site) -> None:
    """By a client that sends everything before it reads, as GitLab's does."""

    def sends(token: str) -> int:
        address = site.client.base_url
        with contextlib.closing(
            http.client.HTTPConnection(address.host, address.port, timeout=PATIENCE_SECONDS)
        ) as client:
            headers = {"X-Gitlab-Event": "Push Hook", "X-Gitlab-Token": token}
            client.request("POST", webhooks.PATH, body=b" " * 26_500_000, headers=headers)
            return client.getresponse().status

    async with site.open(APP):
        assert await asyncio.to_thread(sends, "wrong-secret-wrong-secret") == 401
        assert await asyncio.to_thread(sends, SECRET) == 413
    async with site.open(APP, secrets="token: '${GITLAB_TOKEN}'"):
        assert await asyncio.to_thread(sends, SECRET) == 403


async def test_a_body_that_does_not_come_is_not_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "BODY_SECONDS", 0.05)
    async with site.open(APP):
        head = (
            f"POST {webhooks.PATH} HTTP/1.1\r\nHost: localhost\r\nX-Gitlab-Event: Push Hook\r\nX-Gitlab-Token: {SECRET}"
        )
        assert await status_of(site.client.base_url, f"{head}\r\nContent-Length: 9\r\n\r\n{{") == 408


async def test_no_more_is_held_at_a_time_than_there_is_room_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "MAX_BODIES_BYTES", 1_000)
    async with site.open(APP):
        body = json.dumps(PUSH).encode()
        full = body + b" " * (1_000 - len(body))
        for _ in range(3):  # what was held is given back, whatever the answer is
            assert (await site.posts(full)).status_code == 202
            assert code(await site.posts(b" " * 1_000)) == (422, "WEBHOOK_INVALID")
            assert code(await site.posts(full + b" ")) == (503, "BUSY")


RUBBISH = [
    b"",
    b"null",
    b"\xff\xfe",
    b"[" * 100_000,
    *(
        json.dumps(PUSH | odd).encode()
        for odd in (
            {"project_id": 2**70},
            {"project_id": True},
            {"ref": "x" * 5_000},
            {"after": SHA + "\n"},
            {"project": None},
        )
    ),
]


async def test_invalid_events_with_the_secret_are_refused(site: Site) -> None:
    async with site.open(APP):
        for body in RUBBISH:
            answer = await site.posts(body)
            assert code(answer) == (422, "WEBHOOK_INVALID"), body[:40]
            assert SECRET not in answer.text
        for kind in ("", "anything"):
            assert code(await site.posts(kind=kind)) == (422, "WEBHOOK_INVALID")
        assert await site.runs() == []


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(sorted(PUSH)), inner),
    max_leaves=8,
)
_ODD = st.dictionaries(
    st.sampled_from(sorted(PUSH)),
    _JSON | st.sampled_from(["\0", "refs/heads/\0", "refs/heads/main", "\ud800", 42, 2**63 - 1, 2**63]),
)
_TEXT = st.sampled_from(["", "/", "\0", "main"]) | st.text()
_PROJECTS = st.fixed_dictionaries(dict.fromkeys(("path_with_namespace", "default_branch", "web_url"), _TEXT))
_EVENTS = (
    _JSON | _ODD.map(lambda odd: PUSH | odd) | _PROJECTS.map(lambda odd: PUSH | {"project": PUSH["project"] | odd})
)


async def test_no_json_breaks_the_route_and_without_the_secret_none_gets_in(site: Site) -> None:
    async with site.open(APP):
        loop = asyncio.get_running_loop()

        async def both(event: Any, kind: str) -> None:
            content = json.dumps(event).encode()
            known = await site.posts(content, kind=kind)
            assert known.status_code in (200, 202, 422), known.text
            before = len(await site.runs())
            stranger = await site.posts(content, kind=kind, X_Gitlab_Token="")
            assert stranger.status_code == 401
            assert len(await site.runs()) == before

        @settings(max_examples=100)
        @given(_EVENTS, st.sampled_from(["Push Hook", "Push Hook", "System Hook", "x"]))
        def say(event: Any, kind: str) -> None:
            asyncio.run_coroutine_threadsafe(both(event, kind), loop).result(30)

        await asyncio.to_thread(say)


# The database -----------------------------------------------------------------------------------------------------


async def test_a_push_that_waits_longer_than_gitlab_is_queued_nevertheless(site: Site) -> None:
    async with site.open(APP):
        async with site.app.database.write():  # as another process would
            with pytest.raises(httpx.ReadTimeout):
                await site.client.post(
                    site.url,
                    json=PUSH,
                    headers={"X-Gitlab-Event": "Push Hook", "X-Gitlab-Token": SECRET},
                    timeout=httpx.Timeout(20, read=0.5),
                )
            assert await site.runs() == []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await site.runs():
                await asyncio.sleep(0.01)


async def test_a_push_that_still_waits_for_the_database_ends_with_the_server(site: Site) -> None:
    async with contextlib.AsyncExitStack() as other:
        async with site.open(APP):
            process = await other.enter_async_context(await Database.open(site.app.configuration.settings.database_url))
            await other.enter_async_context(process.write())
            waiting = asyncio.create_task(site.posts())
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not [each for each in asyncio.all_tasks() if "RequestResponseCycle" in repr(each.get_coro())]:
                    await asyncio.sleep(0.01)
        with contextlib.suppress(httpx.HTTPError):
            assert code(await waiting) == (503, "SHUTTING_DOWN")
        gc.collect()  # a connection that was opened after the database had been closed would be reported
        assert asyncio.all_tasks() == {asyncio.current_task()}

"""People who signed in at GitLab, on several pods: whose token is used, when it is refreshed, and what ends it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from pydantic import SecretStr

from reposync.access.gitlab_oauth import GitLabOAuth, SignInFailed, SignInUnavailable
from reposync.app.sign_in import New, Opened, SessionEnded, SignIns
from reposync.config.gitlab_instance import GitLabInstance
from reposync.store.database import Database
from reposync.store.status import CredentialKind
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.gitlab_server.rights import User
from tests.fixtures.released_schemas import rows

REDIRECT_URI = "http://localhost:8080/sign-in/callback"
SESSION = CredentialKind.SESSION
OpenDatabase = Callable[[], Awaitable[Database]]


@pytest.fixture
def gitlab() -> Iterator[GitLabServer]:
    with GitLabServer() as server:
        server.oauth.add_application(REDIRECT_URI)
        yield server


@pytest.fixture
def ann(gitlab: GitLabServer) -> User:
    gitlab.oauth.signed_in = user = gitlab.rights.add_user("ann")
    return user


class Pod:
    """A process that serves people, with its own connection to the database."""

    def __init__(self, gitlab: GitLabServer, database: Database) -> None:
        (application,) = gitlab.oauth.applications.values()
        server = GitLabInstance(name="main", url=gitlab.url)
        self.oauth = GitLabOAuth(server, application.id, SecretStr(application.secret), application.redirect_uri)
        self.people = SignIns(self.oauth, lambda: database)

    async def code(self, verifier: str) -> str:
        """What a browser brings back from GitLab."""
        async with httpx.AsyncClient() as browser:
            answer = await browser.get(self.oauth.address("state-1", verifier))
        query = parse_qs(urlsplit(answer.headers["location"]).query)
        assert query["state"] == ["state-1"]
        return query["code"][0]

    async def sign_in(self) -> str:
        verifier = secrets.token_urlsafe(48)
        tokens = await self.oauth.exchange(await self.code(verifier), verifier)
        return await self.people.begin(tokens, await self.oauth.person(tokens.access), 3600.0)

    async def open(self, secret: str) -> Opened:
        opened = await self.people.open(secret, SESSION)
        assert opened is not None
        return opened


@pytest.fixture
async def pods(gitlab: GitLabServer, open_database: OpenDatabase) -> AsyncIterator[tuple[Pod, Pod]]:
    both = Pod(gitlab, await open_database()), Pod(gitlab, await open_database())
    yield both
    for pod in both:
        await pod.oauth.close()


async def test_a_session_of_one_pod_opens_gitlabs_token_on_every_pod(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    here, there = pods
    secret = await here.sign_in()

    opened = await there.open(secret)

    assert (opened.grant.user_id, opened.grant.username) == (ann.id, "ann")
    token = await there.people.token(opened)
    assert gitlab.tokens[token.get_secret_value()].user is ann
    assert gitlab.oauth.refreshes == 0
    assert await there.people.open(secret, CredentialKind.PERSONAL, CredentialKind.ACCESS) is None
    assert await there.people.open(f"{secret[:-4]}AAAA", SESSION) is None


async def test_the_database_holds_nothing_that_opens_a_session_or_is_a_token(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User, database_url: str, tmp_path: Path
) -> None:
    pod, _ = pods
    secret = await pod.sign_in()
    opened = await pod.open(secret)
    kinds = dict.fromkeys((CredentialKind.PERSONAL, CredentialKind.ACCESS, CredentialKind.REFRESH), 60.0)
    made = await pod.people.issue(opened, New(kinds))
    gitlab.oauth.lasts_seconds = 5
    await pod.people.token(opened, refused=await pod.people.token(opened))

    everything = str(await rows(database_url)).encode()
    everything += b"".join(path.read_bytes() for path in tmp_path.glob("reposync.db*"))

    assert ann.username.encode() in everything
    for hidden in (secret, *made.values(), *gitlab.oauth.issued):
        assert hidden.encode() not in everything
    assert len(gitlab.oauth.issued) == 5


async def test_two_pods_that_need_a_new_token_at_once_refresh_it_once_and_both_have_it(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    here, there = pods
    gitlab.oauth.lasts_seconds = 30
    secret = await here.sign_in()
    gitlab.oauth.lasts_seconds = 7_200
    openeds = [await pod.open(secret) for pod in (here, there) for _ in range(5)]

    tokens = await asyncio.gather(
        *((here, there)[number // 5].people.token(opened) for number, opened in enumerate(openeds))
    )

    assert gitlab.oauth.refreshes == 1
    assert len({token.get_secret_value() for token in tokens}) == 1
    assert tokens[0].get_secret_value() in gitlab.tokens


async def test_a_token_that_gitlab_refuses_before_its_time_is_refreshed_once(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    here, there = pods
    secret = await here.sign_in()
    before = [(pod, await pod.open(secret)) for pod in (here, there)]
    refused = await here.people.token(before[0][1])

    for pod, opened in before:
        assert await pod.people.token(opened, refused=refused) != refused

    assert gitlab.oauth.refreshes == 1


async def test_what_gitlab_has_ended_ends_with_everything_that_stands_for_it(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    here, there = pods
    secret = await here.sign_in()
    opened = await here.open(secret)
    personal = (await here.people.issue(opened, New({CredentialKind.PERSONAL: 60.0})))[CredentialKind.PERSONAL]
    gitlab.oauth.grants.clear()

    with pytest.raises(SessionEnded):
        await here.people.token(opened, refused=await here.people.token(opened))

    assert await there.people.open(secret, SESSION) is None
    assert await there.people.open(personal, CredentialKind.PERSONAL) is None


async def test_while_gitlab_is_away_a_token_is_used_to_its_end_and_refreshed_after_that(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    pod, _ = pods
    gitlab.oauth.lasts_seconds = 30
    opened = await pod.open(await pod.sign_in())
    gitlab.oauth.lasts_seconds = 0
    over = await pod.open(await pod.sign_in())
    gitlab.oauth.lasts_seconds = 7_200
    gitlab.faults.bad_gateway(status=503, path="/oauth/token", times=None)

    token = await pod.people.token(opened)
    with pytest.raises(SignInUnavailable):
        await pod.people.token(over)

    gitlab.faults.clear()
    for each in (opened, over):
        assert await pod.people.token(each) != token
    assert gitlab.oauth.refreshes == 2


async def test_signing_out_ends_the_session_on_every_pod_and_the_grant_at_gitlab(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    here, there = pods
    secret = await here.sign_in()

    await there.people.sign_out(secret)

    assert await here.people.open(secret, SESSION) is None
    assert gitlab.oauth.grants == []
    await there.people.sign_out(secret)  # twice does no harm


async def test_a_token_that_was_made_in_a_session_outlives_it_until_it_is_revoked(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    here, there = pods
    secret = await here.sign_in()
    made = await here.people.issue(await here.open(secret), New({CredentialKind.PERSONAL: 60.0}, "laptop"))
    await here.people.sign_out(secret)
    token = made[CredentialKind.PERSONAL]

    opened = await there.people.open(token, CredentialKind.PERSONAL)
    assert opened is not None
    assert (await there.people.token(opened)).get_secret_value() in gitlab.tokens

    # It is listed in any later session of the same person, and in none of another one.
    later = await here.open(await here.sign_in())
    (listed,) = await here.people.own(later, CredentialKind.PERSONAL)
    assert listed.name == "laptop"
    gitlab.oauth.signed_in = gitlab.rights.add_user("eve")
    eve = await here.open(await here.sign_in())
    assert await here.people.own(eve, CredentialKind.PERSONAL) == []
    assert await here.people.end_own(eve, listed.family) is False

    assert await here.people.end_own(later, listed.family) is True
    assert await there.people.open(token, CredentialKind.PERSONAL) is None


async def test_an_expired_credential_opens_nothing_and_the_next_sign_in_removes_it(
    pods: tuple[Pod, Pod], ann: User, database: Database
) -> None:
    pod, _ = pods
    opened = await pod.open(await pod.sign_in())
    made = await pod.people.issue(opened, New({CredentialKind.PERSONAL: -1.0}))

    assert await pod.people.open(made[CredentialKind.PERSONAL], CredentialKind.PERSONAL) is None
    await pod.sign_in()
    assert len(await pod.people.own(opened, *CredentialKind)) == 2, "two sessions"


# At the door ----------------------------------------------------------------------------------------------------------


async def test_a_code_of_another_sign_in_or_used_twice_is_refused(pods: tuple[Pod, Pod], ann: User) -> None:
    pod, _ = pods
    with pytest.raises(SignInFailed):
        await pod.oauth.exchange(await pod.code("verifier-of-the-browser"), "verifier-of-a-thief")
    code = await pod.code("verifier-1")
    await pod.oauth.exchange(code, "verifier-1")
    with pytest.raises(SignInFailed):
        await pod.oauth.exchange(code, "verifier-1")


async def test_a_token_of_another_application_is_not_a_sign_in(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    pod, _ = pods
    gitlab.oauth.foreign = "application-of-somebody-else"
    with pytest.raises(SignInFailed, match="different application"):
        await pod.sign_in()


async def test_a_blocked_person_and_a_gitlab_without_an_answer_are_told_apart(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    pod, _ = pods
    ann.state = "blocked"
    with pytest.raises(SignInFailed, match="does not let this account in"):
        await pod.sign_in()
    ann.state = "active"
    gitlab.faults.web_page(1_000, path="/oauth/token")
    with pytest.raises(SignInUnavailable, match="not JSON"):
        await pod.sign_in()


async def test_no_secret_follows_a_redirect(pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User) -> None:
    pod, _ = pods
    gitlab.faults.redirect(f"{gitlab.url}/elsewhere", path="/oauth/token")
    with pytest.raises(SignInUnavailable, match="302"):
        await pod.sign_in()
    assert gitlab.log.matching("/elsewhere") == []

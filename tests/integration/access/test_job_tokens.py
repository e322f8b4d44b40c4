"""A job of a pipeline proves which project it belongs to by a token that GitLab signed, and by nothing else."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from reposync.access.job_tokens import ASK_AGAIN_SECONDS, JobTokens
from reposync.app.gitlab_access import is_job_token
from reposync.errors import ReaderRefused, RightsUnavailable
from reposync.http_client import ErrorKinds, HttpClient
from tests.fixtures.gitlab_server.server import GitLabServer
from tests.fixtures.gitlab_server.state import Project
from tests.fixtures.repositories import GitRepository

AUDIENCE = "https://reposync.example.com"
KEYS = "/oauth/discovery/keys"


@pytest.fixture(scope="module")
def gitlab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitLabServer]:
    with GitLabServer() as server:
        folder: Path = tmp_path_factory.mktemp("repository")
        repository = GitRepository.create(folder / "repository.git").path
        server.add_project("platform/api", repository, id=20)
        server.add_project("somebody/api", repository, id=31)
        yield server


@pytest.fixture
def project(gitlab: GitLabServer) -> Project:
    gitlab.log.forget()
    gitlab.faults.clear()
    return gitlab.projects[0]


@dataclass
class Clock:
    """What `JobTokens` takes for the database's clock, and for the one that counts seconds."""

    ahead: timedelta = field(default_factory=timedelta)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def elapsed(self) -> float:
        return self.ahead.total_seconds()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def tokens(gitlab: GitLabServer, clock: Clock) -> AsyncIterator[JobTokens]:
    http = HttpClient(gitlab.url, ErrorKinds(RightsUnavailable, RightsUnavailable, RightsUnavailable))
    yield JobTokens(http, audience=AUDIENCE, now=clock.now, elapsed=clock.elapsed)
    await http.close()


async def test_a_token_names_the_project_of_its_job(tokens: JobTokens, gitlab: GitLabServer, project: Project) -> None:
    job = await tokens.verify(gitlab.jobs.sign(gitlab.jobs.claims(project, AUDIENCE)))
    assert (job.project_id, job.project_path, job.name) == (20, "platform/api", "job 302 of platform/api")


async def test_the_job_of_a_forks_merge_request_is_that_of_the_project_that_runs_it(
    tokens: JobTokens, gitlab: GitLabServer, project: Project
) -> None:
    claims = gitlab.jobs.claims(project, AUDIENCE, source=gitlab.projects[1])
    assert claims["project_id"] == "31"
    assert (await tokens.verify(gitlab.jobs.sign(claims))).project_id == 20


async def test_one_of_several_audiences_is_enough(tokens: JobTokens, gitlab: GitLabServer, project: Project) -> None:
    token = gitlab.jobs.sign(gitlab.jobs.claims(project, ["https://other.example.com", AUDIENCE]))
    assert (await tokens.verify(token)).project_id == 20


async def test_the_keys_are_read_once_for_many_tokens(
    tokens: JobTokens, gitlab: GitLabServer, project: Project
) -> None:
    for _ in range(3):
        await tokens.verify(gitlab.jobs.sign(gitlab.jobs.claims(project, AUDIENCE)))
    assert len(gitlab.log.matching(KEYS)) == 1


async def test_a_new_key_is_found_when_its_first_token_comes(
    tokens: JobTokens, gitlab: GitLabServer, project: Project, clock: Clock
) -> None:
    former = gitlab.jobs.sign(gitlab.jobs.claims(project, AUDIENCE))
    await tokens.verify(former)
    gitlab.jobs.rotate()
    clock.ahead += timedelta(seconds=ASK_AGAIN_SECONDS + 1)
    assert (await tokens.verify(gitlab.jobs.sign(gitlab.jobs.claims(project, AUDIENCE)))).project_id == 20
    with pytest.raises(ReaderRefused, match="a key that GitLab does not list"):
        await tokens.verify(former)


async def test_many_tokens_of_unknown_keys_ask_gitlab_once_a_minute(
    tokens: JobTokens, gitlab: GitLabServer, project: Project, clock: Clock
) -> None:
    await tokens.verify(gitlab.jobs.sign(gitlab.jobs.claims(project, AUDIENCE)))
    clock.ahead += timedelta(seconds=ASK_AGAIN_SECONDS + 1)
    for number in range(50):
        with pytest.raises(ReaderRefused, match="a key that GitLab does not list"):
            await tokens.verify(gitlab.jobs.sign(gitlab.jobs.claims(project, AUDIENCE), kid=f"unknown {number}"))
    assert len(gitlab.log.matching(KEYS)) == 2


Claims = dict[str, Any]
CHANGES: dict[str, tuple[Callable[[Claims], object], str]] = {
    "of a different audience": (lambda claims: claims.update(aud="https://other.example.com"), "different audience"),
    "of an audience that only begins alike": (lambda claims: claims.update(aud=AUDIENCE + ".evil.com"), "audience"),
    "without an audience": (lambda claims: claims.pop("aud"), "lacks `aud`"),
    "of a different issuer": (lambda claims: claims.update(iss="https://gitlab.example.org"), "different issuer"),
    "that has expired": (lambda claims: claims.update(exp=claims["iat"] - 1), "has expired"),
    "without an end": (lambda claims: claims.pop("exp"), "lacks `exp`"),
    "with an end that is a text": (lambda claims: claims.update(exp=str(claims["exp"])), "times are not numbers"),
    "of tomorrow": (lambda claims: claims.update(nbf=claims["nbf"] + 86_400), "not valid yet"),
    "of an older GitLab": (lambda claims: claims.pop("job_project_id"), "lacks `job_project_id`.*18.4"),
    "with a number in place of an id": (lambda claims: claims.update(job_project_id=20), "not an id as GitLab"),
    "with a list in place of an id": (
        lambda claims: claims.update(job_project_id=["20"]),
        "not an id as GitLab",
    ),
    "with another script's digits": (lambda claims: claims.update(job_project_id="٢٠"), "not an id as GitLab"),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_token_is_refused(tokens: JobTokens, gitlab: GitLabServer, project: Project, name: str) -> None:
    change, reason = CHANGES[name]
    claims = gitlab.jobs.claims(project, AUDIENCE)
    change(claims)
    with pytest.raises(ReaderRefused, match=reason):
        await tokens.verify(gitlab.jobs.sign(claims))


async def test_a_token_ends_by_the_clock_of_the_database(
    tokens: JobTokens, gitlab: GitLabServer, project: Project, clock: Clock
) -> None:
    token = gitlab.jobs.sign(gitlab.jobs.claims(project, AUDIENCE))
    clock.ahead = timedelta(minutes=59)
    await tokens.verify(token)
    clock.ahead = timedelta(minutes=61)
    with pytest.raises(ReaderRefused, match="has expired"):
        await tokens.verify(token)


async def test_a_token_that_somebody_else_signed_is_refused(
    tokens: JobTokens, gitlab: GitLabServer, project: Project
) -> None:
    forger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    claims = gitlab.jobs.claims(project, AUDIENCE)
    name = next(reversed(gitlab.jobs.keys))
    public = gitlab.jobs.keys[name].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    own = jwt.algorithms.RSAAlgorithm.to_jwk(forger.public_key(), as_dict=True)
    head, body, _ = gitlab.jobs.sign(claims).split(".")
    unsigned = base64.urlsafe_b64encode(orjson.dumps({"alg": "none", "kid": name})).decode().rstrip("=")
    forged = {
        "with a key of their own": jwt.encode(claims, forger, "RS256", {"kid": name}),
        "with their own key in the head": jwt.encode(claims, forger, "RS256", {"kid": name, "jwk": own}),
        "with an address of keys in the head": jwt.encode(claims, forger, "RS256", {"kid": name, "jku": "http://x/"}),
        "with the public key as a shared secret": _hmac(claims, public, name),
        "with nothing": f"{unsigned}.{body}.",
        "with the signature of another": f"{head}.{body}.{gitlab.jobs.sign(claims | {'jti': 'x'}).split('.')[2]}",
        "without naming a key": jwt.encode(claims, forger, "RS256"),
    }
    for how, token in forged.items():
        with pytest.raises(ReaderRefused):
            await tokens.verify(token)
            pytest.fail(how)


def _hmac(claims: Claims, secret: bytes, name: str) -> str:
    """PyJWT refuses to make such a token."""
    import hashlib
    import hmac

    parts = [orjson.dumps({"alg": "HS256", "typ": "JWT", "kid": name}), orjson.dumps(claims)]
    text = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    signature = base64.urlsafe_b64encode(hmac.digest(secret, text.encode(), hashlib.sha256)).decode().rstrip("=")
    return f"{text}.{signature}"


NONSENSE = ["eyJ.x.y", "eyJhbGciOiJSUzI1NiJ9..", "eyJhbGciOiJSUzI1NiJ9.e30.x", "eyJ" + "a" * 9_000]


@pytest.mark.parametrize("token", NONSENSE)
async def test_nonsense_is_refused_without_asking_gitlab(
    tokens: JobTokens, project: Project, gitlab: GitLabServer, token: str
) -> None:
    with pytest.raises(ReaderRefused):
        await tokens.verify(token)
    assert not gitlab.log.matching(KEYS)


async def test_no_refusal_quotes_the_token(tokens: JobTokens, gitlab: GitLabServer, project: Project) -> None:
    token = gitlab.jobs.sign(gitlab.jobs.claims(project, "https://other.example.com"))
    with pytest.raises(ReaderRefused) as refused:
        await tokens.verify(token)
    assert not any(part in str(refused.value) for part in token.split("."))


@pytest.mark.parametrize(
    "answer", ["<html>Sign in</html>", "[]", "{}", '{"keys": [{"kty": "oct", "k": "eA", "kid": "a"}]}']
)
async def test_gitlab_without_a_list_of_keys_is_no_refusal(
    tokens: JobTokens, gitlab: GitLabServer, project: Project, answer: str
) -> None:
    gitlab.faults.answer(200, answer, path=KEYS, times=None)
    with pytest.raises(RightsUnavailable):
        await tokens.verify(gitlab.jobs.sign(gitlab.jobs.claims(project, AUDIENCE)))


async def test_gitlab_away_is_no_refusal_and_it_is_not_asked_for_each_token(
    tokens: JobTokens, gitlab: GitLabServer, project: Project, clock: Clock
) -> None:
    gitlab.faults.bad_gateway(path=KEYS, times=None)
    token = gitlab.jobs.sign(gitlab.jobs.claims(project, AUDIENCE))
    for _ in range(20):
        with pytest.raises(RightsUnavailable):
            await tokens.verify(token)
    assert len(gitlab.log.matching(KEYS)) == 1
    gitlab.faults.clear()
    clock.ahead += timedelta(seconds=5)
    assert (await tokens.verify(token)).project_id == 20


def test_gitlabs_other_tokens_do_not_look_like_those_of_jobs() -> None:
    assert not any(is_job_token(each) for each in ("glpat-abc.01.xyz", "a.b.c", "eyJ", "eyJa.b", "glcbt-64_x.y.z"))

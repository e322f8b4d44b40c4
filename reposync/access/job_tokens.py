"""Tokens that GitLab signs for a job of a pipeline (`id_tokens`): which project's job asks.

A job proves itself without any secret. GitLab's documentation, "OpenID Connect (OIDC) authentication using ID tokens":
RS256, `iss` is the server's address, `aud` what the pipeline names, all ids are texts. The keys are at
`/oauth/discovery/keys`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import jwt
import orjson

from reposync.clock import elapsed_seconds
from reposync.errors import ReaderRefused, RightsUnavailable
from reposync.http_client import HttpClient, HttpRefused, TransientFailure
from reposync.outgoing import OtherServer

KEYS_PATH: Final = "/oauth/discovery/keys"
KEEP_KEYS_SECONDS: Final = 3600.0
"""GitLab lets others keep them for a day; a key that it does not list any more is refused after an hour."""
ASK_AGAIN_SECONDS: Final = 60.0
"""A token with an unknown key asks GitLab once in this time, however many such tokens come."""
PAUSE_SECONDS: Final = 2.0
"""GitLab is not asked again so soon after it could not say its keys."""
MAX_TOKEN_CHARS: Final = 8_192
_MAX_KEYS_BYTES: Final = 256 * 1024
_WITHIN_SECONDS: Final = 10.0
_SKEW_SECONDS: Final = 60.0
_ALGORITHM: Final = "RS256"
_CLAIMS: Final = ("iss", "aud", "exp", "nbf", "iat", "sub", "job_project_id")


@dataclass(frozen=True, slots=True)
class Job:
    """`project_id`: of the project that runs the job. In the pipeline of a fork's merge request that is not the project
    whose commit is built. `name`: for the audit."""

    project_id: int
    project_path: str
    name: str


class JobTokens:
    """Verifies the tokens of one GitLab server. `audience`: what pipelines name as `aud`. `issuer`: `iss` of its
    tokens, if that is not its address. `now`: by the database's clock; `elapsed`: see `elapsed_seconds`."""

    def __init__(
        self,
        http: HttpClient,
        *,
        audience: str,
        now: Callable[[], datetime],
        issuer: str | None = None,
        elapsed: Callable[[], float] = elapsed_seconds,
    ) -> None:
        self._http = http
        self._audience = audience
        self._issuer = issuer or http.url.rstrip("/")
        self._now = now
        self._elapsed = elapsed
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at = self._asked_at = -math.inf
        self._reading = asyncio.Lock()

    async def verify(self, token: str) -> Job:
        """Raises ReaderRefused, which quotes no part of the token, and RightsUnavailable if GitLab's keys cannot be
        read now: the token may be valid."""
        if len(token) > MAX_TOKEN_CHARS:
            raise ReaderRefused(f"The token is longer than {MAX_TOKEN_CHARS:,} characters.")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise ReaderRefused("It is not a signed token.") from None
        if header.get("alg") != _ALGORITHM:
            raise ReaderRefused(f"It is not signed by {_ALGORITHM}, as GitLab's tokens are.")
        key = await self._key(header.get("kid"))
        options: Any = {"require": list(_CLAIMS), "verify_exp": False, "verify_nbf": False, "verify_iat": False}
        try:
            claims = jwt.decode(
                token, key, algorithms=[_ALGORITHM], audience=self._audience, issuer=self._issuer, options=options
            )
        except jwt.InvalidAudienceError:
            raise ReaderRefused(f"It is for a different audience: `aud` has to be {self._audience}.") from None
        except jwt.InvalidIssuerError:
            raise ReaderRefused(f"It is of a different issuer than {self._issuer}.") from None
        except jwt.MissingRequiredClaimError as error:
            raise ReaderRefused(f"It lacks `{error.claim}`: it needs GitLab 18.4 or later.") from None
        except jwt.PyJWTError:
            raise ReaderRefused("Its signature is not valid.") from None
        self._check_times(claims)
        return _job(claims)

    def _check_times(self, claims: dict[str, Any]) -> None:
        """By the database's clock, which all pods share."""
        now = self._now().timestamp()
        times = [claims[name] for name in ("exp", "nbf", "iat")]
        if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in times):
            raise ReaderRefused("Its times are not numbers.")
        until, since, made_at = times
        if now >= until:
            raise ReaderRefused("It has expired. A token is valid as long as its job may run.")
        if now + _SKEW_SECONDS < max(since, made_at):
            raise ReaderRefused("It is not valid yet.")

    async def _key(self, name: object) -> jwt.PyJWK:
        if not isinstance(name, str):
            raise ReaderRefused("It names no key.")
        async with self._reading:
            now = self._elapsed()
            is_old = now - self._read_at > KEEP_KEYS_SECONDS
            if is_old or (name not in self._keys and now - self._asked_at > ASK_AGAIN_SECONDS):
                if now - self._asked_at < PAUSE_SECONDS:
                    raise RightsUnavailable("GitLab's keys could not be read a moment ago.")
                self._asked_at = now
                self._keys = await self._read()
                self._read_at = now
            if name not in self._keys:
                raise ReaderRefused("It is signed by a key that GitLab does not list.")
            return self._keys[name]

    async def _read(self) -> dict[str, jwt.PyJWK]:
        address = self._http.url.rstrip("/") + KEYS_PATH
        try:
            async with self._http.stream("GET", address, kind="keys", within_seconds=_WITHIN_SECONDS) as response:
                body = await self._http.read(response, _MAX_KEYS_BYTES)
            listed = jwt.PyJWKSet.from_dict(orjson.loads(body))
            keys = {key.key_id: key for key in listed if key.key_id and key.key_type == "RSA"}
        except HttpRefused as error:
            raise RightsUnavailable(f"{self._http.name} answered {error.status} instead of its keys.") from None
        except (TransientFailure, OtherServer) as error:
            raise RightsUnavailable(f"The keys of {self._http.name} cannot be read: {error}") from None
        except (ValueError, AttributeError, jwt.PyJWTError):
            raise RightsUnavailable(f"{self._http.name} sent no list of keys.") from None
        if not keys:
            raise RightsUnavailable(f"{self._http.name} lists no key that signs tokens.")
        return keys


def _job(claims: dict[str, Any]) -> Job:
    """Ids are texts of digits: a number, or a text with anything else, is not GitLab's."""
    project = claims["job_project_id"]
    if not (isinstance(project, str) and project.isascii() and project.isdigit() and len(project) <= 19):
        raise ReaderRefused("`job_project_id` is not an id as GitLab writes it.")
    path = claims.get("job_project_path")
    job = claims.get("job_id")
    path = path if isinstance(path, str) else ""
    shown = f"job {job} of {path}" if isinstance(job, str) and job.isdigit() and path else f"a job of project {project}"
    return Job(int(project), path, shown[:200])

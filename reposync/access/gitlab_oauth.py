"""GitLab as the place where people sign in: OAuth 2.0, authorization code with PKCE, of one registered application.

GitLab names no audience in its tokens, and a refresh ends the token and the refresh token before it at once: two
refreshes of one token end both. So whose tokens they are is asked, and who refreshes is decided by the caller.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from pydantic import SecretStr

from reposync.config.gitlab_instance import GitLabInstance
from reposync.errors import RepoSyncError
from reposync.http_client import ErrorKinds, HttpClient, HttpRefused, TransientFailure
from reposync.outgoing import Timeouts, parse_json, printable

SCOPE = "read_api"
"""Needed for what decides who reads code: GraphQL answers no lesser one."""
DEFAULT_SECONDS = 7_200.0
"""How long a token is valid if GitLab does not say."""
_TIMEOUTS = Timeouts(connect_seconds=5.0, read_seconds=10.0)
EXCHANGE_SECONDS = 10.0
"""The time limit of one request with its answer."""
_MAX_ANSWER_BYTES = 256 * 1024
_MAX_TOKEN_CHARS = 4_000


class SignInFailed(RepoSyncError, code="SIGN_IN_FAILED", status=403):
    """The sign-in at GitLab did not succeed: it was refused, or took too long, or was begun in a different browser."""


class SignInUnavailable(RepoSyncError, code="SIGN_IN_UNAVAILABLE", status=503, retryable=True):
    """GitLab does not answer a sign-in, or not as it should."""


class GrantEnded(Exception):
    """GitLab accepts these tokens no more: they were revoked or refreshed elsewhere, or the person was blocked."""


_ERRORS = ErrorKinds(SignInUnavailable, SignInUnavailable, SignInUnavailable)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What GitLab granted. `lasts_seconds`: the access token, from now on."""

    access: SecretStr
    refresh: SecretStr
    lasts_seconds: float


@dataclass(frozen=True, slots=True)
class Person:
    id: int
    username: str


class GitLabOAuth:
    """Methods raise SignInUnavailable. No redirect is followed: it would carry a secret elsewhere."""

    def __init__(self, server: GitLabInstance, client_id: str, client_secret: SecretStr, redirect_uri: str) -> None:
        self.url = server.url
        self._client_id = client_id
        self._secret = client_secret
        self.redirect_uri = redirect_uri
        self._http = HttpClient(server.url, _ERRORS, ca_file=server.ca_file, timeouts=_TIMEOUTS)

    def address(self, state: str, verifier: str) -> str:
        """Where a browser signs in."""
        query = {
            "client_id": self._client_id,
            "redirect_uri": self.redirect_uri,
            "response_type": "code",
            "scope": SCOPE,
            "state": state,
            "code_challenge": challenge_of(verifier),
            "code_challenge_method": "S256",
        }
        return f"{self.url}/oauth/authorize?{urlencode(query)}"

    async def exchange(self, code: str, verifier: str) -> Tokens:
        """Raises SignInFailed for a code that GitLab does not accept."""
        form = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
        try:
            return await self._granted(form)
        except GrantEnded as error:
            raise SignInFailed("GitLab does not accept this sign-in.", remedy="Sign in again.") from error

    async def refresh(self, refresh: SecretStr) -> Tokens:
        """Raises GrantEnded."""
        return await self._granted({"grant_type": "refresh_token", "refresh_token": refresh.get_secret_value()})

    async def revoke(self, tokens: Tokens) -> None:
        """The refresh token goes with the access token: GitLab has both in one row."""
        await self._request("POST", "/oauth/revoke", {"token": tokens.access.get_secret_value()})

    async def person(self, access: SecretStr) -> Person:
        """Whose token it is. Raises SignInFailed unless it was granted to this application, for what is needed."""
        try:
            granted = await self._request("GET", "/oauth/token/info", token=access)
            shown = await self._request("GET", "/api/v4/user", token=access)
        except HttpRefused as refusal:
            raise SignInFailed(f"GitLab does not let this account in: {refusal.text or refusal.status}.") from refusal
        application = granted.get("application")
        if not isinstance(application, dict) or application.get("uid") != self._client_id:
            raise SignInFailed("GitLab's token belongs to a different application.")
        scopes, number, username = granted.get("scope"), shown.get("id"), shown.get("username")
        if not isinstance(scopes, list) or SCOPE not in scopes:
            raise SignInFailed(f"GitLab did not grant the scope {SCOPE}, which the application must have.")
        if type(number) is not int or granted.get("resource_owner_id") != number or not isinstance(username, str):
            raise SignInUnavailable("GitLab does not say whose token it granted.")
        return Person(number, username)

    async def close(self) -> None:
        await self._http.close()

    async def _granted(self, form: dict[str, str]) -> Tokens:
        try:
            answer = await self._request("POST", "/oauth/token", form | {"redirect_uri": self.redirect_uri})
        except HttpRefused as refusal:
            if refusal.status in (400, 401) and _error_of(refusal) == "invalid_grant":
                raise GrantEnded from refusal
            raise SignInUnavailable(
                f"{self._http.name} refused to grant a token ({refusal.status}: {_error_of(refusal)}).",
                remedy="Check `http.sign_in` of the registry file: the application's id, its secret, its redirect "
                f"URI, which must be {self.redirect_uri}, and its scope {SCOPE}.",
            ) from refusal
        access, refresh, seconds = (answer.get(name) for name in ("access_token", "refresh_token", "expires_in"))
        if not all(isinstance(token, str) and 0 < len(token) <= _MAX_TOKEN_CHARS for token in (access, refresh)):
            raise SignInUnavailable("GitLab's answer to a sign-in has no tokens.")
        lasts_seconds = float(seconds) if isinstance(seconds, int | float) else DEFAULT_SECONDS
        return Tokens(SecretStr(str(access)), SecretStr(str(refresh)), lasts_seconds)

    async def _request(
        self, method: str, path: str, form: dict[str, str] | None = None, *, token: SecretStr | None = None
    ) -> dict[str, Any]:
        """Raises HttpRefused."""
        headers, content = {"Accept": "application/json"}, None
        if token is not None:
            headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        if form is not None:
            client = {"client_id": self._client_id, "client_secret": self._secret.get_secret_value()}
            content = urlencode(form | client).encode()
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        stream = self._http.stream(
            method,
            self.url + path,
            kind="oauth",
            headers=headers,
            content=content,
            follow_redirects=False,
            within_seconds=EXCHANGE_SECONDS,
        )
        try:
            async with stream as response:
                found = parse_json(await self._http.read(response, _MAX_ANSWER_BYTES) or b"{}")
        except TransientFailure as failure:
            raise SignInUnavailable(
                f"{self._http.name} does not answer: {failure.reason}.",
                remedy="Try again in a moment.",
                retry_after_seconds=failure.wait_seconds,
            ) from failure
        except ValueError as error:
            raise SignInUnavailable(f"{self._http.name} answers with something that is not JSON.") from error
        if not isinstance(found, dict):
            raise SignInUnavailable(f"{self._http.name} answers with something else than was asked.")
        return found


def challenge_of(verifier: str) -> str:
    """PKCE, S256 (RFC 7636)."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def _error_of(refusal: HttpRefused) -> str:
    """The code of an OAuth error, and nothing else of the answer."""
    try:
        found = parse_json(refusal.body)
    except ValueError:
        return "no reason"
    return printable(str(found.get("error", "no reason")))[:50] if isinstance(found, dict) else "no reason"

"""Who may do what over HTTP: programs by token, people in browsers by a session that began with one."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Request, Response, Security
from fastapi.security import HTTPBearer

from reposync.api.attempts import Attempts
from reposync.api.csrf import SAFE_METHODS, LoginForms, check_proof, proof_in
from reposync.api.envelope import ErrorAnswer, error_answer
from reposync.api.gate import Gate
from reposync.api.sessions import SESSION_SECONDS, Session, Sessions, key_id_of
from reposync.config.http import HttpConfig
from reposync.config.tokens import ApiToken
from reposync.errors import RepoSyncError

log = logging.getLogger(__name__)

_SESSION, _LOGIN = "reposync-session", "reposync-login"
_LOGIN_SECONDS = 3600

ACCESS_ERRORS: Mapping[int | str, dict[str, Any]] = {
    401: {"model": ErrorAnswer, "description": "No token, or one that is not known"},
    403: {"model": ErrorAnswer, "description": "The token may not do this, or another site's page asks"},
    429: {"model": ErrorAnswer, "description": "Too many wrong tokens came from this address"},
}
"""What `requires` may answer, for the `responses` of a route."""

_documented = HTTPBearer(auto_error=False, description="One of the tokens in REPOSYNC_API_TOKEN.")


ANONYMOUS = "anonymous"
"""Who asks where no tokens are configured."""


class Role(IntEnum):
    """Each may do what the ones before may."""

    READ = 1
    OPERATE = 2


class AccessDenied(RepoSyncError):
    """No token, or one that is not known."""

    code = "UNAUTHENTICATED"
    status = 401


class LoginNeeded(AccessDenied):
    """A page for somebody who has not logged in: the browser is sent to the login."""


class RoleMissing(RepoSyncError):
    """The token is known, and may not do this."""

    code = "FORBIDDEN"
    status = 403


class TooManyAttempts(RepoSyncError):
    """Wrong tokens, one after the other."""

    code = "TOO_MANY_ATTEMPTS"
    status = 429

    def __init__(self, wait_seconds: float) -> None:
        self.wait_seconds = math.ceil(wait_seconds)
        super().__init__("Too many wrong tokens came from this address.", remedy=f"Try again in {self.wait_seconds} s.")


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks. `by`: `anybody` where no tokens are configured. `csrf`: what this visitor's pages have to send along
    with everything that changes something, as form field `csrf` or header X-CSRF-Token; empty where nothing is
    checked. `name`: for the history; a token's number is its place in REPOSYNC_API_TOKEN."""

    role: Role
    by: Literal["anybody", "token", "session"]
    csrf: str = ""
    name: str = ANONYMOUS

    @property
    def may_operate(self) -> bool:
        return self.role >= Role.OPERATE


@dataclass(frozen=True, slots=True)
class LoginForm:
    """`csrf` goes into the form, `keep` is called with the answer that shows it."""

    csrf: str
    _cookie: str
    _access: Access

    def keep(self, request: Request, response: Response) -> None:
        self._access.set_cookie(request, response, _LOGIN, self._cookie, _LOGIN_SECONDS)


@dataclass(frozen=True, slots=True)
class _Known:
    digest: bytes
    token: ApiToken
    key_id: str
    name: str


class Access:
    """`tokens`: each is `read:SECRET`, `operate:SECRET` or a bare secret, which may operate. Without any, everybody who
    reaches the server may do everything: it listens on loopback only then."""

    def __init__(
        self,
        tokens: Iterable[str | ApiToken],
        config: HttpConfig | None = None,
        *,
        attempts: Attempts | None = None,
    ) -> None:
        held = [ApiToken.parse(token) if isinstance(token, str) else token for token in tokens]
        self._known = [
            _Known(_digest(each.secret.get_secret_value()), each, key_id_of(each), f"token {number}")
            for number, each in enumerate(held, 1)
        ]
        self._sessions = Sessions(held)
        self._forms = LoginForms(held)
        self._attempts = attempts or Attempts()
        self.config = config or HttpConfig()

    @property
    def has_tokens(self) -> bool:
        return bool(self._known)

    def role_of(self, token: str) -> Role | None:
        """In a time that does not depend on which token it is like."""
        found = self._find(token)
        return _role(found.token.role) if found is not None else None

    def requires(self, role: Role) -> Any:
        """A dependency of a route: who calls it must have the role. Raises AccessDenied, RoleMissing, TooManyAttempts,
        CsrfRefused. The route may take its value, the Role of who asks."""

        async def check(request: Request, _: Annotated[Any, Security(_documented)]) -> Role:
            return (await self._admitted(request, role)).role

        return Depends(check)

    def page(self, role: Role = Role.READ) -> Any:
        """As `requires`, for pages: whoever is unknown is sent to the login. Its value is the Visitor."""

        async def check(request: Request) -> Visitor:
            try:
                return await self._admitted(request, role)
            except AccessDenied as error:
                raise LoginNeeded(error.message) from error

        return Depends(check)

    def reads_metrics(self) -> Any:
        """A dependency of /metrics. Raises AccessDenied, TooManyAttempts."""

        async def check(request: Request) -> None:
            if self.config.metrics == "token":
                await self._admitted(request, Role.READ)

        return Depends(check)

    def visitor(self, request: Request) -> Visitor | None:
        """Who asks; None for somebody who shows nothing that is valid. Raises AccessDenied for a wrong token, and
        TooManyAttempts."""
        if not self._known:
            return Visitor(Role.OPERATE, "anybody")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            known = self._proven(request, token.strip())
            return Visitor(_role(known.token.role), "token", name=known.name)
        session = self._session(request)
        if session is None:
            return None
        name = next(each.name for each in self._known if each.key_id == session.key_id)
        return Visitor(_role(session.role), "session", session.csrf, f"{name}, in a browser")

    def name_of(self, request: Request) -> str:
        """Who asks, for the history: after `requires` or `page` let the request in."""
        visitor = self.visitor(request)
        return visitor.name if visitor is not None else ANONYMOUS

    def login_form(self, request: Request) -> LoginForm:
        cookie = self._forms.cookie(request.cookies.get(self._cookie_name(request, _LOGIN)))
        return LoginForm(self._forms.proof(cookie), cookie, self)

    def log_in(self, request: Request, response: Response, token: str, csrf: str) -> None:
        """Begin a session in the browser that gets `response`. Raises AccessDenied, TooManyAttempts, CsrfRefused."""
        cookie = request.cookies.get(self._cookie_name(request, _LOGIN), "")
        check_proof(csrf if cookie else "", self._forms.proof(cookie))
        found = self._proven(request, token)
        self.set_cookie(request, response, _SESSION, self._sessions.begin(found.key_id), SESSION_SECONDS)
        self.set_cookie(request, response, _LOGIN, "", 0)

    async def log_out(self, request: Request, response: Response) -> None:
        """End the session of this browser. Raises CsrfRefused."""
        session = self._session(request)
        if session is not None:
            check_proof(await proof_in(request), session.csrf)
            self.set_cookie(request, response, _SESSION, "", 0)

    def set_cookie(self, request: Request, response: Response, name: str, value: str, seconds: int) -> None:
        response.set_cookie(
            self._cookie_name(request, name),
            value,
            max_age=seconds,
            path=self.config.root_path or "/",
            secure=self._is_secure(request),
            httponly=True,
            # Not `strict`: a link to a run in a chat would lead to the login.
            samesite="lax",
        )

    async def _admitted(self, request: Request, role: Role) -> Visitor:
        visitor = self.visitor(request)
        if visitor is None:
            raise AccessDenied("This needs a token.", remedy="Send `Authorization: Bearer TOKEN`.")
        if visitor.by == "session" and request.method not in SAFE_METHODS:
            check_proof(await proof_in(request), visitor.csrf)
        if visitor.role < role:
            raise RoleMissing(f"This token may {visitor.role.name.lower()}, and not {role.name.lower()}.")
        return visitor

    def _session(self, request: Request) -> Session | None:
        cookie = request.cookies.get(self._cookie_name(request, _SESSION))
        return self._sessions.find(cookie) if cookie else None

    def _proven(self, request: Request, secret: str) -> _Known:
        client = request.client.host if request.client is not None else ""
        found = self._find(secret)
        if found is not None and self._attempts.is_proven(client, found.key_id):
            return found
        if wait_seconds := self._attempts.wait_seconds(client):
            raise TooManyAttempts(wait_seconds)
        if found is None:
            if self._attempts.failed(client):
                log.warning("too many wrong tokens", extra={"client": client})
            raise AccessDenied("This token is not known.", remedy="REPOSYNC_API_TOKEN has those that are.")
        self._attempts.succeeded(client, found.key_id)
        return found

    def _find(self, secret: str) -> _Known | None:
        given = _digest(secret)
        found = None
        for each in self._known:
            if hmac.compare_digest(each.digest, given):
                found = each
        return found

    def _cookie_name(self, request: Request, name: str) -> str:
        """With the prefixes that keep browsers from taking the cookie from other hosts and over plain http."""
        if not self._is_secure(request):
            return name
        return f"__Secure-{name}" if self.config.root_path else f"__Host-{name}"

    def _is_secure(self, request: Request) -> bool:
        if self.config.secure_cookies is not None:
            return self.config.secure_cookies
        return request.url.scheme == "https"


def guard(app: FastAPI, access: Access) -> None:
    """Put the gate around `app`, and make it answer the errors of access. Last of all middleware: it goes around."""

    @app.exception_handler(AccessDenied)
    async def denied(request: Request, error: AccessDenied) -> Response:
        challenge = {"WWW-Authenticate": 'Bearer realm="reposync"'}
        return error_answer(error.status, error.code, str(error), headers=challenge)

    @app.exception_handler(LoginNeeded)
    async def login_needed(request: Request, error: LoginNeeded) -> Response:
        from reposync.api.routes.session import login_address

        return Response(status_code=303, headers={"Location": login_address(request, access.config.root_path)})

    @app.exception_handler(TooManyAttempts)
    async def too_many(request: Request, error: TooManyAttempts) -> Response:
        details = {"wait_seconds": error.wait_seconds}
        headers = {"Retry-After": str(error.wait_seconds)}
        return error_answer(error.status, error.code, str(error), details, headers)

    app.add_middleware(Gate, config=access.config, has_tokens=access.has_tokens)


def _role(word: Literal["read", "operate"]) -> Role:
    return Role.READ if word == "read" else Role.OPERATE


def _digest(secret: str) -> bytes:
    """Of the same length for every secret: a comparison of these tells nothing about the length, either."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()

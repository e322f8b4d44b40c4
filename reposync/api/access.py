"""Who may do what over HTTP: programs by token, people in browsers by a session that began with one."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Literal, cast

from fastapi import Depends, FastAPI, Request, Response, Security
from fastapi.security import HTTPBearer

from reposync.api.attempts import Attempts, Checked
from reposync.api.csrf import CSRF_HEADER, SAFE_METHODS, LoginForms, check_proof, is_form, proof_in
from reposync.api.envelope import ErrorAnswer, error_answer
from reposync.api.gate import Gate
from reposync.api.sessions import SESSION_SECONDS, EndedInMemory, EndedSessions, Session, Sessions, key_id_of
from reposync.config.sections import HttpConfig
from reposync.config.settings import ApiToken
from reposync.errors import RepoSyncError

log = logging.getLogger(__name__)

_SESSION, _LOGIN = "reposync-session", "reposync-login"
_VISITOR = "reposync.visitor"
"""Where the scope of a request has its Visitor, or the error in place of one."""
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
    checked. `name`: for the history; a token's number is its place in REPOSYNC_API_TOKEN. `credential`: a name of the
    token or of the session, which does not give it away."""

    role: Role
    by: Literal["anybody", "token", "session"]
    csrf: str = ""
    name: str = ANONYMOUS
    credential: str = ""

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
    reaches the server may do everything: it listens on loopback only then. `ended`: of all pods."""

    def __init__(
        self,
        tokens: Iterable[str | ApiToken],
        config: HttpConfig | None = None,
        *,
        attempts: Attempts | None = None,
        ended: EndedSessions | None = None,
    ) -> None:
        held = [ApiToken.parse(token) if isinstance(token, str) else token for token in tokens]
        self._known = [
            _Known(_digest(each.secret.get_secret_value()), each, key_id_of(each), f"token {number}")
            for number, each in enumerate(held, 1)
        ]
        self._sessions = Sessions(held)
        self._forms = LoginForms(held)
        self._ended = ended or EndedInMemory()
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
        return Depends(_ApiAdmission(self, role))

    def page(self, role: Role = Role.READ) -> Any:
        """As `requires`, for pages: whoever is unknown is sent to the login. Its value is the Visitor."""
        return Depends(_PageAdmission(self, role))

    def reads_metrics(self) -> Any:
        """A dependency of /metrics. Raises AccessDenied, TooManyAttempts."""

        async def check(request: Request) -> None:
            if self.config.metrics == "token":
                await self.admitted(request, Role.READ)

        return Depends(check)

    async def admitted(self, request: Request, role: Role) -> Visitor:
        """Who asks, by the head of the request alone. Raises AccessDenied, RoleMissing, TooManyAttempts, CsrfRefused,
        StoreUnavailable."""
        visitor = await self.visitor(request)
        if visitor is None:
            raise AccessDenied("This needs a token.", remedy="Send `Authorization: Bearer TOKEN`.")
        if visitor.role < role:
            raise RoleMissing(f"This token may {visitor.role.name.lower()}, and not {role.name.lower()}.")
        if _needs_proof(request, visitor) and not is_form(request):
            check_proof(request.headers.get(CSRF_HEADER, ""), visitor.csrf)
        return visitor

    async def check_form(self, request: Request) -> None:
        """For a request that was admitted, and whose body is here. Raises CsrfRefused."""
        visitor = await self.visitor(request)
        if visitor is not None and _needs_proof(request, visitor):
            check_proof(await proof_in(request), visitor.csrf)

    async def visitor(self, request: Request) -> Visitor | None:
        """Who asks; None for somebody who shows nothing that is valid. Found out once for a request. Raises
        AccessDenied for a wrong token, TooManyAttempts, StoreUnavailable."""
        found = request.scope.get(_VISITOR, ...)
        if found is ...:
            try:
                found = await self._visitor(request)
            except RepoSyncError as error:
                found = error
            request.scope[_VISITOR] = found
        if isinstance(found, RepoSyncError):
            raise found
        return cast("Visitor | None", found)

    async def known(self, request: Request) -> Visitor | None:
        """As `visitor`, for what everybody may see: None whatever is wrong."""
        try:
            return await self.visitor(request)
        except RepoSyncError:
            return None

    async def _visitor(self, request: Request) -> Visitor | None:
        if not self._known:
            return Visitor(Role.OPERATE, "anybody")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            known = self._proven(request, token.strip())
            return Visitor(_role(known.token.role), "token", name=known.name, credential=known.key_id)
        session = self._session(request)
        if session is None or await self._ended.has_ended(session.id):
            return None
        name = next(each.name for each in self._known if each.key_id == session.key_id)
        return Visitor(_role(session.role), "session", session.csrf, f"{name}, in a browser", session.id)

    def name_of(self, request: Request) -> str:
        """Who asks, for the history: after `requires` or `page` let the request in."""
        return self._let_in(request).name

    def credential_of(self, request: Request) -> str:
        """What they showed, by a name that does not give it away: as `name_of`."""
        return self._let_in(request).credential

    def _let_in(self, request: Request) -> Visitor:
        visitor = request.scope.get(_VISITOR)
        return visitor if isinstance(visitor, Visitor) else Visitor(Role.READ, "anybody")

    def login_form(self, request: Request) -> LoginForm:
        cookie = self._forms.cookie(request.cookies.get(self._cookie_name(request, _LOGIN)))
        return LoginForm(self._forms.proof(cookie), cookie, self)

    def may_log_in(self, request: Request) -> bool:
        """Whether there is a point in reading the form: it came with its cookie. Raises TooManyAttempts."""
        client = _client(request)
        if self._attempts.checked(client) is Checked.NONE:
            raise TooManyAttempts(self._attempts.wait_seconds(client))
        return self._cookie_name(request, _LOGIN) in request.cookies

    def log_in(self, request: Request, response: Response, token: str, csrf: str) -> None:
        """Begin a session in the browser that gets `response`. Raises AccessDenied, TooManyAttempts, CsrfRefused."""
        cookie = request.cookies.get(self._cookie_name(request, _LOGIN), "")
        check_proof(csrf if cookie else "", self._forms.proof(cookie))
        found = self._proven(request, token)
        self.set_cookie(request, response, _SESSION, self._sessions.begin(found.key_id), SESSION_SECONDS)
        self.set_cookie(request, response, _LOGIN, "", 0)

    def has_session(self, request: Request) -> bool:
        """Signed out or not."""
        return self._session(request) is not None

    async def log_out(self, request: Request, response: Response) -> None:
        """End the session of this browser, on every pod. Raises CsrfRefused, StoreUnavailable."""
        session = self._session(request)
        if session is not None:
            check_proof(await proof_in(request), session.csrf)
            await self._ended.end(session.id)
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

    def _session(self, request: Request) -> Session | None:
        cookie = request.cookies.get(self._cookie_name(request, _SESSION))
        return self._sessions.find(cookie) if cookie else None

    def _proven(self, request: Request, secret: str) -> _Known:
        client = _client(request)
        checked = self._attempts.checked(client)
        found = self._find(secret) if checked is not Checked.NONE else None
        if found is not None and (checked is Checked.ALL or self._attempts.is_used(found.key_id)):
            self._attempts.succeeded(found.key_id)
            return found
        if checked is not Checked.NONE and self._attempts.failed(client, _digest(secret)):
            log.warning("too many wrong tokens", extra={"client": client})
        if checked is Checked.ALL:
            raise AccessDenied("This token is not known.", remedy="REPOSYNC_API_TOKEN has those that are.")
        raise TooManyAttempts(self._attempts.wait_seconds(client))

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


@dataclass(frozen=True, slots=True)
class _Admission:
    access: Access
    role: Role

    async def admit(self, request: Request) -> None:
        await self.access.admitted(request, self.role)

    async def check_form(self, request: Request) -> None:
        await self.access.check_form(request)

    async def _let_in(self, request: Request) -> Visitor:
        # Again, for routes that are none of `routing.Route`: nothing is let in because its class was forgotten.
        visitor = await self.access.admitted(request, self.role)
        await self.access.check_form(request)
        return visitor


class _ApiAdmission(_Admission):
    async def __call__(self, request: Request, _: Annotated[Any, Security(_documented)]) -> Role:
        return (await self._let_in(request)).role


class _PageAdmission(_Admission):
    async def admit(self, request: Request) -> None:
        try:
            await self.access.admitted(request, self.role)
        except AccessDenied as error:
            raise LoginNeeded(error.message) from error

    async def __call__(self, request: Request) -> Visitor:
        await self.admit(request)
        return await self._let_in(request)


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


def _needs_proof(request: Request, visitor: Visitor) -> bool:
    return visitor.by == "session" and request.method not in SAFE_METHODS


def _client(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _role(word: Literal["read", "operate"]) -> Role:
    return Role.READ if word == "read" else Role.OPERATE


def _digest(secret: str) -> bytes:
    """Of the same length for every secret: a comparison of these tells nothing about the length, either."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()

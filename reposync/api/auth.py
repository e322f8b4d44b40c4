"""Authentication and roles: programs send a token, browsers a session cookie that a login with a token began."""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote, unquote, urlencode

from fastapi import Depends, Request, Response, Security
from fastapi.security import HTTPBearer

from reposync.api.errors import AccessDenied, LoginNeeded, RoleMissing, TooManyAttempts
from reposync.api.sessions import (
    CSRF_HEADER,
    SAFE_METHODS,
    SESSION_SECONDS,
    EndedInMemory,
    EndedSessions,
    LoginForms,
    Session,
    Sessions,
    check_csrf,
    csrf_of,
    digest,
    is_form,
    key_id_of,
)
from reposync.api.throttle import Checked, Throttle
from reposync.config.sections import HttpConfig
from reposync.config.settings import ApiToken
from reposync.errors import RepoSyncError

log = logging.getLogger(__name__)

ANONYMOUS = "anonymous"
"""Name of every client if no tokens are configured."""

_SESSION, _LOGIN = "reposync-session", "reposync-login"
_PRINCIPAL = "reposync.principal"
"""Key of the request's scope for its Principal, or for the error in place of one."""
_LOGIN_SECONDS = 3600
_MAX_NEXT_CHARS = 2_000

_documented = HTTPBearer(auto_error=False, description="One of the tokens in REPOSYNC_API_TOKEN.")


class Role(IntEnum):
    """Each includes the ones before."""

    READ = 1
    OPERATE = 2


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sent the request. `by`: `anybody` if no tokens are configured. `csrf`: what the pages of this session send
    with every change, as form field `csrf` or header X-CSRF-Token; empty if it is not checked. `name`: for the history;
    a token's number is its position in REPOSYNC_API_TOKEN. `credential`: identifies the token or session without
    revealing it."""

    role: Role
    by: Literal["anybody", "token", "session"]
    csrf: str = ""
    name: str = ANONYMOUS
    credential: str = ""

    @property
    def may_operate(self) -> bool:
        return self.role >= Role.OPERATE


@dataclass(frozen=True, slots=True)
class _KnownToken:
    digest: bytes
    key_id: str
    name: str
    role: Role


class Access:
    """`tokens`: each is `read:SECRET`, `operate:SECRET`, or a bare secret, which may operate. Without any, every client
    may do everything; the server then listens on loopback only. `ended`: sessions signed out on any pod."""

    def __init__(
        self,
        tokens: Iterable[str | ApiToken],
        config: HttpConfig | None = None,
        *,
        throttle: Throttle | None = None,
        ended: EndedSessions | None = None,
    ) -> None:
        parsed = [ApiToken.parse(token) if isinstance(token, str) else token for token in tokens]
        self._tokens = [
            _KnownToken(digest(each.secret.get_secret_value()), key_id_of(each), f"token {number}", _role(each.role))
            for number, each in enumerate(parsed, 1)
        ]
        self._sessions = Sessions(parsed)
        self._forms = LoginForms(parsed)
        self._ended = ended or EndedInMemory()
        self._throttle = throttle or Throttle()
        self.config = config or HttpConfig()

    @property
    def has_tokens(self) -> bool:
        return bool(self._tokens)

    def requires(self, role: Role) -> Any:
        """A dependency of routes that require the role. Its value is the client's Role. Raises AccessDenied,
        RoleMissing, TooManyAttempts, CsrfRefused."""
        return Depends(_ApiAdmission(self, role))

    def page(self, role: Role = Role.READ) -> Any:
        """As `requires`, for pages: unknown clients are sent to the login. Its value is the Principal."""
        return Depends(_PageAdmission(self, role))

    def reads_metrics(self) -> Any:
        """A dependency of /metrics. Raises AccessDenied, TooManyAttempts."""

        async def check(request: Request) -> None:
            if self.config.metrics == "token":
                await self.admit(request, Role.READ)

        return Depends(check)

    async def admit(self, request: Request, role: Role) -> Principal:
        """Decides by the head of the request. Raises AccessDenied, RoleMissing, TooManyAttempts, CsrfRefused,
        StoreUnavailable."""
        principal = await self.principal(request)
        if principal is None:
            raise AccessDenied("This needs a token.", remedy="Send `Authorization: Bearer TOKEN`.")
        if principal.role < role:
            raise RoleMissing(f"This token may {principal.role.name.lower()}, but not {role.name.lower()}.")
        if _needs_csrf(request, principal) and not is_form(request):
            check_csrf(request.headers.get(CSRF_HEADER, ""), principal.csrf)
        return principal

    async def check_form(self, request: Request) -> None:
        """For an admitted request whose body has been read. Raises CsrfRefused."""
        principal = await self.principal(request)
        if principal is not None and _needs_csrf(request, principal):
            check_csrf(await csrf_of(request), principal.csrf)

    async def principal(self, request: Request) -> Principal | None:
        """None if the request has no valid credential. Determined once per request. Raises AccessDenied for a wrong
        token, TooManyAttempts, StoreUnavailable."""
        found = request.scope.get(_PRINCIPAL, ...)
        if found is ...:
            try:
                found = await self._principal(request)
            except RepoSyncError as error:
                found = error
            request.scope[_PRINCIPAL] = found
        if isinstance(found, RepoSyncError):
            raise found
        return cast("Principal | None", found)

    async def principal_or_none(self, request: Request) -> Principal | None:
        """As `principal`, for what everybody may see: None in place of an error."""
        try:
            return await self.principal(request)
        except RepoSyncError:
            return None

    async def _principal(self, request: Request) -> Principal | None:
        if not self._tokens:
            return Principal(Role.OPERATE, "anybody")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            known = self._verified(request, token.strip())
            return Principal(known.role, "token", name=known.name, credential=known.key_id)
        session = self._session(request)
        if session is None or await self._ended.has_ended(session.id):
            return None
        name = next(each.name for each in self._tokens if each.key_id == session.key_id)
        return Principal(_role(session.role), "session", session.csrf, f"{name}, in a browser", session.id)

    def name_of(self, request: Request) -> str:
        """The client's name for the history, after `requires` or `page` admitted the request."""
        return _admitted(request).name

    def credential_of(self, request: Request) -> str:
        """Identifies the client's credential without revealing it; as `name_of`."""
        return _admitted(request).credential

    def login_form(self, request: Request) -> tuple[str, str]:
        """The CSRF token of the login form, and the cookie that `keep_login_form` sets with it."""
        cookie = self._forms.cookie(request.cookies.get(self._cookie_name(request, _LOGIN)))
        return self._forms.csrf(cookie), cookie

    def keep_login_form(self, request: Request, response: Response, cookie: str) -> None:
        self._set_cookie(request, response, _LOGIN, cookie, _LOGIN_SECONDS)

    def may_log_in(self, request: Request) -> bool:
        """Whether the form is worth reading: it has its cookie. Raises TooManyAttempts."""
        client = _client(request)
        if self._throttle.checked(client) is Checked.NONE:
            raise TooManyAttempts(self._throttle.wait_seconds(client))
        return self._cookie_name(request, _LOGIN) in request.cookies

    def log_in(self, request: Request, response: Response, token: str, csrf: str) -> None:
        """Begin a session with the browser that gets `response`. Raises AccessDenied, TooManyAttempts, CsrfRefused."""
        cookie = request.cookies.get(self._cookie_name(request, _LOGIN), "")
        check_csrf(csrf if cookie else "", self._forms.csrf(cookie))
        found = self._verified(request, token)
        self._set_cookie(request, response, _SESSION, self._sessions.begin(found.key_id), SESSION_SECONDS)
        self._set_cookie(request, response, _LOGIN, "", 0)

    def has_session(self, request: Request) -> bool:
        """Whether the request has a session cookie, signed out or not."""
        return self._session(request) is not None

    async def log_out(self, request: Request, response: Response) -> None:
        """End the session of this browser, on every pod. Raises CsrfRefused, StoreUnavailable."""
        session = self._session(request)
        if session is not None:
            check_csrf(await csrf_of(request), session.csrf)
            await self._ended.end(session.id)
            self._set_cookie(request, response, _SESSION, "", 0)

    def _set_cookie(self, request: Request, response: Response, name: str, value: str, seconds: int) -> None:
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

    def _verified(self, request: Request, secret: str) -> _KnownToken:
        client = _client(request)
        checked = self._throttle.checked(client)
        found = self._find(secret) if checked is not Checked.NONE else None
        if found is not None and (checked is Checked.ALL or self._throttle.is_used(found.key_id)):
            self._throttle.succeeded(found.key_id)
            return found
        if checked is not Checked.NONE and self._throttle.failed(client, digest(secret)):
            log.warning("too many wrong tokens", extra={"client": client})
        if checked is Checked.ALL:
            raise AccessDenied("This token is unknown.", remedy="REPOSYNC_API_TOKEN lists the valid ones.")
        raise TooManyAttempts(self._throttle.wait_seconds(client))

    def _find(self, secret: str) -> _KnownToken | None:
        """In a time that does not depend on the token."""
        given = digest(secret)
        found = None
        for each in self._tokens:
            if hmac.compare_digest(each.digest, given):
                found = each
        return found

    def _cookie_name(self, request: Request, name: str) -> str:
        """With the prefixes that make browsers reject the cookie from other hosts and over plain http."""
        if not self._is_secure(request):
            return name
        return f"__Secure-{name}" if self.config.root_path else f"__Host-{name}"

    def _is_secure(self, request: Request) -> bool:
        if self.config.secure_cookies is not None:
            return self.config.secure_cookies
        return request.url.scheme == "https"


@dataclass(frozen=True, slots=True)
class Admission:
    """A dependency that admits requests. `Route` calls `admit` before it reads the body, and `check_form` after it:
    FastAPI would read the body before it calls any dependency."""

    access: Access
    role: Role

    async def admit(self, request: Request) -> None:
        await self.access.admit(request, self.role)

    async def check_form(self, request: Request) -> None:
        await self.access.check_form(request)

    async def _admitted(self, request: Request) -> Principal:
        # Checked again, for routes that are not a `Route`: a forgotten route class must not let anybody in.
        await self.admit(request)
        await self.access.check_form(request)
        return _admitted(request)


class _ApiAdmission(Admission):
    async def __call__(self, request: Request, _: Annotated[Any, Security(_documented)]) -> Role:
        return (await self._admitted(request)).role


class _PageAdmission(Admission):
    async def admit(self, request: Request) -> None:
        try:
            await self.access.admit(request, self.role)
        except AccessDenied as error:
            raise LoginNeeded(error.message, _login_of(request, self.access.config.root_path)) from error

    async def __call__(self, request: Request) -> Principal:
        return await self._admitted(request)


def local_address(wanted: str, root: str) -> str:
    """`wanted` if it is a path of this server, otherwise the first page: a login must not lead to another server."""
    is_path = re.fullmatch(r"/(?![/\\])[!-\[\]-~]*", wanted) is not None and len(wanted) <= _MAX_NEXT_CHARS
    is_inside = wanted == root or wanted.startswith((f"{root}/", f"{root}?"))
    # Browsers resolve these, plain or as %2e, before they send the request: that could leave the root path.
    has_dots = any(unquote(each) in (".", "..") for each in re.split(r"[?#]", wanted, maxsplit=1)[0].split("/"))
    return wanted if is_path and is_inside and not has_dots else f"{root}/"


def login_address(root: str, onward: str, **reason: str) -> str:
    """The login page, which then leads to `onward`. `reason`: why a login failed."""
    query = dict(reason) if onward == f"{root}/" else {**reason, "next": onward}
    return f"{root}/login" + (f"?{urlencode(query)}" if query else "")


def _login_of(request: Request, root: str) -> str:
    wanted = quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else "")
    return login_address(root, local_address(wanted if request.method in ("GET", "HEAD") else "", root))


def _admitted(request: Request) -> Principal:
    principal = request.scope.get(_PRINCIPAL)
    return principal if isinstance(principal, Principal) else Principal(Role.READ, "anybody")


def _needs_csrf(request: Request, principal: Principal) -> bool:
    return principal.by == "session" and request.method not in SAFE_METHODS


def _client(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _role(word: Literal["read", "operate"]) -> Role:
    return Role.READ if word == "read" else Role.OPERATE

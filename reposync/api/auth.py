"""Authentication and roles: programs send a token, browsers the signed cookie of a session. Its key is derived from
the token of the login: every pod can check it, and it ends with its token. Only signed-out sessions are stored.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, cast
from urllib.parse import quote, unquote, urlencode

from fastapi import Depends, Request, Response, Security
from fastapi.security import HTTPBearer
from itsdangerous import BadSignature, TimestampSigner

from reposync.access.changes import RightsChange
from reposync.api.errors import AccessDenied, LoginNeeded
from reposync.app.gitlab_access import JobSight, Sight, is_job_token
from reposync.config.sections import HttpConfig
from reposync.config.settings import ApiToken
from reposync.errors import ConfigError, ReaderRefused, RepoSyncError
from reposync.operations.core import Actor, Role, Rule
from reposync.operations.paths import COMMAND_HEADER, USER_HEADER
from reposync.visible import EVERYTHING, NOTHING, Visible
from reposync.wildmatch import PathPatterns

log = logging.getLogger(__name__)

ANONYMOUS = "anonymous"
"""Name of every client if no tokens are configured."""
ADMITTED = "admitted"
"""Key of the request's state if it has a principal: the server then keeps its connection."""
SESSION_SECONDS = 12 * 3600
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_SESSION = "reposync-session"
_PRINCIPAL = "reposync.principal"
"""Key of the request's scope for its Principal."""
_MAX_NEXT_CHARS, _MAX_COOKIE_CHARS = 2_000, 512
# Clocks of pods differ: a session may have begun on another pod a moment from now.
_SKEW_SECONDS = 60.0

GITLAB_HEADER = "PRIVATE-TOKEN"
"""In which scripts send a token of GitLab."""

_documented = HTTPBearer(
    auto_error=False,
    description="One of the tokens in REPOSYNC_API_TOKEN; with `access: gitlab` also an access token of GitLab, which "
    "may be sent as `PRIVATE-TOKEN`, too.",
)


@dataclass(frozen=True, slots=True)
class Principal(Actor):
    """Who sent the request. The number of a token is its position in REPOSYNC_API_TOKEN. A command of this machine is
    of somebody who may read the state folder, which has its key."""

    has_session: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    """`id`: identifies the session without revealing its cookie."""

    id: str
    token: Token


class Token:
    """A configured token, and the sessions that begin with it. The keys derived from it do not reveal it, and neither
    does `key_id`, which is the same on every pod."""

    def __init__(self, token: ApiToken, number: int) -> None:
        secret = token.secret.get_secret_value().encode()
        self.role = Role.READ if token.role == "read" else Role.OPERATE
        self.name = token.name or f"token {number}"
        self._repositories = None if token.repositories is None else PathPatterns(token.repositories)
        self._names: Mapping[str, str] | None = None
        self._visible = EVERYTHING if token.repositories is None else NOTHING
        self.key_id = _derived(secret, "session id").hex()[:16]
        self.digest = digest(token.secret.get_secret_value())
        self._name = _derived(secret, "session name")
        self._signer = TimestampSigner(
            _derived(secret, "session"), salt=b"reposync.session", key_derivation="hmac", digest_method=hashlib.sha256
        )

    async def visible(self, names: Names) -> Visible:
        """The repositories that it is for, as they are registered now. Raises Starting, StoreUnavailable."""
        if self._repositories is not None and (found := await names()) is not self._names:
            shown = {each for each, name in found.items() if self._repositories.match(name) is not None}
            self._names, self._visible = found, Visible(frozenset(shown))
        return self._visible

    def begin(self) -> str:
        return f"{self.key_id}.{self._signer.sign(secrets.token_urlsafe(16)).decode()}"

    def session(self, signed: str) -> Session | None:
        try:
            nonce, begun_at = self._signer.unsign(signed, return_timestamp=True)
        except BadSignature:
            return None
        if not -_SKEW_SECONDS <= time.time() - begun_at.timestamp() <= SESSION_SECONDS:
            return None
        return Session(hmac.digest(self._name, nonce, hashlib.sha256).hex()[:32], self)


Names = Callable[[], Awaitable[Mapping[str, str]]]
"""The name of each registered repository, by id: the same mapping until one changes."""


async def _no_names() -> Mapping[str, str]:
    return {}


class EndedSessions(Protocol):
    """Sessions that were signed out before they expired, on any pod. Both methods may raise StoreUnavailable."""

    async def end(self, session_id: str) -> None: ...

    async def has_ended(self, session_id: str) -> bool: ...


class ReaderSights(Protocol):
    """What owners of GitLab's tokens see: `GitLabAccess`."""

    @property
    def url(self) -> str: ...

    async def sight(self, token: str, *, address: str | None = None) -> Sight: ...

    async def job_sight(self, token: str) -> JobSight: ...

    async def change(self, change: RightsChange) -> None: ...


class Access:
    """`tokens`: each is `read:SECRET`, `operate:SECRET`, or a bare secret, which may operate. Without any, every client
    may do everything; the server then listens on loopback only."""

    def __init__(
        self,
        tokens: Iterable[str | ApiToken],
        config: HttpConfig | None = None,
        *,
        ended: EndedSessions | None = None,
        command_key: str = "",
        readers: ReaderSights | None = None,
        names: Names = _no_names,
    ) -> None:
        """`command_key`: what commands of this machine send; empty: none does. `readers`: with `access: gitlab`.
        `names`: for tokens that see some repositories. Raises ConfigError for a token that is given twice."""
        parsed = (ApiToken.parse(token) if isinstance(token, str) else token for token in tokens)
        made = [Token(token, number) for number, token in enumerate(parsed, 1)]
        self._tokens = {each.key_id: each for each in made}
        if len(self._tokens) < len(made):
            where = "REPOSYNC_API_TOKEN and `http.tokens`"
            raise ConfigError(f"Two tokens of {where} have the same text.", remedy="Make a new one.")
        self._token_names = names
        self._ended = ended
        self.readers = readers
        self._command_key = digest(command_key) if command_key else None
        self.config = config or HttpConfig()

    @property
    def has_tokens(self) -> bool:
        """Whether a credential is needed."""
        return bool(self._tokens) or self.readers is not None

    def requires(self, rule: Rule) -> Any:
        """A dependency of routes with this rule; its value is the Principal. Raises AccessDenied, RoleMissing."""
        return Depends(Admission(self, rule))

    def page(self, rule: Rule = Rule.READ) -> Any:
        """As `requires`, for pages: unknown clients are sent to the login."""
        return Depends(Admission(self, rule, is_page=True))

    async def admit(self, request: Request, rule: Rule) -> Principal:
        """Decides by the head of the request. Raises AccessDenied, RoleMissing, StoreUnavailable."""
        principal = await self.principal(request)
        if principal is None:
            raise AccessDenied("This needs a token.", remedy="Send `Authorization: Bearer TOKEN`.")
        principal.require(rule)
        return principal

    async def principal(self, request: Request) -> Principal | None:
        """None if the request has no valid credential. Determined once per request. Raises AccessDenied for a wrong
        token, StoreUnavailable."""
        if _PRINCIPAL not in request.scope:
            request.scope[_PRINCIPAL] = principal = await self._principal(request)
            if principal is not None:
                setattr(request.state, ADMITTED, True)
        return cast("Principal | None", request.scope[_PRINCIPAL])

    async def principal_or_none(self, request: Request) -> Principal | None:
        """As `principal`, for what everybody may see: None in place of an error."""
        try:
            return await self.principal(request)
        except RepoSyncError:
            return None

    async def _principal(self, request: Request) -> Principal | None:
        key = request.headers.get(COMMAND_HEADER)
        if key is not None and self._command_key is not None and hmac.compare_digest(digest(key), self._command_key):
            name = unquote(request.headers.get(USER_HEADER, "a command"))[:200]
            return Principal.at_terminal(name)
        if not self.has_tokens:
            return Principal(ANONYMOUS, Role.OPERATE, visible=EVERYTHING, maintains=EVERYTHING)
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" and self.readers is not None:
            secret = request.headers.get(GITLAB_HEADER, "")
            scheme = "bearer" if secret else scheme
        if scheme.lower() == "bearer":
            token = self._known(secret.strip())
            if token is None and self.readers is not None:
                return await self._reader(request, self.readers, secret.strip())
            token = self._verified(request, token)
            return await self._of_token(token, token.name, token.key_id)
        session = self.session(self._cookie(request))
        if session is None or (self._ended is not None and await self._ended.has_ended(session.id)):
            return None
        name = f"{session.token.name}, in a browser"
        return await self._of_token(session.token, name, session.id, has_session=True)

    async def _of_token(self, token: Token, name: str, credential: str, *, has_session: bool = False) -> Principal:
        visible = await token.visible(self._token_names)
        maintains = visible if token.role >= Role.OPERATE else NOTHING
        return Principal(
            name, token.role, credential=credential, has_session=has_session, visible=visible, maintains=maintains
        )

    def session(self, cookie: str) -> Session | None:
        """None if it is forged, expired, or of a token that is no longer valid. It may have been signed out."""
        key_id, _, signed = cookie[: _MAX_COOKIE_CHARS + 1].partition(".")
        token = self._tokens.get(key_id) if len(cookie) <= _MAX_COOKIE_CHARS else None
        return token.session(signed) if token is not None else None

    def _cookie(self, request: Request) -> str:
        return request.cookies.get(self._cookie_name(request), "")

    def log_in(self, request: Request, response: Response, secret: str) -> None:
        """Begin a session with the browser that gets `response`. Raises AccessDenied."""
        token = self._verified(request, self._known(secret))
        self._set_cookie(request, response, token.begin(), SESSION_SECONDS)

    async def log_out(self, request: Request, response: Response) -> None:
        """End the session of this browser, on every pod. Raises StoreUnavailable."""
        session = self.session(self._cookie(request))
        if session is not None and self._ended is not None:
            await self._ended.end(session.id)
        self._set_cookie(request, response, "", 0)

    def _set_cookie(self, request: Request, response: Response, value: str, seconds: int) -> None:
        # Not `samesite=strict`: a link to a run in a chat would lead to the login.
        secure, path = self._is_secure(request), self.config.root_path or "/"
        name = self._cookie_name(request)
        response.set_cookie(name, value, max_age=seconds, path=path, secure=secure, httponly=True, samesite="lax")

    async def _reader(self, request: Request, readers: ReaderSights, secret: str) -> Principal:
        """Whoever GitLab knows by this token, or the job that it signed it for. Raises AccessDenied,
        TooManyUnknownTokens, RightsUnavailable."""
        address, is_job = request.client.host if request.client else "", is_job_token(secret)
        try:
            if is_job:
                of_job = await readers.job_sight(secret)
                credential = f"gitlab project {of_job.job.project_id}"
                return Principal(
                    of_job.job.name, Role.READ, credential=credential, visible=of_job.visible, maintains=NOTHING
                )
            sight = await readers.sight(secret, address=address)
        except ReaderRefused as error:
            log.warning("a token was refused", extra={"address": address})
            remedy = "See `id_tokens` of the pipeline." if is_job else "Make an access token with the scope read_api."
            raise AccessDenied(error.message, remedy=remedy) from None
        return Principal(
            f"@{sight.reader.username}",
            Role.READ,
            credential=f"gitlab user {sight.reader.user_id}",
            visible=sight.visible,
            maintains=sight.maintains,
        )

    def _known(self, secret: str) -> Token | None:
        given, found = digest(secret), None
        # In a time that does not depend on the token.
        for each in self._tokens.values():
            if hmac.compare_digest(each.digest, given):
                found = each
        return found

    def _verified(self, request: Request, token: Token | None) -> Token:
        if token is None:
            log.warning("a token was refused", extra={"address": request.client.host if request.client else ""})
            raise AccessDenied("This token is unknown.", remedy="REPOSYNC_API_TOKEN lists the valid ones.")
        return token

    def _cookie_name(self, request: Request) -> str:
        """With the prefixes that make browsers reject the cookie from other hosts and over plain http."""
        if not self._is_secure(request):
            return _SESSION
        return f"__Secure-{_SESSION}" if self.config.root_path else f"__Host-{_SESSION}"

    def _is_secure(self, request: Request) -> bool:
        if self.config.secure_cookies is not None:
            return self.config.secure_cookies
        return request.url.scheme == "https"


@dataclass(frozen=True, slots=True)
class Admission:
    """A dependency that admits requests. `Route` calls `admit` before it reads the body, which FastAPI does before it
    calls any dependency."""

    access: Access
    rule: Rule
    is_page: bool = False

    async def admit(self, request: Request) -> Principal:
        try:
            return await self.access.admit(request, self.rule)
        except AccessDenied as error:
            if not self.is_page:
                raise
            root = self.access.config.root_path
            wanted = quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else "")
            onward = local_address(wanted if request.method in ("GET", "HEAD") else "", root)
            raise LoginNeeded(error.message, login_address(root, onward)) from error

    async def __call__(self, request: Request, _: Annotated[Any, Security(_documented)]) -> Principal:
        # Again, for routes that are not a `Route`: a forgotten route class must not let anybody in.
        return await self.admit(request)


def actor_of(request: Request) -> Actor:
    """Who sent the request, after `requires` or `page` admitted it."""
    principal = request.scope.get(_PRINCIPAL)
    if isinstance(principal, Principal):
        return principal
    return Actor(ANONYMOUS, Role.READ, visible=NOTHING, maintains=NOTHING)


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


def digest(secret: str) -> bytes:
    """Of the same length for every secret, so that comparing two does not reveal their lengths."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _derived(secret: bytes, purpose: str) -> bytes:
    """32 bytes for one purpose, as in the last step of HKDF (RFC 5869) for a strong secret."""
    return hmac.digest(secret, f"reposync {purpose} 1".encode(), hashlib.sha256)

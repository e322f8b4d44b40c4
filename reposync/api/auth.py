"""Authentication and roles: programs send a token, browsers the signed cookie of a session. Its key is derived from
the token of the login: every pod can check it, and it ends with its token. Only signed-out sessions are stored.
"""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast
from urllib.parse import quote, unquote, urlencode

from fastapi import Depends, Request, Response, Security
from fastapi.security import HTTPBearer

from reposync.access.changes import RightsChange
from reposync.access.gitlab import Standing
from reposync.api.errors import AccessDenied, LoginNeeded
from reposync.api.service_tokens import SESSION_SECONDS, Names, Session, Token, digest, no_names
from reposync.app.gitlab_access import CatalogueRights, JobSight, Sight, is_job_token
from reposync.config.sections import HttpConfig
from reposync.config.settings import ApiToken
from reposync.errors import ConfigError, ReaderRefused, RepoSyncError
from reposync.operations.core import Actor, Role, Rule
from reposync.operations.paths import COMMAND_HEADER, USER_HEADER
from reposync.store.status import CredentialKind
from reposync.visible import EVERYTHING, NOTHING

# Imports the HTTP client, which not every server needs at its start.
if TYPE_CHECKING:
    from reposync.api.people import People
    from reposync.app.sign_in import Opened

log = logging.getLogger(__name__)

ANONYMOUS = "anonymous"
"""Name of every client if no tokens are configured."""
IN_A_BROWSER = ", in a browser"
"""After the name of a token whose session it is."""
ADMITTED = "admitted"
"""Key of the request's state if it has a principal: the server then keeps its connection."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

SESSION_COOKIE = "reposync-session"
_PRINCIPAL = "reposync.principal"
"""Key of the request's scope for its Principal."""
_IS_AGENT = "reposync.is_agent"
"""And that it is one for agents, whose tokens are for nothing else."""
_OPENED = "reposync.opened"
"""And for the credential of a person that it came with."""
_SIGHT = "reposync.sight"
"""And for what GitLab lets that person, or the owner of this token, see."""
_PREFIXES = tuple(kind.prefix for kind in CredentialKind)
_MAX_NEXT_CHARS, _MAX_COOKIE_CHARS = 2_000, 512

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

    async def catalogue(self) -> CatalogueRights: ...

    async def standings(self, token: str, sight: Sight) -> dict[str, Standing]: ...

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
        names: Names = no_names,
        people: People | None = None,
    ) -> None:
        """`command_key`: what commands of this machine send; empty: none does. `readers`: with `access: gitlab`.
        `names`: for tokens that see some repositories. `people`: those who sign in at GitLab; None: nobody can. Raises
        ConfigError for a token that is given twice."""
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
        self.people = people

    @property
    def has_tokens(self) -> bool:
        """Whether a credential is needed."""
        return self.has_service_tokens or self.readers is not None or self.config.access == "gitlab"

    @property
    def has_service_tokens(self) -> bool:
        return bool(self._tokens)

    def requires(self, rule: Rule) -> Any:
        """A dependency of routes with this rule; its value is the Principal. Raises AccessDenied, RoleMissing."""
        return Depends(Admission(self, rule))

    def page(self, rule: Rule = Rule.READ) -> Any:
        """As `requires`, for pages: unknown clients are sent to the login."""
        return Depends(Admission(self, rule, is_page=True))

    def agents(self, rule: Rule) -> Any:
        """As `requires`, for agents: their tokens are accepted, and they are led to where they get one."""
        return Depends(Admission(self, rule, is_agent=True))

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
            principal = await self._principal(request)
            if principal is not None:
                via = "page" if principal.has_session else principal.via
                principal = replace(principal, via=via, address=_address(request))
                setattr(request.state, ADMITTED, True)
            request.scope[_PRINCIPAL] = principal
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
            if token is None and is_own_secret(secret.strip()):
                return await self._of_own_secret(request, secret.strip())
            # A token of GitLab was not issued for this server, which agents require; that of a job names it.
            is_for_us = not request.scope.get(_IS_AGENT) or is_job_token(secret.strip())
            if token is None and self.readers is not None and is_for_us:
                return await self._reader(request, self.readers, secret.strip())
            token = self._verified(request, token)
            return await self._of_token(token, token.name, token.key_id)
        cookie = self.cookie(request, SESSION_COOKIE)
        if is_own_secret(cookie) and not request.scope.get(_IS_AGENT):
            return await self._person(request, cookie, CredentialKind.SESSION)
        session = self.session(cookie)
        if session is None or (self._ended is not None and await self._ended.has_ended(session.id)):
            return None
        name = f"{session.token.name}{IN_A_BROWSER}"
        return await self._of_token(session.token, name, session.id, has_session=True)

    async def _of_token(self, token: Token, name: str, credential: str, *, has_session: bool = False) -> Principal:
        visible = await token.visible(self._token_names)
        maintains = visible if token.role >= Role.OPERATE else NOTHING
        return Principal(
            name, token.role, credential=credential, has_session=has_session, visible=visible, maintains=maintains
        )

    async def _of_own_secret(self, request: Request, secret: str) -> Principal:
        """Raises AccessDenied."""
        kinds = [CredentialKind.PERSONAL, *([CredentialKind.ACCESS] if request.scope.get(_IS_AGENT) else [])]
        principal = await self._person(request, secret, *kinds)
        if principal is None:
            log.warning("a token was refused", extra={"address": _address(request)})
            raise AccessDenied("This token is unknown, or has expired or ended.", remedy="Make a new one.")
        return principal

    async def _person(self, request: Request, secret: str, *kinds: CredentialKind) -> Principal | None:
        if self.people is None:
            return None
        opened = await self.people.opened(secret, *kinds, address=_address(request))
        if opened is None or (opened.kind is CredentialKind.ACCESS and not await self.people.is_for_agents(request)):
            return None
        sight = await self.people.sight(opened)
        if sight is None:
            return None
        request.scope[_OPENED], request.scope[_SIGHT] = opened, ("", sight)
        is_session = opened.kind is CredentialKind.SESSION
        return replace(reader_of(sight), has_session=is_session, maintains=sight.maintains if is_session else NOTHING)

    def session(self, cookie: str) -> Session | None:
        """None if it is forged, expired, or of a token that is no longer valid. It may have been signed out."""
        key_id, _, signed = cookie[: _MAX_COOKIE_CHARS + 1].partition(".")
        token = self._tokens.get(key_id) if len(cookie) <= _MAX_COOKIE_CHARS else None
        return token.session(signed) if token is not None else None

    def cookie(self, request: Request, name: str) -> str:
        return request.cookies.get(self._cookie_name(request, name), "")

    def log_in(self, request: Request, response: Response, secret: str) -> None:
        """Begin a session with the browser that gets `response`. Raises AccessDenied."""
        token = self._verified(request, self._known(secret))
        self.set_cookie(request, response, SESSION_COOKIE, token.begin(), SESSION_SECONDS)

    async def log_out(self, request: Request, response: Response) -> None:
        """End the session of this browser, on every pod. Raises StoreUnavailable."""
        cookie = self.cookie(request, SESSION_COOKIE)
        session = self.session(cookie)
        people, address = self.people, _address(request)
        if people is not None and await people.opened(cookie, CredentialKind.SESSION, address=address) is not None:
            await people.sign_ins.sign_out(cookie)
        if session is not None and self._ended is not None:
            await self._ended.end(session.id)
        self.set_cookie(request, response, SESSION_COOKIE, "", 0)

    def set_cookie(self, request: Request, response: Response, name: str, value: str, seconds: int) -> None:
        # Not `samesite=strict`: a link to a run in a chat would lead to the login.
        secure, path = self._is_secure(request), self.config.root_path or "/"
        name = self._cookie_name(request, name)
        response.set_cookie(name, value, max_age=seconds, path=path, secure=secure, httponly=True, samesite="lax")

    async def _reader(self, request: Request, readers: ReaderSights, secret: str) -> Principal:
        """Whoever GitLab knows by this token, or the job that it signed it for. Raises AccessDenied,
        TooManyUnknownTokens, RightsUnavailable."""
        address, is_job = _address(request), is_job_token(secret)
        try:
            if is_job:
                of_job = await readers.job_sight(secret)
                request.scope[_SIGHT] = "", of_job
                credential = f"gitlab project {of_job.job.project_id}"
                return Principal(
                    of_job.job.name, Role.READ, credential=credential, visible=of_job.visible, maintains=NOTHING
                )
            sight = await readers.sight(secret, address=address)
            request.scope[_SIGHT] = secret, sight
        except ReaderRefused as error:
            log.warning("a token was refused", extra={"address": address})
            remedy = "See `id_tokens` of the pipeline." if is_job else "Make an access token with the scope read_api."
            raise AccessDenied(error.message, remedy=remedy) from None
        return reader_of(sight)

    def _known(self, secret: str) -> Token | None:
        given, found = digest(secret), None
        # In a time that does not depend on the token.
        for each in self._tokens.values():
            if hmac.compare_digest(each.digest, given):
                found = each
        return found

    def _verified(self, request: Request, token: Token | None) -> Token:
        if token is None:
            log.warning("a token was refused", extra={"address": _address(request)})
            raise AccessDenied("This token is unknown.", remedy="REPOSYNC_API_TOKEN lists the valid ones.")
        return token

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
    """A dependency that admits requests. `Route` calls `admit` before it reads the body, which FastAPI does before it
    calls any dependency."""

    access: Access
    rule: Rule
    is_page: bool = False
    is_agent: bool = False

    async def admit(self, request: Request) -> Principal:
        if self.is_agent:
            request.scope[_IS_AGENT] = True
        try:
            return await self.access.admit(request, self.rule)
        except AccessDenied as error:
            if self.is_agent and self.access.people is not None:
                error.headers = self.access.people.challenge(has_token="authorization" in request.headers)
            if not self.is_page:
                raise
            root = self.access.config.root_path
            wanted = quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else "")
            onward = local_address(wanted if request.method in ("GET", "HEAD") else "", root)
            raise LoginNeeded(error.message, login_address(root, onward)) from error

    async def __call__(self, request: Request, _: Annotated[Any, Security(_documented)]) -> Principal:
        # Again, for routes that are not a `Route`: a forgotten route class must not let anybody in.
        return await self.admit(request)


def opened_of(request: Request) -> Opened | None:
    """What stands for the person who sent the request, if they signed in."""
    return cast("Opened | None", request.scope.get(_OPENED))


def seen_by(request: Request) -> tuple[str, Sight | JobSight] | None:
    """What GitLab lets the sender see, with the token of GitLab if that was sent; None for one whom it does not
    know."""
    return cast("tuple[str, Sight | JobSight] | None", request.scope.get(_SIGHT))


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def is_own_secret(secret: str) -> bool:
    """Whether it has the form of what stands for a person who signed in."""
    return secret.startswith(_PREFIXES)


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


def reader_of(sight: Sight) -> Principal:
    """What is limited is limited for a person, however many tokens they have."""
    return Principal(
        f"@{sight.reader.username}",
        Role.READ,
        credential=f"gitlab user {sight.reader.user_id}",
        visible=sight.visible,
        maintains=sight.maintains,
    )


def login_address(root: str, onward: str, **reason: str) -> str:
    """The login page, which then leads to `onward`. `reason`: why a login failed."""
    query = dict(reason) if onward == f"{root}/" else {**reason, "next": onward}
    return f"{root}/login" + (f"?{urlencode(query)}" if query else "")

"""People who signed in at GitLab, as clients: the cookie of a sign-in, and who a session or a token stands for."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import urlsplit

from itsdangerous import BadData, URLSafeTimedSerializer
from pydantic import AnyHttpUrl, SecretStr
from starlette.requests import Request

from reposync.access.gitlab import Standing
from reposync.access.gitlab_oauth import GitLabOAuth, SignInFailed, SignInUnavailable
from reposync.access.readers import FRESH_SECONDS, MAX_READERS
from reposync.access.strangers import Strangers
from reposync.app.gitlab_access import CatalogueRights, Sight
from reposync.app.sign_in import Opened, SessionEnded, SignIns
from reposync.clock import elapsed_seconds
from reposync.config.gitlab_instance import GitLabInstance
from reposync.config.sections import HttpConfig
from reposync.errors import ConfigError, ReaderRefused, RightsUnavailable
from reposync.sealing import key_of
from reposync.store.status import CredentialKind

if TYPE_CHECKING:
    from mcp.server.auth.provider import TokenVerifier

    from reposync.app.application import Application

T = TypeVar("T")

SIGN_IN_SECONDS = 600
"""A sign-in at GitLab takes so long at most, and its code is valid as long there."""
SIGN_IN_PATH, CALLBACK_PATH = "/sign-in", "/sign-in/callback"
AGENT_PATH, AGENT_SCOPE = "/mcp", "read"
RESOURCE_METADATA_PATH = f"/.well-known/oauth-protected-resource{AGENT_PATH}"
_MAX_EXCHANGES, _MAX_WAITING = 4, 32
_MAX_CODE_CHARS = 500
_MAX_REASON_CHARS = 200


class Readers(Protocol):
    """What owners of GitLab's tokens see: `GitLabAccess`."""

    async def sight(self, token: str, *, address: str | None = None) -> Sight: ...

    async def catalogue(self) -> CatalogueRights: ...

    async def standings(self, token: str, sight: Sight) -> dict[str, Standing]: ...


@dataclass(frozen=True, slots=True)
class Beginning:
    """A sign-in that begins: where the browser goes, and what its cookie keeps for when it comes back with `state`."""

    address: str
    state: str
    cookie: str


class People:
    """Methods raise StoreUnavailable, SignInUnavailable and RightsUnavailable."""

    def __init__(self, sign_ins: SignIns, config: HttpConfig, client_secret: SecretStr, readers: Readers) -> None:
        """`config`: with `public_url`."""
        self.sign_ins = sign_ins
        self.public_url = str(config.public_url)
        self.readers = readers
        self._client_secret = client_secret.get_secret_value()
        self._cookies = self.signer("sign-in cookie")
        self.verifier: TokenVerifier | None = None
        """The verifier of the tokens of agents; set by the authorization server."""
        self._exchanges, self._waiting = asyncio.Semaphore(_MAX_EXCHANGES), 0
        self._strangers = Strangers(elapsed_seconds, refused_seconds=FRESH_SECONDS)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        """Digests of secrets that were valid a moment ago: these do not wait behind unknown ones."""

    def signer(self, purpose: str) -> URLSafeTimedSerializer:
        """For values that a browser keeps and must not change, on whichever pod it comes back."""
        signer = {"key_derivation": "hmac", "digest_method": sha256}
        return URLSafeTimedSerializer(self.key(purpose), salt=purpose, signer_kwargs=signer)

    def key(self, purpose: str) -> bytes:
        """The same on every pod."""
        return key_of(self._client_secret, purpose)

    @property
    def gitlab(self) -> str:
        """The address of the server whose people these are."""
        return self.sign_ins.oauth.url

    # Signing in

    def begin(self, onward: str) -> Beginning:
        """`onward`: where the sign-in leads to, a path of this server."""
        state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
        cookie = self._cookies.dumps({"state": state, "verifier": verifier, "next": onward})
        return Beginning(self.sign_ins.oauth.address(state, verifier), state, str(cookie))

    async def finish(self, query: Mapping[str, str], cookie: str, seconds: float) -> tuple[str, str]:
        """The secret of a session of so many seconds, and where it leads to; `query`: what GitLab sent the browser back
        with. Raises SignInFailed."""
        begun: dict[str, str] = {}
        with contextlib.suppress(BadData):
            begun = self._cookies.loads(cookie, max_age=SIGN_IN_SECONDS)
        if not begun or not secrets.compare_digest(begun["state"].encode(), query.get("state", "").encode()):
            raise SignInFailed(
                "This sign-in was begun in a different browser, or too long ago.", remedy="Begin it again."
            )
        if "error" in query:
            raise SignInFailed(f"GitLab did not sign you in ({query['error'][:_MAX_REASON_CHARS]}).")
        code = query.get("code", "")
        if not 0 < len(code) <= _MAX_CODE_CHARS:
            raise SignInFailed("GitLab sent no code.")
        if self._waiting >= _MAX_WAITING:
            raise SignInUnavailable("Too many people are signing in at this moment.", remedy="Try again in a moment.")
        self._waiting += 1
        try:
            async with self._exchanges:
                tokens = await self.sign_ins.oauth.exchange(code, begun["verifier"])
                person = await self.sign_ins.oauth.person(tokens.access)
        finally:
            self._waiting -= 1
        return await self.sign_ins.begin(tokens, person, seconds), begun["next"]

    # Clients

    async def opened(self, secret: str, *kinds: CredentialKind, address: str) -> Opened | None:
        """None if it is none of these kinds, or not valid. `address`: of the client, whose unknown secrets are limited.
        Raises TooManyUnknownTokens."""
        if not secret.startswith(tuple(kind.prefix for kind in kinds)):
            return None
        identity = sha256(secret.encode("utf-8", "surrogatepass")).digest()
        if identity in self._known:
            self._known.move_to_end(identity)
            opened = await self.sign_ins.open(secret, *kinds)
            if opened is None:
                self._known.pop(identity, None)
            return opened
        if self._strangers.is_refused(identity):
            return None
        try:
            async with self._strangers.asking(address):
                opened = await self.sign_ins.open(secret, *kinds)
                if opened is None:
                    raise ReaderRefused("It is not valid.")
        except ReaderRefused:
            self._strangers.refuse(identity)
            return None
        self._known[identity] = None
        if len(self._known) > MAX_READERS:
            self._known.popitem(last=False)
        return opened

    def challenge(self, *, has_token: bool) -> dict[str, str]:
        """Headers that lead an agent without a valid token to where it gets one (RFC 9728, 5.1)."""
        error = 'error="invalid_token", ' if has_token else ""
        where = f'resource_metadata="{self.public_url}{RESOURCE_METADATA_PATH}"'
        return {"WWW-Authenticate": f'Bearer {error}{where}, scope="{AGENT_SCOPE}"'}

    async def is_for_agents(self, request: Request) -> bool:
        """Whether its token is one of an agent, issued for this server."""
        from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend

        if self.verifier is None:
            return False
        backend = BearerAuthBackend(self.verifier, resource_server_url=AnyHttpUrl(f"{self.public_url}{AGENT_PATH}"))
        return await backend.authenticate(request) is not None

    async def sight(self, opened: Opened) -> Sight | None:
        """What the person may see at this moment. None if GitLab does not accept them any more: then everything that
        stands for the sign-in ends."""
        try:
            sight = await self._asked(opened, self.readers.sight)
        except ReaderRefused:
            await self.sign_ins.end(opened)
            return None
        except SessionEnded:
            return None
        await self.sign_ins.used(opened)
        return sight

    async def standings(self, opened: Opened, sight: Sight) -> dict[str, Standing] | None:
        """Why GitLab shows the person each repository that is a project, by id. None if it does not say."""
        try:
            return await self._asked(opened, lambda token: self.readers.standings(token, sight))
        except (ReaderRefused, RightsUnavailable, SessionEnded, SignInUnavailable):
            return None

    async def _asked(self, opened: Opened, ask: Callable[[str], Awaitable[T]]) -> T:
        """What is asked with the person's token of GitLab."""
        token = await self.sign_ins.token(opened)
        try:
            return await ask(token.get_secret_value())
        except ReaderRefused:
            # A pod may have refreshed it a moment ago, which ends the one before.
            token = await self.sign_ins.token(opened, refused=token)
            return await ask(token.get_secret_value())


def people_of(
    config: HttpConfig, server: GitLabInstance, readers: Readers, application: Callable[[], Application]
) -> People | None:
    """None if nobody can sign in. Raises ConfigError, SecretMissing."""
    if config.sign_in is None or config.sign_in.client_secret is None:
        return None
    public_url = str(config.public_url)
    if urlsplit(public_url).path != config.root_path:
        raise ConfigError(
            f"`http.public_url` must end with the root path, which is {config.root_path or 'empty'!r}.",
            remedy="Write the address that people type.",
        )
    secret = config.sign_in.client_secret
    oauth = GitLabOAuth(server, config.sign_in.client_id, secret, f"{public_url}{CALLBACK_PATH}")
    return People(SignIns(oauth, lambda: application().database), config, secret, readers)

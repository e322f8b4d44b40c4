"""The authorization server for agents: what the SDK's handlers ask of it.

Agents register themselves, a person allows each one on a page of ours, and the tokens are ours: opaque, for `/mcp`
alone, and in the database, so that any pod answers any request. GitLab's tokens never leave the server.
"""

from __future__ import annotations

import hmac
import re
from copy import copy
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Self
from urllib.parse import urlsplit

from itsdangerous import URLSafeTimedSerializer
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    AuthorizeError,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    RegistrationError,
    TokenError,
    construct_redirect_uri,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import AnyUrl

from reposync.app.sign_in import New, Opened, SignIns
from reposync.outgoing import is_loopback
from reposync.store.status import CredentialKind

SCOPE: Final = "read"
CODE_SECONDS: Final = 60.0
ACCESS_SECONDS: Final = 3_600.0
REFRESH_SECONDS: Final = 30 * 86_400.0
CONSENT_SECONDS: Final = 600
"""For how long a page asks whether a client is allowed."""
MAX_REQUEST_CHARS: Final = 1_800
"""The size limit of a signed request: it is part of an address, and the sign-in leads back to it."""
_MAX_REDIRECT_URIS, _MAX_NAME_CHARS, _MAX_URI_CHARS = 10, 100, 500
_CHALLENGE: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_OWN_SCHEME: Final = re.compile(r"[a-z][a-z0-9+-]*(?:\.[a-z0-9+-]+)+")
# Of programs whose scheme has no dot, against RFC 8252.
_KNOWN_SCHEMES: Final = frozenset(
    {"cursor", "vscode", "vscode-insiders", "windsurf", "zed", "claude", "raycast", "goose"}
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A client's request that a person decides about."""

    client_id: str
    redirect_uri: str
    is_explicit: bool
    challenge: str
    scopes: list[str]
    resource: str
    state: str | None

    @property
    def where(self) -> str:
        """For people: where the browser is led to."""
        split = urlsplit(self.redirect_uri)
        return "this machine" if is_loopback(split.hostname or "") else (split.hostname or f"{split.scheme}:")


class AuthorizationServer(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """`requests`: signs what a client asks for while a person decides. `public_url`: of this server, which is the
    issuer. `consent`: the page that asks the person. `address_key`: of the digests of addresses."""

    def __init__(
        self, sign_ins: SignIns, requests: URLSafeTimedSerializer, public_url: str, consent: str, address_key: bytes
    ) -> None:
        self.sign_ins = sign_ins
        self.issuer = public_url
        self.resource = f"{public_url}/mcp"
        self._requests = requests
        self._consent = consent
        self._address_key = address_key
        self._address = ""

    # What the server says about itself

    def metadata(self) -> OAuthMetadata:
        """Not the SDK's: that one lacks the method `none` and `iss`, and writes the issuer with a slash at its end."""
        return OAuthMetadata.model_validate(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "registration_endpoint": f"{self.issuer}/register",
                "revocation_endpoint": f"{self.issuer}/revoke",
                "scopes_supported": [SCOPE],
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "token_endpoint_auth_methods_supported": ["none"],
                "revocation_endpoint_auth_methods_supported": ["none"],
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": True,
            }
        )

    def resource_metadata(self) -> ProtectedResourceMetadata:
        return ProtectedResourceMetadata.model_validate(
            {
                "resource": self.resource,
                "authorization_servers": [self.issuer],
                "scopes_supported": [SCOPE],
                "bearer_methods_supported": ["header"],
                "resource_name": "reposync",
            }
        )

    # Clients

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        if len(client_id) > _MAX_NAME_CHARS:
            return None
        found = await self.sign_ins.clients.get(client_id)
        return None if found is None else OAuthClientInformationFull.model_validate(found.document)

    def for_client_at(self, address: str) -> Self:
        """The same server, as it is for this client: one that registers itself is counted by where it is."""
        other = copy(self)
        other._address = hmac.digest(self._address_key, address.encode(), sha256).hex()[:32]
        return other

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        uris = [str(uri) for uri in client_info.redirect_uris or ()]
        if not 0 < len(uris) <= _MAX_REDIRECT_URIS or not all(map(is_redirect_uri, uris)):
            raise RegistrationError(
                "invalid_redirect_uri",
                "Redirect URIs must be https, http on loopback, or of a scheme of the program's own.",
            )
        document: dict[str, Any] = {
            "client_id": client_info.client_id,
            "client_id_issued_at": client_info.client_id_issued_at,
            "client_name": name_of(client_info),
            "redirect_uris": uris,
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            "scope": SCOPE,
        }
        await self.sign_ins.register(str(client_info.client_id), document, self._address)

    # Authorization

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        resource = params.resource or self.resource
        if resource.removesuffix("/") != self.resource:
            raise AuthorizeError("invalid_target", f"This server authorizes for {self.resource} only.")
        if _CHALLENGE.fullmatch(params.code_challenge) is None:
            raise AuthorizeError("invalid_request", "code_challenge must be a SHA-256 digest in base64url.")
        asked = [
            client.client_id,
            str(params.redirect_uri),
            params.redirect_uri_provided_explicitly,
            params.code_challenge,
            params.scopes or [SCOPE],
            params.state,
        ]
        signed = str(self._requests.dumps(asked))
        if len(signed) > MAX_REQUEST_CHARS:
            raise AuthorizeError("invalid_request", "The request is too long.")
        return f"{self._consent}?request={signed}"

    def asked(self, signed: str) -> Asked:
        """Raises BadData of itsdangerous."""
        client_id, redirect_uri, is_explicit, challenge, scopes, state = self._requests.loads(
            signed, max_age=CONSENT_SECONDS
        )
        return Asked(client_id, redirect_uri, is_explicit, challenge, scopes, self.resource, state)

    async def allow(self, asked: Asked, client: OAuthClientInformationFull, opened: Opened) -> str:
        """Where the person's browser goes with the code."""
        details = {
            "resource": asked.resource,
            "scopes": asked.scopes,
            "challenge": asked.challenge,
            "redirect_uri": asked.redirect_uri,
            "is_explicit": asked.is_explicit,
        }
        new = New({CredentialKind.CODE: CODE_SECONDS}, name_of(client), client.client_id, details)
        made = await self.sign_ins.issue(opened, new)
        await self.sign_ins.clients.touch(asked.client_id)
        return self.back(asked.redirect_uri, asked.state, code=made[CredentialKind.CODE])

    def deny(self, asked: Asked) -> str:
        return self.back(asked.redirect_uri, asked.state, error="access_denied")

    def back(self, redirect_uri: str, state: str | None, **values: str) -> str:
        """With the issuer (RFC 9207): a client that talks to several servers knows which one answers."""
        return construct_redirect_uri(redirect_uri, **values, state=state, iss=self.issuer)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        opened = await self._usable(authorization_code, client, CredentialKind.CODE)
        if opened is None:
            return None
        details = opened.credential.details
        return AuthorizationCode(
            code=authorization_code,
            scopes=details["scopes"],
            expires_at=opened.credential.expires_at.timestamp(),
            client_id=str(client.client_id),
            code_challenge=details["challenge"],
            redirect_uri=AnyUrl(details["redirect_uri"]),
            redirect_uri_provided_explicitly=details["is_explicit"],
            resource=details["resource"],
            subject=str(opened.grant.user_id),
        )

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        return await self._exchange(authorization_code.code, client, CredentialKind.CODE, authorization_code.scopes)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        opened = await self._usable(refresh_token, client, CredentialKind.REFRESH)
        if opened is None:
            return None
        return RefreshToken(
            token=refresh_token,
            client_id=str(client.client_id),
            scopes=opened.credential.details["scopes"],
            expires_at=int(opened.credential.expires_at.timestamp()),
            resource=opened.credential.details["resource"],
            subject=str(opened.grant.user_id),
        )

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        return await self._exchange(refresh_token.token, client, CredentialKind.REFRESH, scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        opened = await self.sign_ins.open(token, CredentialKind.ACCESS)
        return None if opened is None else self.token_of(token, opened)

    def token_of(self, token: str, opened: Opened) -> AccessToken:
        credential = opened.credential
        return AccessToken(
            token=token,
            client_id=str(credential.client_id),
            scopes=credential.details["scopes"],
            expires_at=int(credential.expires_at.timestamp()),
            resource=credential.details["resource"],
            subject=str(opened.grant.user_id),
            claims={"iss": self.issuer},
        )

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        opened = await self.sign_ins.open(token.token, CredentialKind.ACCESS, CredentialKind.REFRESH)
        if opened is not None:
            await self.sign_ins.end_family(opened.credential.family)

    async def _usable(self, secret: str, client: OAuthClientInformationFull, kind: CredentialKind) -> Opened | None:
        """None also for one that was used before, whose family then ends."""
        opened = await self.sign_ins.open(secret, kind)
        if opened is None or opened.credential.client_id != client.client_id:
            return None
        if opened.credential.used_at is not None:
            await self.sign_ins.exchange(opened, New({}))
            return None
        return opened

    async def _exchange(
        self, secret: str, client: OAuthClientInformationFull, kind: CredentialKind, scopes: list[str]
    ) -> OAuthToken:
        opened = await self._usable(secret, client, kind)
        details = {"resource": self.resource, "scopes": scopes}
        lasting = {CredentialKind.ACCESS: ACCESS_SECONDS, CredentialKind.REFRESH: REFRESH_SECONDS}
        new = New(lasting, name_of(client), client.client_id, details)
        made = None if opened is None else await self.sign_ins.exchange(opened, new)
        if made is None:
            raise TokenError("invalid_grant", "It was used before, or has ended.")
        return OAuthToken(
            access_token=made[CredentialKind.ACCESS],
            refresh_token=made[CredentialKind.REFRESH],
            expires_in=int(ACCESS_SECONDS),
            scope=" ".join(scopes),
        )


def name_of(client: OAuthClientInformationFull) -> str:
    """What the client calls itself, which may be anything."""
    name = " ".join((client.client_name or "").split())
    return name[:_MAX_NAME_CHARS] if name and name.isprintable() else "An agent without a name"


def is_redirect_uri(uri: str) -> bool:
    """Whether a code may be sent there: over https, to this machine, or to a program by its own scheme (RFC 8252)."""
    if len(uri) > _MAX_URI_CHARS or "#" in uri:
        return False
    try:
        split = urlsplit(uri)
        host = split.hostname or ""
    except ValueError:
        return False
    if split.scheme == "https":
        return bool(host) and "@" not in split.netloc
    if split.scheme == "http":
        return is_loopback(host) and "@" not in split.netloc
    return split.scheme in _KNOWN_SCHEMES or _OWN_SCHEME.fullmatch(split.scheme) is not None

"""OAuth for agents at `/mcp`: metadata (RFC 8414, RFC 9728), registration, authorization with a page that asks, tokens.

The handlers are those of the SDK; the limits of bodies, the headers and the log are ours.
"""

from __future__ import annotations

import hmac
import json
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode, urlsplit

from fastapi import APIRouter, Request, Response
from itsdangerous import BadData
from mcp.server.auth.handlers.authorize import AuthorizationHandler
from mcp.server.auth.handlers.metadata import MetadataHandler, ProtectedResourceMetadataHandler
from mcp.server.auth.handlers.register import RegistrationHandler
from mcp.server.auth.handlers.revoke import RevocationHandler
from mcp.server.auth.handlers.token import TokenHandler
from mcp.server.auth.middleware.client_auth import ClientAuthenticator
from mcp.server.auth.provider import ProviderTokenVerifier, construct_redirect_uri
from mcp.server.auth.settings import ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull
from starlette.responses import JSONResponse

from reposync.api.auth import Principal
from reposync.api.people import People
from reposync.api.routing import ApiParts, BodyLimits, Router, UnreadRoute, with_body
from reposync.api.web.own_pages import session_of
from reposync.api.web.rendering import Page
from reposync.errors import UsageError
from reposync.mcp.authorization import SCOPE, Asked, AuthorizationServer, name_of

CONSENT_PATH = "/authorize/consent"
_FORM = BodyLimits(max_bytes=16_384, seconds=5.0)
_SERVER, _RESOURCE = "/.well-known/oauth-authorization-server", "/.well-known/oauth-protected-resource"


class RequestOver(UsageError):
    """The request of an agent that the page asks about is not one of ours, or too old."""


def authorization_server(parts: ApiParts, people: People) -> AuthorizationServer:
    config = parts.access.config
    return AuthorizationServer(
        people.sign_ins,
        people.signer("consent"),
        str(config.public_url),
        f"{config.root_path}{CONSENT_PATH}",
        people.key("client address"),
    )


def authorization_routes(parts: ApiParts, people: People) -> APIRouter:
    routes = Router(route_class=UnreadRoute, include_in_schema=False)
    server, root = authorization_server(parts, people), parts.access.config.root_path
    people.verifier = ProviderTokenVerifier(server)
    authenticator = ClientAuthenticator(server)
    options = ClientRegistrationOptions(enabled=True, valid_scopes=[SCOPE], default_scopes=[SCOPE])
    tokens, revocation = TokenHandler(server, authenticator), RevocationHandler(server, authenticator)
    described = MetadataHandler(server.metadata()), ProtectedResourceMetadataHandler(server.resource_metadata())

    async def metadata(request: Request) -> Response:
        return await described[0].handle(request)

    async def resource_metadata(request: Request) -> Response:
        return await described[1].handle(request)

    # Below a root path also where clients look that put the path of the issuer behind, and for proxies that pass on
    # only what is below the root path.
    for path in {_SERVER, f"{_SERVER}{root}", "/.well-known/openid-configuration"}:
        routes.get(path)(metadata)
    for path in {f"{_RESOURCE}/mcp", f"{_RESOURCE}{root}/mcp", _RESOURCE}:
        routes.get(path)(resource_metadata)

    @routes.post("/register")
    async def register(request: Request) -> Response:
        address = request.client.host if request.client else ""
        handler = RegistrationHandler(server.for_client_at(address), options)
        read = await with_body(request, _FORM)
        return await handler.handle(_with_content(request, _as_public(await read.body())))

    @routes.get("/authorize")
    async def authorize(request: Request) -> Response:
        response = await AuthorizationHandler(server).handle(request)
        location = response.headers.get("location")
        # An error that is sent back to the client, which the SDK does not mark with the issuer.
        if location is not None and urlsplit(location).path != f"{root}{CONSENT_PATH}":
            response.headers["location"] = construct_redirect_uri(location, iss=server.issuer)
        return response

    @routes.post("/token")
    async def token(request: Request) -> Response:
        read = await with_body(request, _FORM)
        resource = (await read.form()).get("resource")
        if isinstance(resource, str) and resource.removesuffix("/") != server.resource:
            # The SDK does not look at it (RFC 8707, 2.2).
            refused = {"error": "invalid_target", "error_description": f"The token is for {server.resource}."}
            return JSONResponse(refused, 400)
        response: Response = await tokens.handle(read)
        return response

    @routes.post("/revoke")
    async def revoke(request: Request) -> Response:
        read = await with_body(request, _FORM)
        form = {name: str(value) for name, value in (await read.form()).items()}
        # Public clients have none, and the SDK wants the field.
        body = urlencode({"client_secret": ""} | form).encode()
        return await revocation.handle(_with_content(request, body))

    # The page that asks

    reader = parts.access.page()

    def proof(request: Request, signed: str) -> str:
        """The proof for the session that saw the page."""
        key = people.key("consent form")
        return hmac.digest(key, f"{session_of(request).credential.id} {signed}".encode(), sha256).hex()

    async def requested(signed: str) -> tuple[Asked, OAuthClientInformationFull]:
        try:
            asked = server.asked(signed)
        except (BadData, ValueError):
            raise RequestOver("This request of an agent is over.", remedy="Connect the agent again.") from None
        client = await server.get_client(asked.client_id)
        if client is None or asked.redirect_uri not in map(str, client.redirect_uris or ()):
            raise RequestOver("This agent is not registered any more.", remedy="Connect the agent again.")
        return asked, client

    @routes.get(CONSENT_PATH)
    async def ask(request: Request, principal: Principal = reader) -> Response:
        signed = request.query_params.get("request", "")
        asked, client = await requested(signed)
        values: dict[str, Any] = {
            "name": name_of(client),
            "asked": asked,
            "request": signed,
            "proof": proof(request, signed),
        }
        return Page(parts, request, principal).show("consent.html", **values)

    @routes.post(CONSENT_PATH)
    async def decide(request: Request, principal: Principal = reader) -> Response:
        session = session_of(request)
        form = await (await with_body(request, _FORM)).form()
        signed = str(form.get("request", ""))
        asked, client = await requested(signed)
        if not hmac.compare_digest(str(form.get("proof", "")).encode(), proof(request, signed).encode()):
            raise RequestOver("This form is of a different session.", remedy="Connect the agent again.")
        is_allowed = form.get("decision") == "allow"
        address = await server.allow(asked, client, session) if is_allowed else server.deny(asked)
        # Not a redirect: browsers apply the policy for forms to where it leads, and agents are elsewhere.
        values: dict[str, Any] = {"name": name_of(client), "address": address, "is_allowed": is_allowed, "asked": asked}
        return Page(parts, request, principal).show("consent_given.html", **values)

    return routes


def _as_public(body: bytes) -> bytes:
    """Clients are public here: none gets a secret that would have to be kept (RFC 7591, 2 lets the server decide)."""
    try:
        wanted = json.loads(body)
    except (ValueError, RecursionError):
        return body
    return json.dumps(wanted | {"token_endpoint_auth_method": "none"}).encode() if isinstance(wanted, dict) else body


def _with_content(request: Request, body: bytes) -> Request:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-length"]
    return Request({**request.scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}, receive)

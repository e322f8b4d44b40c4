"""Signing in at GitLab: the redirect there, and where it leads back to."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from reposync.api.auth import SESSION_COOKIE, local_address
from reposync.api.people import CALLBACK_PATH, SIGN_IN_PATH, SIGN_IN_SECONDS, People
from reposync.api.routing import ApiParts, Router
from reposync.api.service_tokens import SESSION_SECONDS

_COOKIE, _STATE_CHARS = "reposync-sign-in-", 8
_MAX_BEGUN = 3
"""Sign-ins at a time in one browser: more cookies could be too large for the head of a request."""


def sign_in_pages(parts: ApiParts, people: People) -> APIRouter:
    """`GET /sign-in` with `next` in the query, and `GET /sign-in/callback`, which GitLab leads back to."""
    routes = Router(include_in_schema=False)
    access, root = parts.access, parts.access.config.root_path

    @routes.get(SIGN_IN_PATH)
    async def sign_in(request: Request) -> Response:
        beginning = people.begin(local_address(request.query_params.get("next", ""), root))
        response = Response(status_code=303, headers={"Location": beginning.address})
        access.set_cookie(request, response, _cookie_of(beginning.state), beginning.cookie, SIGN_IN_SECONDS)
        begun = [name[name.index(_COOKIE) :] for name in request.cookies if _COOKIE in name]
        for name in begun[: max(0, len(begun) + 1 - _MAX_BEGUN)]:
            access.set_cookie(request, response, name, "", 0)
        return response

    @routes.get(CALLBACK_PATH)
    async def callback(request: Request) -> Response:
        cookie = _cookie_of(request.query_params.get("state", ""))
        secret, onward = await people.finish(request.query_params, access.cookie(request, cookie), SESSION_SECONDS)
        response = Response(status_code=303, headers={"Location": local_address(onward, root)})
        access.set_cookie(request, response, SESSION_COOKIE, secret, SESSION_SECONDS)
        access.set_cookie(request, response, cookie, "", 0)
        return response

    return routes


def _cookie_of(state: str) -> str:
    """One for each sign-in: two tabs may be at GitLab at a time, such as those that two agents opened."""
    return f"{_COOKIE}{state[:_STATE_CHARS]}"

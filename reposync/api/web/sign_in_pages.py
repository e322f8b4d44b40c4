"""Signing in at GitLab: the redirect there, and where it leads back to."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from reposync.api.auth import SESSION_COOKIE, local_address
from reposync.api.people import CALLBACK_PATH, SIGN_IN_PATH, SIGN_IN_SECONDS, People
from reposync.api.routing import ApiParts, Router
from reposync.api.service_tokens import SESSION_SECONDS

_COOKIE = "reposync-sign-in"


def sign_in_pages(parts: ApiParts, people: People) -> APIRouter:
    """`GET /sign-in` with `next` in the query, and `GET /sign-in/callback`, which GitLab leads back to."""
    routes = Router(include_in_schema=False)
    access, root = parts.access, parts.access.config.root_path

    @routes.get(SIGN_IN_PATH)
    async def sign_in(request: Request) -> Response:
        beginning = people.begin(local_address(request.query_params.get("next", ""), root))
        response = Response(status_code=303, headers={"Location": beginning.address})
        access.set_cookie(request, response, _COOKIE, beginning.cookie, SIGN_IN_SECONDS)
        return response

    @routes.get(CALLBACK_PATH)
    async def callback(request: Request) -> Response:
        secret, onward = await people.finish(request.query_params, access.cookie(request, _COOKIE), SESSION_SECONDS)
        response = Response(status_code=303, headers={"Location": local_address(onward, root)})
        access.set_cookie(request, response, SESSION_COOKIE, secret, SESSION_SECONDS)
        access.set_cookie(request, response, _COOKIE, "", 0)
        return response

    return routes

"""Logging in and out with a browser. The form itself, GET /login, is a page."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, urlencode

from fastapi import APIRouter, Request, Response

from reposync.api.access import ACCESS_ERRORS, AccessDenied, TooManyAttempts
from reposync.api.bounds import BodyBounds, with_body
from reposync.api.csrf import CSRF_FIELD, CsrfRefused
from reposync.api.parts import ApiParts
from reposync.api.routing import Router, UnreadRoute

FORM = BodyBounds(max_bytes=16_384)
_LONGEST_NEXT_CHARS = 2_000


def session_routes(parts: ApiParts) -> APIRouter:
    """`POST /login` with the form fields `token`, `csrf` and `next`, and `POST /logout` with `csrf`; both answer with a
    redirect. A login that failed leads back to the form, which the query tells why: `failed` is `token`, `csrf` or
    `attempts` (then with `wait`, in seconds), and `next` stays.
    """
    # The forms are read here: nothing is read of somebody who cannot have a session, or come by one.
    routes = Router(tags=["session"], include_in_schema=False, route_class=UnreadRoute)
    access, root = parts.access, parts.access.config.root_path

    @routes.post("/login")
    async def log_in(request: Request) -> Response:
        try:
            if access.has_tokens and not access.may_log_in(request):
                return _to(_login(root, f"{root}/", failed="csrf"))
        except TooManyAttempts as error:
            return _to(_login(root, f"{root}/", failed="attempts", wait=str(error.wait_seconds)))
        fields = await (await with_body(request, FORM)).form()
        form = {name: value for name, value in fields.items() if isinstance(value, str)}
        onward = local_address(form.get("next", ""), root)
        response = _to(onward)
        if not access.has_tokens:
            return response
        try:
            access.log_in(request, response, form.get("token", "").strip(), form.get(CSRF_FIELD, ""))
        except CsrfRefused:
            return _to(_login(root, onward, failed="csrf"))
        except AccessDenied:
            return _to(_login(root, onward, failed="token"))
        except TooManyAttempts as error:
            return _to(_login(root, onward, failed="attempts", wait=str(error.wait_seconds)))
        return response

    @routes.post("/logout", responses=dict(ACCESS_ERRORS))
    async def log_out(request: Request) -> Response:
        response = _to(f"{root}/login" if access.has_tokens else f"{root}/")
        if access.has_session(request):
            await access.log_out(await with_body(request, FORM), response)
        return response

    return routes


def login_address(request: Request, root: str) -> str:
    """Where somebody logs in who then wants to go on to what this request asked for."""
    wanted = quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else "")
    return _login(root, local_address(wanted if request.method in ("GET", "HEAD") else "", root))


def local_address(wanted: str, root: str) -> str:
    """`wanted` if it is a path of ours, else the first page: a login must not lead to another server."""
    fits = re.fullmatch(r"/(?![/\\])[!-\[\]-~]*", wanted) is not None and len(wanted) <= _LONGEST_NEXT_CHARS
    inside = wanted == root or wanted.startswith((f"{root}/", f"{root}?"))
    # Browsers take these out before they ask, written as they are or with %2e: that leads out of the root path.
    leaves = any(unquote(each) in (".", "..") for each in re.split(r"[?#]", wanted, maxsplit=1)[0].split("/"))
    return wanted if fits and inside and not leaves else f"{root}/"


def _login(root: str, onward: str, **said: str) -> str:
    query = dict(said) if onward == f"{root}/" else {**said, "next": onward}
    return f"{root}/login" + (f"?{urlencode(query)}" if query else "")


def _to(address: str) -> Response:
    # Relative to the host: a full address would need to know its scheme and name from outside.
    return Response(status_code=303, headers={"Location": address, "Cache-Control": "no-store"})

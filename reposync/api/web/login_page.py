"""Logging in and out with a browser."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response

from reposync.api.auth import local_address, login_address
from reposync.api.dependencies import ApiParts
from reposync.api.errors import AccessDenied, CsrfRefused, TooManyAttempts
from reposync.api.request_body import BodyLimits, with_body
from reposync.api.routing import Router, UnreadRoute
from reposync.api.sessions import CSRF_FIELD
from reposync.api.web.rendering import Renderer

FORM = BodyLimits(max_bytes=16_384)


def login_page(parts: ApiParts, renderer: Renderer) -> APIRouter:
    """`GET /login`, `POST /login` with the form fields `token`, `csrf` and `next`, and `POST /logout` with `csrf`.

    A failed login leads back to the form. The query gives the reason, `failed`: `token`, `csrf` or `attempts` (with
    `wait`, in seconds).
    """
    # Forms are read by the handlers: not before it is clear that the client can have a session, or begin one.
    routes = Router(route_class=UnreadRoute)
    access, root = parts.access, renderer.root

    @routes.get("/login")
    async def login_form(request: Request) -> Response:
        if not access.has_tokens:
            return _redirect(f"{root}/")
        query = request.query_params
        csrf, cookie = access.login_form(request)
        problem = _problem(query)
        response = renderer.page(request, "login.html", None, csrf=csrf, problem=problem, next=query.get("next", ""))
        access.keep_login_form(request, response, cookie)
        return response

    @routes.post("/login")
    async def log_in(request: Request) -> Response:
        onward = f"{root}/"
        try:
            if access.has_tokens and not access.may_log_in(request):
                return _redirect(login_address(root, onward, failed="csrf"))
            fields = await (await with_body(request, FORM)).form()
            form = {name: value for name, value in fields.items() if isinstance(value, str)}
            onward = local_address(form.get("next", ""), root)
            response = _redirect(onward)
            if access.has_tokens:
                access.log_in(request, response, form.get("token", "").strip(), form.get(CSRF_FIELD, ""))
        except CsrfRefused:
            return _redirect(login_address(root, onward, failed="csrf"))
        except AccessDenied:
            return _redirect(login_address(root, onward, failed="token"))
        except TooManyAttempts as error:
            return _redirect(login_address(root, onward, failed="attempts", wait=str(error.wait_seconds)))
        return response

    @routes.post("/logout")
    async def log_out(request: Request) -> Response:
        response = _redirect(f"{root}/login" if access.has_tokens else f"{root}/")
        if access.has_session(request):
            await access.log_out(await with_body(request, FORM), response)
        return response

    return routes


def _problem(query: Mapping[str, str]) -> str | None:
    match query.get("failed"):
        case "token":
            return "This token is unknown."
        case "csrf":
            return "The form was too old. Please try again."
        case "attempts":
            wait = query.get("wait", "")
            wait = f"{wait} s" if wait.isdecimal() and len(wait) < 5 else "a minute"
            return f"Too many wrong tokens came from your address. Please wait {wait}."
        case _:
            return None


def _redirect(address: str) -> Response:
    # Without scheme and host, which are unknown behind a proxy.
    return Response(status_code=303, headers={"Location": address, "Cache-Control": "no-store"})

"""What the buttons of the pages do. Each answers with a redirect, so that a reload does not repeat it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import APIRouter, Request, Response

from reposync.api.access import ANONYMOUS, Role
from reposync.api.parts import ApiParts
from reposync.api.routes.runs import whole_id
from reposync.api.routes.session import local_address
from reposync.api.routing import Router
from reposync.api.web.renderer import Renderer
from reposync.app.application import Application
from reposync.app.index_overview import hold, release, roll_back
from reposync.catalog.registration import pause_repository, resume_repository, syncable
from reposync.errors import UsageError
from reposync.runs.lock_overview import release_lock
from reposync.store.status import RunTrigger

Form = dict[str, str]


async def _sync(app: Application, form: Form, by: str) -> str:
    row = await syncable(app, form.get("name", ""))
    run, _ = await app.runs.enqueue(row.name, RunTrigger.HTTP, asked_by=by, max_attempts=_attempts(app))
    return f"/runs/{run.id}"


async def _pause(app: Application, form: Form, by: str) -> str:
    await pause_repository(app, form.get("name", ""), "Paused on the page.", by=by)
    return "/"


async def _resume(app: Application, form: Form, by: str) -> str:
    await resume_repository(app, form.get("name", ""))
    return "/"


async def _cancel(app: Application, form: Form, by: str) -> str:
    run = await app.runs.request_cancel(whole_id(form.get("run", "")), by=by)
    return f"/runs/{run.id}"


async def _retry(app: Application, form: Form, by: str) -> str:
    how: dict[str, Any] = {"by": by, "trigger": RunTrigger.HTTP, "max_attempts": _attempts(app)}
    run = await app.runs.retry(whole_id(form.get("run", "")), **how)
    return f"/runs/{run.id}"


async def _approve(app: Application, form: Form, by: str) -> str:
    how: dict[str, Any] = {"by": by, "trigger": RunTrigger.HTTP, "max_attempts": _attempts(app)}
    run = await app.runs.approve(whole_id(form.get("run", "")), **how)
    return f"/runs/{run.id}"


async def _release(app: Application, form: Form, by: str) -> str:
    await release_lock(form.get("name", ""), app.locks, app.repositories, app.runs, by=by)
    return "/locks"


async def _index_rollback(app: Application, form: Form, by: str) -> str:
    await roll_back(app, form.get("name", ""))
    return "/"


async def _index_pause(app: Application, form: Form, by: str) -> str:
    await hold(app, [form.get("name", "")])
    return "/"


async def _index_resume(app: Application, form: Form, by: str) -> str:
    await release(app, [form.get("name", "")])
    return "/"


ACTIONS: dict[str, Callable[[Application, Form, str], Awaitable[str]]] = {
    "sync": _sync,
    "pause": _pause,
    "resume": _resume,
    "cancel": _cancel,
    "retry": _retry,
    "approve": _approve,
    "release": _release,
    "index-rollback": _index_rollback,
    "index-pause": _index_pause,
    "index-resume": _index_resume,
}


def action_routes(parts: ApiParts, renderer: Renderer) -> APIRouter:
    """`POST /actions/{what}` with the fields of the button's form; `back`, where it is given, is the address of the
    page that it stands on, which is shown again."""
    routes = Router(include_in_schema=False)

    @routes.post("/actions/{what}", dependencies=[parts.access.page(Role.OPERATE)])
    async def act(request: Request, what: str) -> Response:
        form = {key: value for key, value in (await request.form()).items() if isinstance(value, str)}
        if what not in ACTIONS:
            raise UsageError(f"There is no action {what[:50]!r}.")
        by = parts.access.name_of(request)
        onward = renderer.root + await ACTIONS[what](parts.application(), form, "page" if by == ANONYMOUS else by)
        if form.get("back"):
            onward = local_address(form["back"], renderer.root)
        return Response(status_code=303, headers={"Location": _telling(onward, what)})

    return routes


def _attempts(app: Application) -> int:
    return app.configuration.registry.daemon.max_attempts


def _telling(address: str, what: str) -> str:
    """The address, with what the page is to say about it."""
    split = urlsplit(address)
    kept = [(key, value) for key, value in parse_qsl(split.query) if key != "done"]
    return f"{split.path}?{urlencode([*kept, ('done', what)])}"

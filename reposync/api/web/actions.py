"""What the buttons of the pages do. Each answers with a redirect, so that a reload does not repeat it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from reposync.api.access import Role, Visitor
from reposync.api.parts import ApiParts
from reposync.api.web.pages import Renderer
from reposync.errors import RepoSyncError, UsageError
from reposync.scheduling.application import Application
from reposync.scheduling.lock_overview import release_lock
from reposync.scheduling.registering import pause_repository, resume_repository, syncable
from reposync.store.status import RunTrigger

Form = dict[str, str]


async def _sync(app: Application, form: Form) -> str:
    row = await syncable(app, form.get("name", ""))
    run, _ = await app.runs.enqueue(row.name, RunTrigger.HTTP)
    return f"/runs/{run.id}"


async def _pause(app: Application, form: Form) -> str:
    await pause_repository(app, form.get("name", ""), "Paused on the page.")
    return "/"


async def _resume(app: Application, form: Form) -> str:
    await resume_repository(app, form.get("name", ""))
    return "/"


async def _cancel(app: Application, form: Form) -> str:
    return f"/runs/{(await app.runs.request_cancel((await app.runs.get(form.get('run', ''))).id)).id}"


async def _retry(app: Application, form: Form) -> str:
    return f"/runs/{(await app.runs.retry(form.get('run', ''))).id}"


async def _approve(app: Application, form: Form) -> str:
    return f"/runs/{(await app.runs.approve(form.get('run', ''))).id}"


async def _release(app: Application, form: Form) -> str:
    await release_lock(form.get("name", ""), app.locks, app.repositories, app.runs)
    return "/locks"


ACTIONS: dict[str, Callable[[Application, Form], Awaitable[str]]] = {
    "sync": _sync,
    "pause": _pause,
    "resume": _resume,
    "cancel": _cancel,
    "retry": _retry,
    "approve": _approve,
    "release": _release,
}


def action_routes(parts: ApiParts) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    renderer = Renderer(parts)
    operator = parts.access.page(Role.OPERATE)

    @routes.post("/actions/{what}")
    async def act(request: Request, what: str, visitor: Visitor = operator) -> Response:
        form = {key: value for key, value in (await request.form()).items() if isinstance(value, str)}
        try:
            if what not in ACTIONS:
                raise UsageError(f"There is no action {what[:50]!r}.")
            onward = await ACTIONS[what](parts.application(), form)
        except RepoSyncError as error:
            return renderer.problem(request, visitor, error)
        return Response(status_code=303, headers={"Location": f"{renderer.root}{onward}?{urlencode({'done': what})}"})

    return routes

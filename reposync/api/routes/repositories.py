"""`/api/v1/repositories`: what is kept in sync; registering, changing and removing it, and asking for a sync."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from reposync.api.access import Role
from reposync.api.answers import CHANGING, WITH_BODY, errors
from reposync.api.coalescing import Coalesced
from reposync.api.conditional import ETAG_HEADER, NOT_MODIFIED, conditional, still_is, tag_of
from reposync.api.cursors import cursor_after, key_before
from reposync.api.definitions import CHANGEABLE, IDENTITY, NOT_OVER_HTTP, change_body, new_repository_body
from reposync.api.documents import run_documents
from reposync.api.media_type import TAKES_JSON
from reposync.api.models import (
    NoFilters,
    Pause,
    RepositoryFilters,
    RepositoryPage,
    RunShown,
    SyncRequest,
    Waiting,
)
from reposync.api.naming import NamedRoute, RepositoryName, path_of
from reposync.api.parts import ApiParts
from reposync.api.routes.runs import LOCATION, PREFIX, run_path
from reposync.api.routing import Router
from reposync.api.source_policy import check_source
from reposync.api.waiting import end_of
from reposync.app.application import Application
from reposync.catalog.overview import RepositoryDetail, overviews, repository_detail, state_words
from reposync.catalog.registration import (
    add_repository,
    change_repository,
    pause_repository,
    request_removal,
    resume_repository,
    syncable,
)
from reposync.config.loading import checked_repository
from reposync.config.problems import suggestion
from reposync.errors import (
    ConfigError,
    RepositoryChanged,
    RepositoryExists,
    RepositoryInactive,
    RepositoryNotFound,
    RepositoryReadOnly,
    SourceNotAllowed,
    UsageError,
)
from reposync.store.asking import IdempotencyKeyReused
from reposync.store.following import runs_by_id
from reposync.store.repositories import Repository
from reposync.store.row_watch import Following
from reposync.store.run import Run
from reposync.store.status import RunTrigger

HTTP = "http"
"""The origin of what is registered here."""
MAX_KEY_CHARS = 200
# One event loop has no more to do than these; further ones would be connections to the database and nothing else.
AT_A_TIME = 4

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=MAX_KEY_CHARS,
        pattern=r"^[\x21-\x7e]+$",
        description="The same key with the same request gets the same answer for 24 hours, on every pod, and asks for "
        "one run alone. `wait` may differ.",
        examples=["8e03978e-40d5-43dd-bc93-6894a57f9324"],
    ),
]

IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        max_length=1_000,
        description="Change it only if it is as it was in the answer with this ETag.",
        examples=['"0a1b2c3d4e5f6071-9c8b7a6f5e4d3c2b1a0f9e8d7c6b5a4f"'],
    ),
]

REPEATED = {"Idempotency-Replayed": {"schema": {"type": "string"}, "description": "`true` for a repeated answer."}}


def repository_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["repositories"], route_class=NamedRoute)
    reads = [parts.access.requires(Role.READ)]
    operates = [parts.access.requires(Role.OPERATE)]

    async def fetch(ids: Collection[str]) -> dict[str, Run]:
        return await runs_by_id(parts.application().database, ids)

    following = Following(fetch)
    together: Coalesced[RunShown] = Coalesced(AT_A_TIME)

    async def asked(request: Request, response: Response, run: RunShown, wait_seconds: float) -> RunShown:
        """The answer to whoever asked for that run."""
        response.headers["Location"] = run_path(request, run.id)
        if not wait_seconds:
            return run
        ended = await end_of(following, request, run.id, wait_seconds)
        if ended is None:
            return run
        response.status_code = 200
        return await _shown(parts.application(), ended)

    @routes.get(
        "/repositories",
        summary="The registered repositories, by name",
        dependencies=reads,
        response_model=RepositoryPage,
        responses={200: {"headers": ETAG_HEADER}, **NOT_MODIFIED, **errors(UsageError)},
    )
    async def list_repositories(request: Request, filters: Annotated[RepositoryFilters, Query()]) -> Response:
        after = None if filters.cursor is None else key_before(filters.cursor)
        app = parts.application()
        fitting = [
            name
            for name, state in sorted((await state_words(app.repositories)).items())
            if (after is None or name > after)
            and (filters.state is None or state == filters.state)
            and (filters.name is None or filters.name.casefold() in name.casefold())
        ]
        names = fitting[: filters.limit]
        items = await overviews(app.repositories, app.manifests, app.runs, names) if names else []
        next_cursor = cursor_after(names[-1]) if len(fitting) > len(names) else None
        return conditional(request, RepositoryPage(items=items, next_cursor=next_cursor))

    @routes.post(
        "/repositories",
        summary="Register a repository",
        description="With the keys of an entry under `repositories` of the registry file, and checked alike; but "
        "`${VARIABLE}` is plain text here, and passwords are not taken. Folders of the server, and addresses that are "
        "not in the public internet, are refused unless the operator allows them. It is synced within seconds.",
        dependencies=[*operates, TAKES_JSON],
        status_code=201,
        responses={
            201: {
                "headers": {
                    "Location": {"schema": {"type": "string"}, "description": "Where it is now."},
                    **ETAG_HEADER,
                }
            },
            **errors(
                ConfigError,
                UsageError,
                SourceNotAllowed,
                RepositoryNotFound,  # removed in the very moment
                RepositoryExists,
                RepositoryReadOnly,
                *CHANGING,
                *WITH_BODY,
            ),
        },
        openapi_extra=new_repository_body(),
    )
    async def register_repository(
        request: Request,
        response: Response,
        definition: Annotated[dict[str, Any], Body()],
        _: Annotated[NoFilters, Query()],
    ) -> RepositoryDetail:
        app = parts.application()
        registry = app.configuration.registry
        resolved = checked_repository(registry, definition)
        await check_source(resolved, allow_local=registry.http.allow_local_sources)
        row = await add_repository(app, definition, origin=HTTP)
        root = request.scope.get("root_path", "")
        response.headers["Location"] = f"{root}{PREFIX}/repositories/{path_of(row.name)}"
        shown, seen = await repository_detail(app, row.name)
        response.headers["ETag"] = tag_of(shown, seen.changeable)
        return shown

    @routes.post(
        "/repositories/{name:path}/sync",
        summary="Ask for a sync",
        description="Answers at once with the run that does it. One that is queued already is returned, and not "
        "doubled; one that is under way is followed by another one. `wait` waits for the end.",
        dependencies=[*operates, TAKES_JSON],
        status_code=202,
        responses={
            200: {"model": RunShown, "description": "The run, which ended within `wait`", "headers": LOCATION},
            202: {"headers": {**LOCATION, **REPEATED}},
            **errors(RepositoryNotFound, RepositoryInactive, IdempotencyKeyReused, *CHANGING, *WITH_BODY),
        },
    )
    async def sync_repository(
        request: Request,
        response: Response,
        name: RepositoryName,
        waiting: Annotated[Waiting, Query()],
        wanted: Annotated[SyncRequest | None, Body()] = None,
        key: IdempotencyKey = None,
    ) -> RunShown:
        app = parts.application()
        wanted = wanted or SyncRequest()
        asked_by = parts.access.name_of(request)
        how: dict[str, Any] = {
            "asked_by": asked_by,
            "full": wanted.full,
            "approved": wanted.allow_mass_delete,
            "max_attempts": app.configuration.registry.daemon.max_attempts,
        }
        if key is None:

            async def enqueue() -> RunShown:
                if not wanted.allow_mass_delete:
                    covering = await app.runs.waiting_run(name, RunTrigger.HTTP, asked_by=asked_by, full=wanted.full)
                    if covering is not None:
                        return await _shown(app, covering)
                row = await syncable(app, name)
                return await _shown(app, (await app.runs.enqueue(row.name, RunTrigger.HTTP, **how))[0])

            shown = await together.ask((name, wanted, asked_by), enqueue)
            return await asked(request, response, shown, waiting.wait)
        fingerprint = _fingerprint("sync", name, wanted.full, wanted.allow_mass_delete)
        credential = parts.access.credential_of(request)
        answered = await app.runs.answered(key, fingerprint, asked_by=asked_by, credential=credential)
        if answered is None:
            row = await syncable(app, name)
            how |= {"answer": _told(asked_by), "credential": credential}
            answered = await app.runs.enqueue_once(key, fingerprint, row.name, RunTrigger.HTTP, **how)
        if answered.is_repeat:
            response.headers["Idempotency-Replayed"] = "true"
        return await asked(request, response, RunShown(**answered.answer), waiting.wait)

    @routes.get(
        "/repositories/{name:path}",
        summary="One repository",
        dependencies=reads,
        response_model=RepositoryDetail,
        responses={200: {"headers": ETAG_HEADER}, **NOT_MODIFIED, **errors(RepositoryNotFound)},
    )
    async def get_repository(request: Request, name: RepositoryName, _: Annotated[NoFilters, Query()]) -> Response:
        shown, row = await repository_detail(parts.application(), name)
        return conditional(request, shown, changeable=row.changeable)

    @routes.patch(
        "/repositories/{name:path}",
        summary="Pause or resume a repository, or change how it is registered",
        description="Keys that are left out stay as they are; null is the default again. What stands in the registry "
        "file, or comes from a group, can be paused and resumed here, and is changed there. Two who change different "
        "keys at the same time do not undo each other's. With `If-Match`, the ETag of an answer before, it is changed "
        "only if nobody else has changed it since; syncs do not count.",
        dependencies=[*operates, TAKES_JSON],
        responses={
            200: {"headers": ETAG_HEADER},
            **errors(
                ConfigError,
                UsageError,
                RepositoryNotFound,
                RepositoryReadOnly,
                RepositoryInactive,
                RepositoryChanged,
                *CHANGING,
                *WITH_BODY,
            ),
        },
        openapi_extra=change_body(),
    )
    async def patch_repository(
        request: Request,
        response: Response,
        name: RepositoryName,
        changes: Annotated[dict[str, Any], Body()],
        _: Annotated[NoFilters, Query()],
        if_match: IfMatch = None,
    ) -> RepositoryDetail:
        app = parts.application()
        pause, definition = _split(changes)
        expected = None
        if if_match is not None:
            expected = await _as_expected(app, name, if_match)
        if definition:
            changed = await change_repository(app, name, definition, expected=expected)
            expected = changed if expected is not None else None
        if pause.is_active is not None:
            # What left the registry must not come back to life under a name that nothing describes any more.
            await syncable(app, name)
        if pause.is_active is False:
            reason = pause.paused_reason or "Paused over HTTP."
            await pause_repository(app, name, reason, expected=expected, by=parts.access.name_of(request))
        elif pause.is_active:
            await resume_repository(app, name, expected=expected)
        shown, row = await repository_detail(app, name)
        response.headers["ETag"] = tag_of(shown, row.changeable)
        return shown

    @routes.delete(
        "/repositories/{name:path}",
        summary="Remove a repository with its index",
        description="A run does it, after what is under way has ended. Its history stays.",
        dependencies=operates,
        status_code=202,
        responses={
            200: {"model": RunShown, "description": "The run, which ended within `wait`", "headers": LOCATION},
            202: {"headers": LOCATION},
            **errors(RepositoryNotFound, RepositoryReadOnly, *CHANGING),
        },
    )
    async def remove_repository(
        request: Request, response: Response, name: RepositoryName, waiting: Annotated[Waiting, Query()]
    ) -> RunShown:
        app = parts.application()
        run = await request_removal(app, name, RunTrigger.HTTP, asked_by=parts.access.name_of(request))
        return await asked(request, response, await _shown(app, run), waiting.wait)

    return routes


async def _as_expected(app: Application, name: str, if_match: str) -> Repository:
    """The repository as it is, which is as the client knows it. Raises RepositoryNotFound, RepositoryChanged."""
    row = await app.repositories.get(name)
    if not still_is(if_match, row.changeable):
        raise RepositoryChanged(
            f"{name!r} was changed since the ETag in If-Match; nothing was written.", remedy="Read it again."
        )
    return row


def _split(changes: Mapping[str, Any]) -> tuple[Pause, dict[str, Any]]:
    """What pauses or resumes, and what is about the definition. Raises ConfigError for a key that cannot be changed,
    RequestValidationError for a value that does not fit."""
    known = CHANGEABLE | Pause.model_fields.keys()
    for key in changes:
        if key in IDENTITY | NOT_OVER_HTTP:
            raise ConfigError(f"`{key}` cannot be changed.", remedy="Register another repository.")
        if key not in known:
            told = f"unknown key `{key[:MAX_KEY_CHARS]}`{suggestion(key, known)}"
            raise ConfigError(told if told.endswith("?") else f"{told}.")
    try:
        pause = Pause.model_validate({key: value for key, value in changes.items() if key in Pause.model_fields})
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from None
    if pause.paused_reason is not None and pause.is_active is not False:
        raise ConfigError("`paused_reason` goes with `is_active: false`.")
    return pause, {key: value for key, value in changes.items() if key in CHANGEABLE}


def _told(asked_by: str) -> Callable[[Run], dict[str, Any]]:
    return lambda run: RunShown.of(run, [asked_by]).model_dump(mode="json")


async def _shown(app: Application, run: Run) -> RunShown:
    return RunShown(**(await run_documents(app.runs, [run]))[0])


def _fingerprint(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

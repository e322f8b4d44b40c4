"""`POST /api/v1/webhooks/gitlab`: push events of GitLab. `.../gitlab-system`: what changes rights there."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel

from reposync.api.errors import BodiesBusy
from reposync.api.routing import ApiParts, BodyLimits, Router, UnreadRoute, read_body
from reposync.app.webhooks import (
    Credentials,
    Ignored,
    Outcome,
    PushPayload,
    Reason,
    TriggeredRun,
    WebhookRefused,
    has_sent,
    ignored_push,
    listening,
    may_have_sent,
    read_event,
    read_rights_change,
    receive_push,
)
from reposync.config.gitlab_instance import GitLabInstance
from reposync.operations.paths import PREFIX

log = logging.getLogger(__name__)

PATH = f"{PREFIX}/webhooks/gitlab"
SYSTEM_PATH = f"{PREFIX}/webhooks/gitlab-system"

MAX_BODY_BYTES = 25 * 1024 * 1024
"""The limit of GitLab itself."""
MAX_BODIES_BYTES = 3 * MAX_BODY_BYTES
BODY_SECONDS = 10.0
"""The timeout of GitLab."""


class DeliveryAnswer(BaseModel):
    """`queued`: at least one run is queued or running for this push."""

    status: Literal["queued", "ignored"]
    runs: list[TriggeredRun]
    ignored: list[Ignored]


class SystemEventAnswer(BaseModel):
    """`forgotten`: answers of GitLab that the event outdates are not used any more, on every pod."""

    status: Literal["forgotten", "ignored"]


_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"model": DeliveryAnswer, "description": "Accepted, but no reason for a run"},
    202: {
        "model": DeliveryAnswer,
        "description": "A run is queued, or was queued already, for each repository whose branch moved",
    },
}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}},
        "description": f"An event of GitLab. These keys of a push are read: {', '.join(PushPayload.model_fields)}.",
    }
}


def webhook_routes(parts: ApiParts) -> APIRouter:
    routes = Router(tags=["webhooks"], route_class=UnreadRoute)
    receiver = WebhookReceiver(parts)

    @routes.post(
        PATH,
        summary="Receive a push event of GitLab",
        description="For GitLab's project, group and system hooks. Authenticated by the secret token or the signature "
        "of the hook, not by a Bearer token. Events that need no run get 200 with the reason.",
        status_code=202,
        response_model=DeliveryAnswer,
        responses=_ANSWERS,
        openapi_extra=_BODY,
    )
    async def gitlab_webhook(
        request: Request,
        response: Response,
        x_gitlab_event: Annotated[str, Header()] = "",
        x_gitlab_token: Annotated[str, Header()] = "",
        webhook_id: Annotated[str, Header()] = "",
        webhook_timestamp: Annotated[str, Header()] = "",
        webhook_signature: Annotated[str, Header()] = "",
        x_gitlab_event_uuid: Annotated[str, Header()] = "",
    ) -> DeliveryAnswer:
        given = Credentials(x_gitlab_token, webhook_id, webhook_timestamp, webhook_signature)
        outcomes = await receiver.receive(request, given, x_gitlab_event, webhook_id or x_gitlab_event_uuid)
        runs = [each for each in outcomes if isinstance(each, TriggeredRun)]
        ignored = [each for each in outcomes if isinstance(each, Ignored)]
        response.status_code = 202 if runs else 200
        return DeliveryAnswer(status="queued" if runs else "ignored", runs=runs, ignored=ignored)

    @routes.post(
        SYSTEM_PATH,
        summary="Receive an event of a system hook of GitLab",
        description="For a system hook of the server that decides who sees what (`http.gitlab`). Authenticated by its "
        "secret token or signature. Events that change no rights get 200.",
        openapi_extra={"requestBody": {**_BODY["requestBody"], "description": "An event of a system hook."}},
    )
    async def gitlab_system_hook(
        request: Request,
        x_gitlab_event: Annotated[str, Header()] = "",
        x_gitlab_token: Annotated[str, Header()] = "",
        webhook_id: Annotated[str, Header()] = "",
        webhook_timestamp: Annotated[str, Header()] = "",
        webhook_signature: Annotated[str, Header()] = "",
    ) -> SystemEventAnswer:
        given = Credentials(x_gitlab_token, webhook_id, webhook_timestamp, webhook_signature)
        readers = parts.access.readers
        async with receiver.delivery(request, given) as (body, senders):
            change = read_rights_change(x_gitlab_event, body)
        if change is None or readers is None or readers.url not in [server.url for server in senders]:
            return SystemEventAnswer(status="ignored")
        await readers.change(change)
        return SystemEventAnswer(status="forgotten")

    return routes


class WebhookReceiver:
    """Receives deliveries from senders that know a secret, within limits."""

    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts
        self._free_bytes = MAX_BODIES_BYTES

    async def receive(self, request: Request, given: Credentials, kind: str, delivery: str) -> list[Outcome]:
        async with self.delivery(request, given) as (body, senders):
            event = read_event(kind, body)
        # The memory of the body is free again: the event has what is needed of it.
        if isinstance(event, Reason):
            return [ignored_push(event)]
        # Without a time limit: GitLab waits for ten seconds, does not send every push again, and the run is queued
        # although it has given up.
        return await receive_push(self._parts.application(), event, senders, delivery)

    @contextlib.asynccontextmanager
    async def delivery(
        self, request: Request, given: Credentials
    ) -> AsyncGenerator[tuple[bytearray, list[GitLabInstance]], None]:
        """The body of an authenticated delivery, and the servers that may have sent it."""
        servers = listening(self._parts.application().configuration.registry.gitlab)
        candidates = [server for server in servers if may_have_sent(server, given)]
        with contextlib.ExitStack() as held:
            body = await self._body(request, held) if candidates else bytearray()
            try:
                senders = [server for server in candidates if has_sent(server, given, body, time.time())]
                if not senders:
                    raise WebhookRefused("Neither the secret token nor the signature is valid.")
            except WebhookRefused as error:
                address = request.client.host if request.client else ""
                log.warning("a webhook was refused", extra={"address": address, "error": str(error)})
                raise
            yield body, senders

    async def _body(self, request: Request, held: contextlib.ExitStack) -> bytearray:
        """The body, whose memory is taken until `held` closes. All of them together have a limit."""

        def hold(size_bytes: int) -> None:
            if size_bytes > self._free_bytes:
                raise BodiesBusy("Too many bodies are being sent at once.", remedy="Try again in a moment.")
            self._hold(size_bytes)
            held.callback(self._hold, -size_bytes)

        return await read_body(request, BodyLimits(MAX_BODY_BYTES, BODY_SECONDS), on_piece=hold)

    def _hold(self, size_bytes: int) -> None:
        self._free_bytes -= size_bytes

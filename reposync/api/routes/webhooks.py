"""`POST /api/v1/webhooks/gitlab`: push events of GitLab."""

from __future__ import annotations

import logging
import time
from hashlib import sha256
from typing import Annotated, Any, Literal, NoReturn

from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel

from reposync.api.errors import (
    BodiesBusy,
    BodyTooLarge,
    BodyTooSlow,
    BodyUnreadable,
    CrossSiteRefused,
    HostNotAllowed,
    QueryTooLong,
    RequestInvalid,
    ShuttingDown,
    TooManyAttempts,
    Unexpected,
    described,
)
from reposync.api.routing import PREFIX, ApiParts, BodyLimits, Router, SharedBodies, UnreadRoute
from reposync.api.throttle import Throttle
from reposync.app.webhooks import (
    Credentials,
    Ignored,
    Outcome,
    PushPayload,
    Reason,
    TriggeredRun,
    WebhookInvalid,
    WebhookRefused,
    WebhookSecretMissing,
    WebhooksOff,
    ignored_push,
    listening,
    needs_body,
    read_event,
    receive_push,
    senders_by_signature,
    senders_by_token,
)
from reposync.config.registry import GitLabInstance
from reposync.errors import Starting, StoreUnavailable

log = logging.getLogger(__name__)

PATH = f"{PREFIX}/webhooks/gitlab"

MAX_BODY_BYTES = 25 * 1024 * 1024
"""The limit of GitLab itself."""
MAX_BODIES_BYTES = 3 * MAX_BODY_BYTES
BODY_SECONDS = 10.0
"""The timeout of GitLab."""
HINT_EVERY_SECONDS = 60.0


class DeliveryAnswer(BaseModel):
    """`queued`: at least one run is queued or running for this push."""

    status: Literal["queued", "ignored"]
    runs: list[TriggeredRun]
    ignored: list[Ignored]


_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"model": DeliveryAnswer, "description": "Accepted, but no reason for a run"},
    202: {
        "model": DeliveryAnswer,
        "description": "A run is queued, or was queued already, for each repository whose branch moved",
    },
    **described(
        *(BodyUnreadable, WebhookRefused, WebhooksOff, WebhookSecretMissing, CrossSiteRefused, BodyTooSlow),
        *(BodyTooLarge, QueryTooLong, HostNotAllowed, WebhookInvalid, RequestInvalid, TooManyAttempts),
        *(StoreUnavailable, Starting, BodiesBusy, ShuttingDown, Unexpected),
    ),
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

    return routes


class WebhookReceiver:
    """Receives deliveries from senders that know a secret, within limits."""

    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts
        self._bodies = SharedBodies(BodyLimits(MAX_BODY_BYTES, BODY_SECONDS), total_bytes=MAX_BODIES_BYTES)
        self._throttle = Throttle()
        self._hinted_at = float("-inf")

    async def receive(self, request: Request, given: Credentials, kind: str, delivery: str) -> list[Outcome]:
        app = self._parts.application()
        address = request.client.host if request.client else ""
        servers = self._listening(app.configuration.registry.gitlab)
        self._throttle.admit(address)
        senders = senders_by_token(servers, given)
        # Without a valid token the body is read only if there is a signature of it to check.
        if not senders and not needs_body(servers, given):
            self._refuse(address, given)
        with self._bodies.reading(request) as read_body:
            content = await read_body()
            if not senders:
                senders = _signers(servers, given, content, address)
            if not senders:
                self._refuse(address, given)
            event = read_event(kind, content)
        # The memory of the body is free again: the event has what is needed of it.
        if isinstance(event, Reason):
            return [ignored_push(event)]
        # Without a time limit: GitLab waits for ten seconds, does not send every push again, and the run is queued
        # although it has given up.
        return await receive_push(app, event, senders, delivery)

    def _listening(self, servers: tuple[GitLabInstance, ...]) -> list[GitLabInstance]:
        try:
            return listening(servers)
        except WebhooksOff as error:
            if time.monotonic() - self._hinted_at > HINT_EVERY_SECONDS:
                self._hinted_at = time.monotonic()
                log.warning("a webhook was received, but webhooks are off", extra={"error": str(error)})
            # The sender is unknown: only the log names the keys of the registry.
            raise WebhooksOff(error.message, remedy="The log of reposync names the setting.") from error

    def _refuse(self, address: str, given: Credentials) -> NoReturn:
        self._throttle.failed(address, sha256(f"{given.token}\n{given.signature}".encode()).digest())
        shown = "signature" if given.signature else "secret token" if given.token else "nothing"
        remedy = "Set the hook's secret in GitLab."
        log.warning("a webhook was refused", extra={"address": address, "shown": shown, "remedy": remedy})
        raise WebhookRefused("Neither the secret token nor the signature is valid.")


def _signers(servers: list[GitLabInstance], given: Credentials, body: bytearray, address: str) -> list[GitLabInstance]:
    try:
        return senders_by_signature(servers, given, body, time.time())
    except WebhookRefused as error:
        log.warning("a webhook was refused", extra={"address": address, "error": str(error)})
        raise

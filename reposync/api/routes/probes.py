"""`/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import datetime
from typing import Literal

from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict

from reposync.api.routing import ApiParts, Router
from reposync.operations.core import Rule

log = logging.getLogger(__name__)

REFRESH_SECONDS = 5.0
"""Prometheus times out after 10 s by default."""

FRESH_SECONDS = 1.0
"""Figures of this age are not fetched again: several scrapers, or a held-down F5 key, cost one query."""

Status = Literal["ok", "degraded", "starting", "down"]


class Alive(BaseModel):
    status: Literal["ok"] = "ok"


class ComponentHealth(BaseModel):
    """`since`: when the status last changed. Clients without a token for all repositories get the status only: reasons
    quote addresses, and lines of the registry file."""

    status: Status
    reason: str | None = None
    since: datetime | None = None
    latency_seconds: float | None = None

    model_config = ConfigDict(from_attributes=True)


class Readiness(BaseModel):
    """`degraded`: some dependencies do not work; `starting`: the database was not checked yet; `down`: nothing
    works."""

    status: Status
    components: dict[str, ComponentHealth]


def probe_routes(parts: ApiParts) -> APIRouter:
    routes = Router(tags=["probes"])
    figures = _Figures(parts)

    @routes.get("/healthz", summary="Liveness: the event loop of the process works")
    async def healthz() -> Alive:
        return Alive()

    @routes.get(
        "/readyz",
        summary="Readiness, and the health of each dependency",
        responses={
            503: {"model": Readiness, "description": "It is starting, or a dependency that everything needs is down"}
        },
    )
    async def readyz(request: Request, response: Response) -> Readiness:
        found = parts.health.snapshot()
        # A wrong token does not make the daemon unready.
        principal = await parts.access.principal_or_none(request)
        is_known = principal is not None and principal.may(Rule.READ_EVERYTHING)
        response.status_code = 503 if found.status in ("starting", "down") else 200
        components = {
            name: ComponentHealth.model_validate(each) if is_known else ComponentHealth(status=each.status)
            for name, each in found.components.items()
        }
        return Readiness(status=found.status, components=components)

    @routes.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics(request: Request) -> Response:
        if parts.access.config.metrics == "off":
            raise HTTPException(404)
        # Without tokens everybody is admitted.
        if parts.access.config.metrics != "open":
            await parts.access.admit(request, Rule.READ_EVERYTHING)
        await figures.refresh()
        body, content_type = parts.metrics.render()
        return Response(body, headers={"Content-Type": content_type})

    return routes


class _Figures:
    """Refreshes gauges before a scrape: one refresh at a time; the scrape succeeds without it."""

    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts
        self._one_at_a_time = asyncio.Lock()
        self._refreshed_at = float("-inf")

    async def refresh(self) -> None:
        health = self._parts.health.snapshot()
        self._parts.metrics.dependencies({name: each.status for name, each in health.components.items()})
        requested_at = time.monotonic()
        async with self._one_at_a_time:
            # Everybody who waited meanwhile shares the result, even a failure.
            if self._refreshed_at >= requested_at - FRESH_SECONDS:
                return
            try:
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._parts.refresh()
            except Exception as error:  # noqa: BLE001 (the counters of this pod are useful without the database)
                self._parts.metrics.refresh_failed()
                log.warning("The metrics lack the figures of the database", extra={"error": repr(error)})
            self._refreshed_at = time.monotonic()

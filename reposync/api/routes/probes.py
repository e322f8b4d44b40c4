"""`/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import datetime
from typing import Literal

from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import BaseModel

from reposync.api.dependencies import ApiParts
from reposync.api.routing import Router
from reposync.telemetry.metrics import CONTENT_TYPE

log = logging.getLogger(__name__)

REFRESH_SECONDS = 5.0
"""Prometheus times out after 10 s by default."""

FRESH_SECONDS = 1.0
"""Figures of this age are not fetched again: several scrapers, or a held-down F5 key, cost one query."""


class Alive(BaseModel):
    status: Literal["ok"] = "ok"


class ComponentHealth(BaseModel):
    """`since`: when the status last changed. Clients without a token get the status only: reasons quote addresses, and
    lines of the registry file."""

    status: Literal["ok", "degraded", "starting", "down"]
    reason: str | None = None
    since: datetime | None = None
    latency_seconds: float | None = None


class Readiness(BaseModel):
    """`degraded`: some dependencies do not work; `starting`: the database was not checked yet; `down`: nothing
    works."""

    status: Literal["ok", "degraded", "starting", "down"]
    components: dict[str, ComponentHealth]


def probe_routes(parts: ApiParts) -> APIRouter:
    routes = Router(tags=["probes"])
    figures = _Figures(parts)

    @routes.get("/healthz", summary="Liveness: the event loop of the process works")
    async def healthz(response: Response) -> Alive:
        response.headers["Cache-Control"] = "no-store"
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
        is_known = await parts.access.principal_or_none(request) is not None
        response.status_code = 503 if found.status in ("starting", "down") else 200
        response.headers["Cache-Control"] = "no-store"
        return Readiness(
            status=found.status,
            components={
                name: ComponentHealth(
                    status=each.status, reason=each.reason, since=each.since, latency_seconds=each.latency_seconds
                )
                if is_known
                else ComponentHealth(status=each.status)
                for name, each in found.components.items()
            },
        )

    @routes.get(
        "/metrics",
        dependencies=[parts.access.reads_metrics()],
        summary="Prometheus metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        if parts.access.config.metrics == "off":
            raise HTTPException(404)
        await figures.refresh()
        body = bytearray()
        # Thousands of repositories take tens of milliseconds. Not in a thread: syncs may use all of them.
        for piece in parts.metrics.pieces():
            body += piece
            await asyncio.sleep(0)
        return Response(bytes(body), headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})

    return routes


class _Figures:
    """Refreshes gauges before a scrape: one refresh at a time; the scrape succeeds without it."""

    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts
        self._one_at_a_time = asyncio.Lock()
        self._refreshed_at = float("-inf")
        self._failing = False

    async def refresh(self) -> None:
        health = self._parts.health.snapshot()
        self._parts.metrics.dependencies({name: each.status for name, each in health.components.items()})
        requested_at = time.monotonic()
        async with self._one_at_a_time:
            # Everybody who waited meanwhile shares the result, even a failure.
            if self._refreshed_at >= requested_at - FRESH_SECONDS:
                return
            await self._refresh()
            self._refreshed_at = time.monotonic()

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(REFRESH_SECONDS):
                await self._parts.refresh()
        except Exception as error:  # noqa: BLE001 (the counters of this pod are useful without the database)
            self._parts.metrics.refresh_failed()
            if not self._failing:
                log.warning("The metrics lack the figures of the database", extra={"error": _reason(error)})
            self._failing = True
            return
        if self._failing:
            log.info("The metrics have the figures of the database again")
        self._failing = False


def _reason(error: Exception) -> str:
    return f"no response within {REFRESH_SECONDS:.0f} s" if isinstance(error, TimeoutError) else str(error)

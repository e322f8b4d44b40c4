"""Routes that are their operations alone: `/api/v1/index`, `/locks`, `/leftovers`, `/plan`, `/targets`, `/sync` and
`/discover`."""

from __future__ import annotations

from fastapi import APIRouter

from reposync.api.operating import add_operation
from reposync.api.routing import ApiParts, Router
from reposync.operations import index, syncs
from reposync.operations.paths import PREFIX


def other_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["index"])
    add_operation(routes, parts, index.indexes, has_etag=True)
    for operation in (syncs.leftovers, syncs.remove_leftovers, syncs.plan, syncs.targets, syncs.discover):
        add_operation(routes, parts, operation)
    add_operation(routes, parts, syncs.sync_target, status_code=202)
    add_operation(routes, parts, index.locks, tags=["locks"])
    add_operation(routes, parts, index.release, tags=["locks"])
    return routes

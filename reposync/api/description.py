"""`GET /openapi.json`: the OpenAPI document of the application, which is public."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response

from reposync.api.etags import conditional_body
from reposync.api.routing import Router
from reposync.config.fields import VARIABLE
from reposync.errors import error_classes


class Description:
    """The document, made once and in a thread: that takes half a second. `root`: the root path."""

    def __init__(self, make: Callable[[], dict[str, Any]], root: str) -> None:
        self._make, self._root = make, root
        self._one_at_a_time = asyncio.Lock()
        self._document: Mapping[str, Any] = {}
        self._json = b""

    async def document(self) -> Mapping[str, Any]:
        async with self._one_at_a_time:
            if not self._document:
                self._document, self._json = await asyncio.to_thread(self._made)
        return self._document

    async def as_json(self) -> bytes:
        await self.document()
        return self._json

    def _made(self) -> tuple[Mapping[str, Any], bytes]:
        document = self._make()
        if self._root:
            document = {**document, "servers": [{"url": self._root}]}
        return document, json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


class DescribedApplication(FastAPI):
    """With what FastAPI cannot know in its OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            self.openapi_schema = _amended(super().openapi())
        return self.openapi_schema


def _amended(document: dict[str, Any]) -> dict[str, Any]:
    document = _without_variables(document)
    error = document["components"]["schemas"]["ErrorBody"]["properties"]
    error["code"]["enum"] = sorted({*error_classes(), *ROUTING_CODES})
    for operation in (each for methods in document["paths"].values() for each in methods.values()):
        if "304" in operation["responses"]:
            operation.setdefault("parameters", []).append(_IF_NONE_MATCH)
    return document


ROUTING_CODES = ("NOT_FOUND", "METHOD_NOT_ALLOWED")
"""Of paths without a route, and of routes without a method."""

_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "304 if the response still has this ETag.",
}


def _without_variables(part: Any) -> Any:
    """Schemas of values that are also in the registry file: `${VARIABLE}` stands for a value only there."""
    if isinstance(part, list):
        return [_without_variables(each) for each in part]
    if not isinstance(part, dict):
        return part
    others = {key: _without_variables(each) for key, each in part.items() if key != "anyOf"}
    choices = [_without_variables(each) for each in part.get("anyOf", ()) if each.get("pattern") != VARIABLE]
    if isinstance(pattern := others.get("pattern"), str):
        others["pattern"] = pattern.removesuffix(f"|{VARIABLE}")
    if len(choices) == 1:
        return {**choices[0], **others}
    return {**others, "anyOf": choices} if choices else others


def description_routes(description: Description) -> APIRouter:
    routes = Router(include_in_schema=False)

    @routes.get("/openapi.json")
    async def openapi(request: Request) -> Response:
        return conditional_body(request, await description.as_json(), "application/json")

    return routes

"""`GET /openapi.json`: the OpenAPI document of the application, which is public."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from reposync.api.etags import conditional_body
from reposync.api.routing import Router


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


def description_routes(description: Description) -> APIRouter:
    routes = Router(include_in_schema=False)

    @routes.get("/openapi.json")
    async def openapi(request: Request) -> Response:
        return conditional_body(request, await description.as_json(), "application/json")

    return routes

"""The OpenAPI document of the application, which is public."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI

from reposync.config.fields import VARIABLE
from reposync.errors import error_classes


class DescribedApplication(FastAPI):
    """With what FastAPI cannot know in its OpenAPI document."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._one_at_a_time = asyncio.Lock()

    async def described(self) -> dict[str, Any]:
        """The document, made once and in a thread: that takes half a second."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(self.openapi)

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
"""The codes for paths without a route, and for routes without a method."""

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

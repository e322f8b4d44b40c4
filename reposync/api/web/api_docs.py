"""`/docs`: the OpenAPI document as a page, without scripts and without anything from other servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from reposync.api.dependencies import ApiParts
from reposync.api.routing import Router
from reposync.api.web.rendering import Renderer


def api_docs(parts: ApiParts, renderer: Renderer, document: Callable[[], Mapping[str, Any]]) -> APIRouter:
    """`document`: the OpenAPI document of the application; public, as the document itself is."""
    routes = Router(include_in_schema=False)

    @routes.get("/docs")
    async def docs(request: Request) -> Response:
        principal = await parts.access.principal_or_none(request)
        paths = document()["paths"]
        operations = [
            {
                "tags": ["other"],
                "summary": "",
                **operation,
                "path": path,
                "method": method.upper(),
                "body": _body_of(operation),
            }
            for path, methods in paths.items()
            for method, operation in methods.items()
        ]
        return renderer.page(request, "api_docs.html", principal, operations=operations, type_of=_type_of)

    return routes


def _body_of(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    body: Mapping[str, Any] = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return body


def _type_of(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type_of(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    return f"list of {_type_of(schema['items'])}" if "items" in schema else str(schema.get("type", "any"))

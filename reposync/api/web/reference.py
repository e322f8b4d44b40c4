"""The page that describes the API, made from the same OpenAPI document that programs read, without anybody's script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from shlex import quote as shell_quoted
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request, Response

from reposync.api.hosts import split_host
from reposync.api.parts import ApiParts
from reposync.api.routing import Router
from reposync.api.web.renderer import Renderer

Document = Mapping[str, Any]

_DEEPEST = 6
_LONGEST_LINE_CHARS = 100
_EXAMPLES: Mapping[str, Any] = {"string": "...", "integer": 1, "number": 1.5, "boolean": False, "null": None}
_RUN_ID = "0198b7c2-5f3e-4c1a-9d2b-3f6a1c5e8d70"
# For parameters of paths that give none themselves.
_IN_PATHS = {"run_id": _RUN_ID, "repository": "platform/payments-api", "name": "platform/payments-api"}


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, or a key of a body. `kind`: its type in words."""

    name: str
    place: str
    kind: str
    required: bool
    default: str | None
    description: str


@dataclass(frozen=True, slots=True)
class Answer:
    status: str
    description: str
    codes: tuple[tuple[str, str], ...]
    """Code of an error, and what it means."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`path` with its parameters in braces; `example_path` with values; `bodies`: title and JSON of each example."""

    anchor: str
    method: str
    path: str
    summary: str
    description: str
    parameters: tuple[Field, ...]
    body: tuple[Field, ...]
    bodies: tuple[tuple[str, str], ...]
    answers: tuple[Answer, ...]
    example: str | None
    example_path: str
    needs_token: bool

    def curl(self, base: str) -> str:
        """A command that works as it stands, but for the names in it."""
        parts = ["curl"] if self.method == "GET" else ["curl", "-X", self.method]
        words = [" ".join(parts)]
        if self.needs_token:
            words.append('-H "Authorization: Bearer $TOKEN"')
        if self.bodies and self.body:
            compact = json.dumps(json.loads(self.bodies[0][1]))
            words.append(f"--json {shell_quoted(compact)}")
        words.append(shell_quoted(base + self.example_path))
        line = " ".join(words)
        return line if len(line) <= _LONGEST_LINE_CHARS else " \\\n  ".join(words)


@dataclass(frozen=True, slots=True)
class Reference:
    """`everywhere`: codes that every route of the API may answer, with status and meaning, told once."""

    resources: tuple[tuple[str, tuple[Operation, ...]], ...]
    everywhere: tuple[tuple[str, str, str], ...]


def reference_page(parts: ApiParts, renderer: Renderer, document: Callable[[], Document]) -> APIRouter:
    """`document`: the OpenAPI document of the application that this page is a part of; as open as that is."""
    routes = Router(include_in_schema=False)

    @cache
    def reference() -> Reference:
        return described(document())

    @routes.get("/docs")
    async def docs(request: Request) -> Response:
        visitor = await parts.access.known(request)
        return renderer.page(request, "reference.html", visitor, reference=reference(), base=_base(request, renderer))

    return routes


def described(document: Document) -> Reference:
    """By resource, in the order in which the document has them. What ends in `/healthz` and the like comes last."""
    found: dict[str, list[Operation]] = {}
    common = _common_codes(document)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            found.setdefault(tag, []).append(_operation(document, path, method, operation, common))
    probes = found.pop("probes", None)
    ordered = found | ({"probes": probes} if probes else {})
    everywhere = sorted((status, code, words) for code, (status, words) in common.items())
    return Reference(tuple((tag, tuple(each)) for tag, each in ordered.items()), tuple(everywhere))


def _base(request: Request, renderer: Renderer) -> str:
    """As the reader's browser calls this server; a Host header that is none gets no further."""
    host = request.headers.get("host", "")
    return f"{request.url.scheme}://{host if split_host(host) else 'localhost:8080'}{renderer.root}"


def _operation(
    document: Document, path: str, method: str, operation: Document, common: Mapping[str, object]
) -> Operation:
    parameters = operation.get("parameters", [])
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    answers = [_answer(status, each, common) for status, each in sorted(operation["responses"].items())]
    return Operation(
        anchor=operation["operationId"].replace("_", "-"),
        method=method.upper(),
        path=path,
        summary=operation.get("summary", ""),
        description=operation.get("description", ""),
        parameters=tuple(_field(document, each["name"], each["in"], each) for each in parameters),
        body=tuple(_body_fields(document, content)),
        bodies=tuple(_bodies(document, content)),
        answers=tuple(each for each in answers if each.codes or each.status < "4"),
        example=_success(document, operation["responses"]),
        example_path=_example_path(path, parameters),
        needs_token=bool(operation.get("security")),
    )


def _example_path(path: str, parameters: list[Document]) -> str:
    query: dict[str, str] = {}
    for each in parameters:
        given = each["schema"].get("examples") or [None]
        if each["in"] == "path":
            value = given[0] or _IN_PATHS.get(each["name"], "...")
            path = path.replace(f"{{{each['name']}}}", quote(str(value)))
        elif each["in"] == "query" and each.get("required"):
            query[each["name"]] = str(given[0] or "...")
    return f"{path}?{urlencode(query)}" if query else path


def _field(document: Document, name: str, place: str, said: Document, *, required: bool | None = None) -> Field:
    schema = said.get("schema", said)
    default = schema.get("default")
    return Field(
        name=name,
        place=place,
        kind=_kind(document, schema),
        required=bool(said.get("required")) if required is None else required,
        default=None if default in (None, "", []) else json.dumps(default),
        description=said.get("description") or schema.get("description", ""),
    )


def _body_fields(document: Document, content: Document) -> Iterator[Field]:
    schema = _resolved(document, _without_null(content.get("schema", {})))
    for name, each in schema.get("properties", {}).items():
        yield _field(document, name, "body", each, required=name in schema.get("required", ()))


def _bodies(document: Document, content: Document) -> Iterator[tuple[str, str]]:
    if "examples" in content:
        for title, each in content["examples"].items():
            yield title, _json(each["value"])
        return
    schema = _resolved(document, _without_null(content.get("schema", {})))
    for each in schema.get("examples", []):
        if each:
            yield "for example", _json(each)


def _answer(status: str, said: Document, common: Mapping[str, object]) -> Answer:
    codes = tuple((code, words) for code, words in _codes(said) if code not in common)
    words = said.get("description", "")
    if words == "Successful Response":
        words = HTTPStatus(int(status)).phrase
    return Answer(status, words, codes)


def _codes(response: Document) -> Iterator[tuple[str, str]]:
    for code, each in response.get("content", {}).get("application/json", {}).get("examples", {}).items():
        said = each.get("value", {})
        if isinstance(said, dict) and "error" in said:
            yield code, said["error"]["message"]


def _common_codes(document: Document) -> dict[str, tuple[str, str]]:
    """Those that at least all but one of the routes of the API have: webhooks have a secret in place of a token."""
    counts: dict[str, int] = {}
    told: dict[str, tuple[str, str]] = {}
    operations = [
        operation
        for path, methods in document["paths"].items()
        if path.startswith("/api/")
        for operation in methods.values()
    ]
    for operation in operations:
        for status, response in operation["responses"].items():
            for code, words in _codes(response):
                counts[code] = counts.get(code, 0) + 1
                told[code] = (status, words)
    return {code: told[code] for code, count in counts.items() if count >= len(operations) - 1}


def _success(document: Document, responses: Document) -> str | None:
    for status in ("200", "201", "202"):
        for kind, content in responses.get(status, {}).get("content", {}).items():
            if kind == "application/json":
                return _json(_example(document, content.get("schema", {})))
            if isinstance(content.get("example"), str):
                return str(content["example"])
    return None


def _example(document: Document, schema: Document, depth: int = 0) -> Any:
    schema = _resolved(document, _without_null(schema))
    if "example" in schema:
        return schema["example"]
    if schema.get("examples"):
        return schema["examples"][0]
    if "const" in schema or "default" in schema:
        return schema.get("const", schema.get("default"))
    if "enum" in schema:
        return schema["enum"][0]
    if depth >= _DEEPEST:
        return None
    if "properties" in schema:
        return {key: _example(document, each, depth + 1) for key, each in schema["properties"].items()}
    if schema.get("type") == "array":
        return [_example(document, schema.get("items", {}), depth + 1)]
    if schema.get("type") == "object":
        return {}
    if schema.get("format") == "date-time":
        return "2026-03-01T12:00:00Z"
    return _EXAMPLES.get(str(schema.get("type")))


def _kind(document: Document, schema: Document) -> str:
    schema = _resolved(document, _without_null(schema))
    if "anyOf" in schema:
        return " or ".join(_kind(document, each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_kind(document, schema.get('items', {}))}"
    bounds = [f"{schema[key]:,}" for key in ("minimum", "maximum") if key in schema]
    if len(bounds) == 2:
        return f"{kind}, {bounds[0]} to {bounds[1]}"
    return "time" if schema.get("format") == "date-time" else kind


def _without_null(schema: Document) -> Document:
    """Where null is the other alternative, what else it may be."""
    others = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    return (
        {**others[0], **{key: schema[key] for key in ("default", "examples") if schema.get(key)}}
        if len(others) == 1
        else schema
    )


def _resolved(document: Document, schema: Document) -> Document:
    if "$ref" not in schema:
        return schema
    named: Document = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return {**named, **{key: value for key, value in schema.items() if key != "$ref"}}


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)

"""Qdrant's REST contract as an ASGI application over the embedded engine.

Handlers run on the event loop itself: every call into the engine holds the GIL, so threads would gain nothing, and in
one thread the order of writes is the order in which they arrived. No web framework: its import would be a third of
the engine's start.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import nullcontext
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson
import qdrant_edge as edge

from reposync.vectors.engine import operations, queries
from reposync.vectors.engine.collections import Collection, Collections
from reposync.vectors.engine.failures import is_damage, is_out_of_memory, is_panic
from reposync.vectors.engine.files import limits
from reposync.vectors.engine.filters import read_id, read_ids
from reposync.vectors.engine.flushing import GroupFlush
from reposync.vectors.engine.operations import Change
from reposync.vectors.engine.points import answer_id, record, scored
from reposync.vectors.engine.refusal import Json, Refusal, bad, edge_call, fields, items, need, not_found, unsupported

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 1024 * 1024  # a Qdrant server's own limit
QDRANT_VERSION = "1.19.0"  # the contract that is spoken here

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Who only asks how it is does not use it: nobody else may, and then it ends.
_PROBE = "/readyz"
# What the engine calls a mistake of the caller. Everything else is its own failure.
_CALLERS_FAULT = re.compile(
    "dimension|Not existing vector|Wrong usage|Validation failed|index for faceting|Wrong input|JSON path"
)


class EngineApp:
    """One application for one folder of collections."""

    def __init__(self, collections: Collections, *, server: dict[str, Json] | None = None) -> None:
        self._collections = collections
        self._server = server or {}
        self._flush = GroupFlush()
        self.active = 0
        self.last_used = time.monotonic()
        self.on_end: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.active += 1
        try:
            status, content = await self._answer(scope, receive)
        finally:
            self.active -= 1
            if scope["path"] != _PROBE:
                self.last_used = time.monotonic()
        kind = b"text/plain" if isinstance(content, str) else b"application/json"
        body = content.encode() if isinstance(content, str) else orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, Json]:
        started = time.perf_counter()
        try:
            result = await self._dispatch(scope, receive)
        except Refusal as refusal:
            return refusal.status, _error(refusal.message, started)
        except Exception as error:
            if is_out_of_memory(error):
                # What was applied by halves is in memory alone. The next request starts another process, which may
                # have the limits of another command.
                log.critical("%s %s failed: out of memory: %s", scope["method"], scope["path"], error)
                self.on_end()
                return 500, _error(f"Service internal error: out of memory{_allowed()}: {error}", started)
            if _CALLERS_FAULT.search(str(error)):
                return 400, _error(f"Wrong input: {error}", started)
            log.exception("%s %s failed", scope["method"], scope["path"])
            if type(error) is Exception and is_damage(error):
                self._doubt(scope)
            return 500, _error(f"Service internal error: {error}", started)
        except BaseException as panic:
            if not is_panic(panic):
                raise
            # The engine's memory can no longer be trusted; its log can. The next request starts another process.
            log.critical("the engine panicked: %s", panic)
            self._doubt(scope)
            return 500, _error(f"Service internal error: {panic}", started)
        if isinstance(result, Plain):
            return 200, result.content
        return 200, {"result": result, "status": "ok", "time": time.perf_counter() - started}

    def _doubt(self, scope: Scope) -> None:
        """The next engine, which starts with the next request, looks through the collection that was asked."""
        self._collections.doubt(_target(scope)[2])
        self.on_end()

    async def _dispatch(self, scope: Scope, receive: Receive) -> Json:
        segments, route, name = _target(scope)
        method = scope["method"]
        change = _CHANGES.get((method, route))
        with self._flush.arriving() if change else nullcontext():
            body = await _body(receive)
            request = _json(body) if body else {}
            del body
            if change:
                collection = self._collections.get(name)
                results = [self._apply(collection, each) for each in change(request, collection.schema)]
        if change:
            return await self._applied(collection, results, scope, batch=route.endswith("batch"))
        if (method, route) in _READS:
            return _READS[method, route](self._collections.get(name), request)
        return self._manage(method, route, name, segments, request)

    def _apply(self, collection: Collection, changes: list[Change]) -> int:
        for change in changes:
            collection.apply(change)
        return collection.operations

    async def _applied(self, collection: Collection, results: list[int], scope: Scope, *, batch: bool) -> Json:
        wait = parse_qs(scope["query_string"].decode("ascii")).get("wait") == ["true"]
        if wait:
            await self._flush.durable(collection)
        status = "completed" if wait else "acknowledged"
        answers = [{"operation_id": number, "status": status} for number in results]
        return answers if batch else answers[0]

    def _manage(self, method: str, route: str, name: str, segments: list[str], request: Json) -> Json:
        collections = self._collections
        match (method, route):
            case ("GET", ""):
                return Plain({"title": "reposync embedded engine", "version": QDRANT_VERSION})
            case ("GET", "healthz" | "livez" | "readyz"):
                return Plain(f"{route} check passed")
            case ("GET", "engine"):
                return self._server
            case ("POST", "engine/end"):
                self.on_end()
                return True
            case ("GET", "collections"):
                return {"collections": [{"name": each} for each in collections.names()]}
            case ("GET", "aliases"):
                return {"aliases": collections.aliases()}
            case ("POST", "collections/aliases"):
                collections.change_aliases(request)
                return True
            case ("GET", "collections/*"):
                return collections.describe(name)
            case ("GET", "collections/*/exists"):
                return {"exists": collections.exists(name)}
            case ("GET", "collections/*/aliases"):
                return {"aliases": collections.aliases(collections.get(name).name)}
            case ("PUT", "collections/*"):
                collections.create(name, request)
                return True
            case ("PATCH", "collections/*"):
                collections.update(name, request)
                return True
            case ("DELETE", "collections/*"):
                return collections.delete(name)
            case ("PUT", "collections/*/index"):
                collections.create_index(name, request)
                return {"operation_id": collections.get(name).operations, "status": "completed"}
        if method == "DELETE" and len(segments) == 4 and segments[2] == "index":
            collections.delete_index(name, unquote(segments[3]))
            return {"operation_id": collections.get(name).operations, "status": "completed"}
        if method == "GET" and len(segments) == 4 and segments[2] == "points":
            return _one_point(collections.get(name), unquote(segments[3]))
        raise unsupported(f"{method} /{'/'.join(segments)}")


def _target(scope: Scope) -> tuple[list[str], str, str]:
    """The segments of the path, the route and the collection that it names ("": none)."""
    # The raw path: a collection's name may hold an escaped slash.
    segments = [each for each in scope["raw_path"].decode("ascii").split("/") if each]
    if len(segments) > 1 and segments[0] == "collections" and segments[1] != "aliases":
        return segments, "/".join(["collections", "*", *segments[2:]]), unquote(segments[1])
    return segments, "/".join(segments), ""


class Plain:
    """An answer without Qdrant's envelope."""

    def __init__(self, content: Json) -> None:
        self.content = content


def _error(message: str, started: float) -> Json:
    return {"status": {"error": message}, "time": time.perf_counter() - started}


async def _body(receive: Receive) -> bytes:
    """Raises Refusal (413) above the limit; the rest is read then, so that the caller gets to see the answer."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "the request was cut short")
        size += len(message.get("body", b""))
        if size > MAX_BODY_BYTES:
            chunks.clear()
        else:
            chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    if size > MAX_BODY_BYTES:
        raise Refusal(
            413, f"Payload error: JSON payload ({size} bytes) is larger than allowed (limit: {MAX_BODY_BYTES} bytes)."
        )
    return b"".join(chunks)


def _allowed() -> str:
    allowed = limits()["AS"]
    return "" if allowed is None else f" (`ulimit -v` allows the engine {allowed // 1024:,} kB)"


def _json(body: bytes) -> Json:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if is_out_of_memory(error):
            raise MemoryError(error.msg) from error
        raise Refusal(400, f"Format error in JSON body: {error}") from error


def _single(read: Callable[[Json, Any], list[Change]]) -> Callable[[Json, Any], list[list[Change]]]:
    return lambda request, schema: [read(request, schema)]


_CHANGES: dict[tuple[str, str], Callable[[Json, Any], list[list[Change]]]] = {
    ("PUT", "collections/*/points"): _single(operations.upsert),
    ("POST", "collections/*/points/delete"): _single(operations.delete),
    ("POST", "collections/*/points/payload"): _single(operations.set_payload),
    ("PUT", "collections/*/points/payload"): _single(operations.overwrite_payload),
    ("POST", "collections/*/points/payload/delete"): _single(operations.delete_payload),
    ("POST", "collections/*/points/payload/clear"): _single(operations.clear_payload),
    ("PUT", "collections/*/points/vectors"): _single(operations.update_vectors),
    ("POST", "collections/*/points/vectors/delete"): _single(operations.delete_vectors),
    ("POST", "collections/*/points/batch"): operations.batch,
}


def _retrieve(collection: Collection, request: Json) -> Json:
    present = fields(request, "points", ("ids", "with_payload", "with_vector"), beyond=("shard_key",))
    found = edge_call(
        collection.shard.retrieve,
        list(dict.fromkeys(read_ids(need(present, "ids", "points"), "ids"))),
        queries.payload_selector(present.get("with_payload", True)),
        queries.vector_selector(present.get("with_vector", False), collection.schema),
    )
    return [record(each) for each in found]


def _one_point(collection: Collection, point: str) -> Json:
    found = edge_call(collection.shard.retrieve, [read_id(int(point) if point.isdecimal() else point)], True, True)
    if not found:
        raise not_found(f"Point with id {point} does not exists!")
    return record(found[0])


def _scroll(collection: Collection, request: Json) -> Json:
    found, offset = collection.shard.scroll(queries.read_scroll(request, collection.schema))
    return {
        "points": [record(each) for each in found],
        "next_page_offset": None if offset is None else answer_id(offset),
    }


def _count(collection: Collection, request: Json) -> Json:
    return {"count": collection.shard.count(queries.read_count(request))}


def _facet(collection: Collection, request: Json) -> Json:
    found = collection.shard.facet(queries.read_facet(request))
    return {"hits": [{"value": each.value, "count": each.count} for each in found.hits]}


def _query(collection: Collection, request: Json) -> Json:
    found = collection.shard.query(queries.read_query(request, collection.schema))
    return {"points": [scored(each) for each in found]}


def _query_batch(collection: Collection, request: Json) -> Json:
    searches = need(fields(request, "query batch", ("searches",)), "searches", "query batch")
    asked = items(searches, "searches", lambda one: queries.read_query(one, collection.schema))
    if not asked:
        raise bad("searches must not be empty")
    found = collection.shard.query_batch(edge.QueryBatchRequest(asked))
    return [{"points": [scored(each) for each in points]} for points in found]


_READS: dict[tuple[str, str], Callable[[Collection, Json], Json]] = {
    ("POST", "collections/*/points"): _retrieve,
    ("POST", "collections/*/points/scroll"): _scroll,
    ("POST", "collections/*/points/count"): _count,
    ("POST", "collections/*/facet"): _facet,
    ("POST", "collections/*/points/query"): _query,
    ("POST", "collections/*/points/query/batch"): _query_batch,
}

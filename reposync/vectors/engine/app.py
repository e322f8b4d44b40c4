"""The part of Qdrant's REST contract that reposync uses, as an ASGI application over the embedded engine.

Handlers run on the event loop itself: every call into the engine holds the GIL, so threads would gain nothing, and in
one thread the order of writes is the order in which they arrived. No web framework: its import would be a third of
the engine's start.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson
import qdrant_edge as edge

from reposync.vectors.engine import changes, queries
from reposync.vectors.engine.changes import Change
from reposync.vectors.engine.collection_schema import Schema
from reposync.vectors.engine.collections import Collection, Collections
from reposync.vectors.engine.damage import is_damage, is_out_of_memory, is_panic
from reposync.vectors.engine.files import limits
from reposync.vectors.engine.validation import Json, Refusal, unsupported

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 1024 * 1024  # a Qdrant server's own limit
QDRANT_VERSION = "1.19.0"  # of the contract
# A flush takes 16 ms for its fsyncs: the writes of so long share one.
_FLUSH_DELAY_SECONDS = 0.005

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Does not count as use: an engine that only probes ask may end.
_PROBE = "/readyz"
# The engine's messages for mistakes of the client. Everything else is a failure of its own.
_CLIENT_ERROR = re.compile(
    "dimension|Not existing vector|Wrong usage|Validation failed|index for faceting|Wrong input|JSON path"
)


class EngineApp:
    """One application for one folder of collections."""

    def __init__(self, collections: Collections, *, server: dict[str, Json] | None = None) -> None:
        self._collections = collections
        self._server = server or {}
        self._flushes: dict[Collection, asyncio.Task[None]] = {}
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
                # A half-applied change is only in memory. The next request starts a new process.
                log.critical("%s %s failed: out of memory: %s", scope["method"], scope["path"], error)
                self.on_end()
                return 500, _error(f"Service internal error: out of memory{_allowed()}: {error}", started)
            if _CLIENT_ERROR.search(str(error)):
                return 400, _error(f"Wrong input: {error}", started)
            log.exception("%s %s failed", scope["method"], scope["path"])
            if type(error) is Exception and is_damage(error):
                self._doubt(scope)
            return 500, _error(f"Service internal error: {error}", started)
        except BaseException as panic:
            if not is_panic(panic):
                raise
            # The engine's memory can no longer be trusted; its log can. The next request starts a new process.
            log.critical("the engine panicked: %s", panic)
            self._doubt(scope)
            return 500, _error(f"Service internal error: {panic}", started)
        if isinstance(result, Plain):
            return 200, result.content
        return 200, {"result": result, "status": "ok", "time": time.perf_counter() - started}

    def _doubt(self, scope: Scope) -> None:
        """The next engine, which the next request starts, checks this collection."""
        self._collections.doubt(_target(scope)[1])
        self.on_end()

    async def _dispatch(self, scope: Scope, receive: Receive) -> Json:
        route, name = _target(scope)
        method = scope["method"]
        change = _CHANGES.get((method, route))
        body = await _body(receive)
        request = _json(body) if body else {}
        del body
        if change:
            collection = self._collections.get(name)
            results = [self._apply(collection, each) for each in change(request, collection.schema)]
            return await self._applied(collection, results, scope, batch=route.endswith("batch"))
        if (method, route) in _READS:
            collection = self._collections.get(name)
            return _READS[method, route](request, collection.shard, collection.schema)
        return self._manage(method, route, name, request)

    def _apply(self, collection: Collection, changes: list[Change]) -> int:
        for change in changes:
            collection.apply(change)
        return collection.operations

    async def _applied(self, collection: Collection, results: list[int], scope: Scope, *, batch: bool) -> Json:
        wait = parse_qs(scope["query_string"].decode("ascii")).get("wait") == ["true"]
        if wait:
            await self._durable(collection)
        status = "completed" if wait else "acknowledged"
        answers = [{"operation_id": number, "status": status} for number in results]
        return answers if batch else answers[0]

    async def _durable(self, collection: Collection) -> None:
        """Returns when everything applied to the collection so far survives a power cut. Raises Refusal if the flush
        fails."""
        if collection not in self._flushes:
            self._flushes[collection] = asyncio.create_task(self._flush(collection))
        await asyncio.shield(self._flushes[collection])

    async def _flush(self, collection: Collection) -> None:
        await asyncio.sleep(_FLUSH_DELAY_SECONDS)
        del self._flushes[collection]
        try:
            collection.flush()
        except Exception as error:
            raise Refusal(500, f"Service internal error: flush failed: {error}") from error

    def _manage(self, method: str, route: str, name: str, request: Json) -> Json:
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
            case ("POST", "collections/aliases"):
                collections.change_aliases(request)
                return True
            case ("GET", "collections/*"):
                return collections.describe(name)
            case ("GET", "collections/*/exists"):
                return {"exists": collections.exists(name)}
            case ("PUT", "collections/*"):
                collections.create(name, request)
                return True
            case ("DELETE", "collections/*"):
                return collections.delete(name)
            case ("PUT", "collections/*/index"):
                collections.create_index(name, request)
                return {"operation_id": collections.get(name).operations, "status": "completed"}
        raise unsupported(f"{method} /{route}")


def _target(scope: Scope) -> tuple[str, str]:
    """The route, with `*` for the name of a collection, and that name ("": none)."""
    # The raw path: a name may hold an escaped slash.
    segments = [each for each in scope["raw_path"].decode("ascii").split("/") if each]
    if len(segments) > 1 and segments[0] == "collections" and segments[1] != "aliases":
        return "/".join(["collections", "*", *segments[2:]]), unquote(segments[1])
    return "/".join(segments), ""


class Plain:
    """An answer without Qdrant's envelope."""

    def __init__(self, content: Json) -> None:
        self.content = content


def _error(message: str, started: float) -> Json:
    return {"status": {"error": message}, "time": time.perf_counter() - started}


async def _body(receive: Receive) -> bytes:
    """Raises Refusal (413) above the limit, after reading the rest: otherwise the client would not see the answer."""
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


def _single(read: Callable[[Json, Schema], list[Change]]) -> Callable[[Json, Schema], list[list[Change]]]:
    return lambda request, schema: [read(request, schema)]


_CHANGES: dict[tuple[str, str], Callable[[Json, Schema], list[list[Change]]]] = {
    ("PUT", "collections/*/points"): _single(changes.upsert),
    ("POST", "collections/*/points/delete"): _single(changes.delete),
    ("POST", "collections/*/points/payload"): _single(changes.set_payload),
    ("POST", "collections/*/points/batch"): changes.batch,
}
_READS: dict[tuple[str, str], Callable[[Json, edge.EdgeShard, Schema], Json]] = {
    ("POST", "collections/*/points"): queries.retrieve,
    ("POST", "collections/*/points/scroll"): queries.scroll,
    ("POST", "collections/*/points/count"): queries.count,
    ("POST", "collections/*/facet"): queries.facet,
    ("POST", "collections/*/points/query"): queries.query,
}

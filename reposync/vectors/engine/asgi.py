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
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote

import orjson

from reposync.vectors.engine import requests
from reposync.vectors.engine.collections import Collections, RequestRefused, is_damage, is_out_of_memory, is_panic
from reposync.vectors.engine.requests import Collection, Json

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 1024 * 1024  # a Qdrant server's own limit
# A flush takes 16 ms for its fsyncs: the writes of so long share one.
_FLUSH_DELAY_SECONDS = 0.005

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Does not count as use: an engine that only probes ask may end.
_PROBE = "/readyz"
_WRONG_REQUEST = (TypeError, ValueError, OverflowError, KeyError, AttributeError)
# The engine's messages for mistakes of the client. Everything else is a failure of its own.
_CLIENT_ERROR = re.compile(
    "dimension|Not existing vector|Wrong usage|Validation failed|index for faceting|Wrong input|JSON path"
)
_NO_POINT = re.compile("No point with id")
_CHANGES: Mapping[tuple[str, str], Callable[..., requests.Operations]] = {
    ("PUT", "points"): requests.upsert,
    ("POST", "points/delete"): requests.delete,
    ("POST", "points/payload"): requests.set_payload,
    ("POST", "points/batch"): requests.batch,
}
_READS: Mapping[tuple[str, str], Callable[..., Json]] = {
    ("POST", "points"): requests.retrieve,
    ("POST", "points/scroll"): requests.scroll,
    ("POST", "points/count"): requests.count,
    ("POST", "facet"): requests.facet,
    ("POST", "points/query"): requests.query,
    ("POST", "points/query/batch"): requests.query_batch,
}


class EngineApp:
    """One application for one folder of collections. `server` describes the process."""

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
        started = time.perf_counter()
        self.active += 1
        try:
            status, content = await self._answer(scope, receive)
        finally:
            self.active -= 1
            if scope["path"] != _PROBE:
                self.last_used = time.monotonic()
        kind = "result" if status == 200 else "status"
        envelope = {"status": "ok", kind: content, "time": time.perf_counter() - started}
        body = orjson.dumps(envelope, option=orjson.OPT_NON_STR_KEYS)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, Json]:
        """Status, and the result or what an answer has for an error."""
        name, route = _target(scope)
        try:
            return 200, await self._dispatch(scope, receive, name, route)
        except RequestRefused as refusal:
            return refusal.status, {"error": str(refusal)}
        except BaseException as error:  # the engine raises bare Exception, and panics
            if not (isinstance(error, Exception) or is_panic(error)):
                raise
            if is_out_of_memory(error):
                # A half-applied change is only in memory. The next request starts a new process.
                self.on_end()
            elif _NO_POINT.search(str(error)):
                return 404, {"error": f"Not found: {error}"}
            elif isinstance(error, _WRONG_REQUEST) or _CLIENT_ERROR.search(str(error)):
                return 400, {"error": f"Wrong input: {str(error).partition(chr(10))[0]}"}
            elif is_panic(error) or (type(error) is Exception and is_damage(error)):
                # The engine's memory can no longer be trusted; its log can. The next engine checks the collection.
                self._collections.doubt(name)
                self.on_end()
            log.critical("%s %s failed", scope["method"], scope["path"], exc_info=error)
            return 500, {"error": f"Service internal error: {error}"}

    async def _dispatch(self, scope: Scope, receive: Receive, name: str, route: str) -> Json:
        body = await _body(receive)
        request = requests.given(orjson.loads(body)) if body else {}
        del body
        key = (scope["method"], route)
        if name and (read := _READS.get(key)):
            return read(self._collections.get(name), **request)
        if not name or (change := _CHANGES.get(key)) is None:
            return self._manage(scope["method"], name, route, request)
        collection = self._collections.get(name)
        numbers = [collection.apply(each) for each in change(collection.schema, **request)]
        wait = b"wait=true" in scope["query_string"]
        if wait:
            await self._durable(collection)
        answers = [{"operation_id": each, "status": "completed" if wait else "acknowledged"} for each in numbers]
        return answers if route == "points/batch" else answers[0]

    async def _durable(self, collection: Collection) -> None:
        """Returns when everything applied to the collection so far survives a power cut. Raises RequestRefused if the
        flush fails."""
        if collection not in self._flushes:
            self._flushes[collection] = asyncio.create_task(self._flush(collection))
        await asyncio.shield(self._flushes[collection])

    async def _flush(self, collection: Collection) -> None:
        await asyncio.sleep(_FLUSH_DELAY_SECONDS)
        del self._flushes[collection]
        try:
            collection.shard.flush()
        except Exception as error:
            raise RequestRefused(500, f"Service internal error: flush failed: {error}") from error

    def _manage(self, method: str, name: str, route: str, request: dict[str, Json]) -> Json:
        collections = self._collections
        match (method, name, route):
            case ("GET", "", "readyz"):
                return True
            case ("GET", "", "engine"):
                return self._server
            case ("POST", "", "engine/end"):
                self.on_end()
                return True
            case ("GET", "", "collections"):
                return {"collections": [{"name": each} for each in collections.names()]}
            case ("POST", "", "collections/aliases"):
                return collections.change_aliases(**request)
            case ("GET", _, "exists") if name:
                return {"exists": collections.exists(name)}
            case ("PUT", _, "index") if name:
                number = collections.get(name).apply(requests.create_index(**request))
                # Not flushed, which would take most of the time of a new collection: an index that a power cut removes
                # is missing in the description, and its user makes it again.
                return {"operation_id": number, "status": "completed"}
            case ("GET", _, "") if name:
                return collections.describe(name)
            case ("PUT", _, "") if name:
                return collections.create(name, request)
            case ("DELETE", _, "") if name:
                return collections.delete(name)
        raise RequestRefused(501, f"Not supported by the embedded engine: {method} {name} /{route}.")


def _target(scope: Scope) -> tuple[str, str]:
    """The name of a collection ("": none), and the route below it."""
    # The raw path: a name may hold an escaped slash.
    segments = [each for each in scope["raw_path"].decode("ascii").split("/") if each]
    if len(segments) > 1 and segments[0] == "collections" and segments[1] != "aliases":
        return unquote(segments[1]), "/".join(segments[2:])
    return "", "/".join(segments)


async def _body(receive: Receive) -> bytearray:
    """Raises RequestRefused (413) above the limit."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestRefused(400, "the request was cut short")
        more = message.get("more_body", False)
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise RequestRefused(413, f"Payload error: JSON payload is larger than allowed ({MAX_BODY_BYTES} bytes).")
    return body

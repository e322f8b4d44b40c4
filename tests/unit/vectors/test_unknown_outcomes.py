"""Writes whose outcome is unknown, and nodes that fail: what Qdrant is asked next."""

import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from reposync.errors import IndexUnavailable, IndexUnsupported, VectorIndexError
from reposync.vectors.index import QdrantIndex, open_index
from reposync.vectors.port import FileWrite, IndexSettings, WriteScope

SCOPE = WriteScope("7", "r", "c", 1)
APPLIED = {"operation_id": 1, "status": "completed"}


def answer(result: Any) -> httpx.Response:
    return httpx.Response(200, json={"result": result, "status": "ok", "time": 0})


def refusal(status: int, message: str) -> httpx.Response:
    return httpx.Response(status, json={"status": {"error": message}, "time": 0})


@dataclass
class Server:
    """Its writes meet `outcomes`, one after the other; then they are applied."""

    outcomes: list[httpx.Response | Exception] = field(default_factory=list)
    writes: list[httpx.Request] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    version: str = "1.18.3"
    strict: dict[str, Any] = field(default_factory=dict)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.hosts.append(request.url.host)
        found = self._answer(request)
        return httpx.Response(found.status_code, headers=found.headers, stream=httpx.ByteStream(found.content))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/":
            return httpx.Response(200, json={"title": "qdrant", "version": self.version})
        if request.method == "GET":
            return answer({"config": {"params": {}, "strict_mode_config": self.strict}, "payload_schema": {}})
        self.writes.append(request)
        outcome = self.outcomes.pop(0) if self.outcomes else answer(APPLIED)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


OpenOn = Callable[[Server], QdrantIndex]


@pytest.fixture
async def index_on() -> AsyncGenerator[OpenOn, None]:
    url = "https://node-1.example, https://node-2.example:443"
    settings = IndexSettings(
        collection="code", state_dir=Path("unused"), url=url, attempts=3, longest_wait_seconds=0.01
    )
    async with contextlib.AsyncExitStack() as stack:

        def open_on(server: Server) -> QdrantIndex:
            index = open_index(settings, transport=httpx.MockTransport(server))
            stack.push_async_callback(index.close)
            return index

        yield open_on


@pytest.mark.parametrize(
    "outcome",
    [
        answer({"operation_id": 1, "status": "wait_timeout"}),
        answer({"operation_id": 1, "status": "acknowledged"}),
        answer({"operation_id": 1}),
        refusal(500, "Update operation timed out"),
        refusal(400, 'Index required but not found for "metadata.epoch" of one of the types: [integer]'),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("cut short"),
        httpx.ConnectError("refused"),
    ],
    ids=str,
)
async def test_a_write_that_is_not_known_to_be_applied_is_sent_again(
    index_on: OpenOn, outcome: httpx.Response | Exception
) -> None:
    server = Server([outcome])
    await index_on(server).remove_points(SCOPE, ["1"])
    assert len(server.writes) == 2
    assert server.writes[0].content == server.writes[1].content
    assert all(each.url.params["wait"] == "true" for each in server.writes)
    assert all(int(each.url.params["timeout"]) < 30 for each in server.writes)


async def test_a_write_that_is_never_applied_fails_in_the_end(index_on: OpenOn) -> None:
    server = Server([refusal(500, "no") for _ in range(9)])
    with pytest.raises(IndexUnavailable, match="the server answered 500: no"):
        await index_on(server).replace_files(SCOPE, [FileWrite("a.py", None, "b", [], True)])


async def test_after_a_failure_the_next_node_is_asked_and_stays(index_on: OpenOn) -> None:
    server = Server([httpx.ConnectError("refused")])
    index = index_on(server)
    await index.remove_points(SCOPE, ["1"])
    await index.remove_points(SCOPE, ["1"])
    node = "node-{}.example".format
    assert server.hosts == [node(1), node(1), node(2), node(2)], "the first node, then only the second"


@pytest.mark.parametrize(
    ("outcome", "message", "remedy"),
    [
        (refusal(403, "Global manage access is required"), "refuses the API key", "QDRANT_API_KEY"),
        (refusal(507, ""), "has no space left", "more disk"),
        (refusal(500, "No space left on device: WAL buffer size exceeds"), "has no space left", "more disk"),
        (refusal(400, 'Limit exceeded 9 > 5 for "limit". Help: Reduce it'), "Limit exceeded", "strict_mode_config"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_what_a_person_has_to_change_is_said_at_once(
    index_on: OpenOn, outcome: httpx.Response, message: str, remedy: str
) -> None:
    server = Server([outcome])
    with pytest.raises(VectorIndexError, match=message) as raised:
        await index_on(server).remove_points(SCOPE, ["1"])
    assert remedy in str(raised.value.remedy)
    assert not raised.value.retryable
    assert len(server.writes) == 1


@pytest.mark.parametrize(("version", "is_old"), [("1.15.5", True), ("1.16.0", False), ("1.19.0-dev", False)])
async def test_a_server_that_is_too_old_is_refused(index_on: OpenOn, version: str, is_old: bool) -> None:
    index = index_on(Server(version=version))
    with pytest.raises(IndexUnsupported, match=r"needs 1\.16 or later") if is_old else contextlib.nullcontext():
        await index.ping()


async def test_requests_stay_within_the_limits_of_strict_mode(index_on: OpenOn) -> None:
    strict = {"enabled": True, "condition_max_size": 2, "max_timeout": 9, "max_query_limit": 100}
    server = Server(strict=strict)
    await index_on(server).remove_points(SCOPE, list("12345"))
    assert len(server.writes) == 3
    assert {each.url.params["timeout"] for each in server.writes} == {"9"}


async def test_a_limit_that_no_request_can_keep_is_named(index_on: OpenOn) -> None:
    server = Server(strict={"enabled": True, "filter_max_conditions": 2})
    with pytest.raises(IndexUnsupported, match="filter_max_conditions: 2, and reposync needs 8"):
        await index_on(server).remove_points(SCOPE, ["1"])

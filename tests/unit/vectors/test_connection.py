"""Failures of Qdrant, and writes whose outcome is unknown: what is repeated, and what a person reads."""

import asyncio
import contextlib
import dataclasses
import json
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import SecretStr

from reposync.config.sections import QdrantConfig
from reposync.errors import (
    ConfigError,
    IndexAnswerUnreadable,
    IndexUnavailable,
    IndexUnsupported,
    LeaseLost,
    VectorIndexError,
)
from reposync.vectors import connection, raw_requests
from reposync.vectors.connection import addresses
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import CollectionMissing, FileWrite, IndexSettings, WriteScope
from tests.fixtures.points import SPARSE_ALONE, WINDOWED, file

KEY = "a-secret-key"
SCOPE = WriteScope("7", "r", "c", 1)
EMPTIED = [FileWrite("a.py", None, "b", [], True)]
URL = "https://node-1.example:6333/prefix"
NODES = f"{URL}, https://node-2.example:443"


def answer(result: Any) -> httpx.Response:
    return httpx.Response(200, json={"result": result, "status": "ok", "time": 0})


def refusal(status: int, message: str = "Qdrant says so", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"status": {"error": message}, "time": 0}, headers=headers)


@dataclass
class Qdrant:
    """Describes its collection; other requests meet `outcomes`, one after the other, and then succeed. `unseen`: in so
    many descriptions after the first write it is still in the queue, and its points are counted."""

    outcomes: list[httpx.Response | Exception] = field(default_factory=list)
    version: str = "1.18.3"
    strict: dict[str, Any] = field(default_factory=dict)
    requests: list[httpx.Request] = field(default_factory=list)
    replicas: int = 1
    unseen: int | None = None

    @property
    def _has_write(self) -> bool:
        return any("wait" in each.url.params for each in self.requests)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        found = self._answer(request)
        if isinstance(found, Exception):
            raise found
        return httpx.Response(found.status_code, headers=found.headers, stream=httpx.ByteStream(found.content))

    def _answer(self, request: httpx.Request) -> httpx.Response | Exception:
        if request.url.path in ("/", "/prefix/"):
            return httpx.Response(200, json={"title": "qdrant", "version": self.version})
        if request.method == "GET":
            if self._has_write and self.unseen:
                self.unseen -= 1
            config = {"params": {"replication_factor": self.replicas}, "strict_mode_config": self.strict}
            return answer({"config": config, "payload_schema": {}, "update_queue": {"length": self.unseen or 0}})
        if self._has_write and request.url.path.endswith("/count"):
            return answer({"count": 0 if self.unseen == 0 else 3})
        self.requests.append(request)
        if self.outcomes:
            return self.outcomes.pop(0)
        if request.url.path.endswith("/count"):
            return answer({"count": 3})
        done = {"operation_id": 1, "status": "completed"}
        is_batch = request.url.path.endswith("/batch")
        return answer([done] * len(json.loads(request.content)["operations"]) if is_batch else done)


OpenOn = Callable[..., QdrantIndex]


@pytest.fixture
async def index_on(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[OpenOn, None]:
    """Opens an index on a fake server."""
    monkeypatch.setattr(raw_requests, "_QUEUE_POLL_SECONDS", 0.01)
    monkeypatch.setattr(connection, "ATTEMPTS", 3)
    monkeypatch.setattr(connection, "LONGEST_WAIT_SECONDS", 0.05)
    async with contextlib.AsyncExitStack() as stack:

        def open_on(qdrant: Qdrant, url: str = URL) -> QdrantIndex:
            config = QdrantConfig(url=url, api_key=SecretStr(KEY))
            settings = IndexSettings("code", Path("unused"), config)
            index = QdrantIndex(settings, transport=httpx.MockTransport(qdrant))
            stack.push_async_callback(index.close)
            return index

        yield open_on


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("cut short"),
        refusal(500),
        refusal(408),
        refusal(429, **{"Retry-After": "0"}),
        refusal(429, **{"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
    ],
    ids=str,
)
async def test_a_failure_that_may_pass_is_repeated(index_on: OpenOn, failure: httpx.Response | Exception) -> None:
    qdrant = Qdrant([failure, failure])
    assert await index_on(qdrant).count() == 3
    assert len(qdrant.requests) == 3


@pytest.mark.parametrize(
    "outcome",
    [
        answer({"operation_id": 1, "status": "wait_timeout"}),
        answer({"operation_id": 1, "status": "acknowledged"}),
        answer({"operation_id": 1}),
        refusal(500, "Update operation timed out"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("cut short"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("unseen", "replicas", "writes"),
    [(0, 1, 1), (3, 1, 1), (None, 1, 2), (3, 2, 2)],
    ids=["applied", "still queued", "never arrived", "maybe missed by a replica"],
)
async def test_a_write_of_unknown_outcome_is_looked_for_before_it_is_sent_again(
    index_on: OpenOn, outcome: httpx.Response | Exception, unseen: int | None, replicas: int, writes: int
) -> None:
    qdrant = Qdrant([outcome], unseen=unseen, replicas=replicas)
    await index_on(qdrant).remove_points(SCOPE, ["1"])
    assert [each.content for each in qdrant.requests] == [qdrant.requests[0].content] * writes
    assert {each.url.params["wait"] for each in qdrant.requests} == {"true"}
    assert not qdrant.unseen, "nothing is sent while it is in the queue"


@pytest.mark.parametrize(
    "outcome",
    [
        refusal(400, 'Index required but not found for "metadata.epoch" of one of the types: [integer]'),
        httpx.ConnectError("refused"),
    ],
    ids=str,
)
async def test_a_write_that_did_not_arrive_is_sent_again_and_not_looked_for(
    index_on: OpenOn, outcome: httpx.Response | Exception
) -> None:
    qdrant = Qdrant([outcome], unseen=9)
    await index_on(qdrant).remove_points(SCOPE, ["1"])
    assert (len(qdrant.requests), qdrant.unseen) == (2, 9)


async def test_a_failure_that_lasts_is_unavailable_after_some_attempts(index_on: OpenOn) -> None:
    qdrant = Qdrant([httpx.ConnectError("refused")] * 9)
    words = r"Qdrant at https://node-1\.example:6333/prefix: the request to count points failed 3 times: .*refused"
    with pytest.raises(IndexUnavailable, match=words) as raised:
        await index_on(qdrant).count()
    assert raised.value.retryable
    assert len(qdrant.requests) == 3
    with pytest.raises(IndexUnavailable, match="the server answered 500: no"):
        await index_on(Qdrant([refusal(500, "no")] * 9)).replace_files(SCOPE, EMPTIED)


async def test_after_a_failure_the_next_node_is_asked_and_stays(index_on: OpenOn) -> None:
    qdrant = Qdrant([httpx.ConnectError("refused")])
    index = index_on(qdrant, NODES)
    await index.count()
    await index.count()
    assert [each.url.host.split(".")[0] for each in qdrant.requests] == ["node-1", "node-2", "node-2"]


@pytest.mark.parametrize(
    ("outcome", "kind", "words"),
    [
        (
            refusal(400, "Wrong input: size"),
            VectorIndexError,
            r"could not count points: Wrong input: size \(HTTP 400\)",
        ),
        (refusal(401, "Invalid api-key"), VectorIndexError, "refuses the API key.*QDRANT_API_KEY.*manage access"),
        (refusal(404, "Not found: Collection `code` doesn't exist!"), CollectionMissing, "A sync makes the collection"),
        (refusal(404, "page not found"), VectorIndexError, "page not found"),
        (refusal(500, "collection `code` cannot be opened: damaged again"), VectorIndexError, "damaged again"),
        (refusal(501, "not here"), IndexUnsupported, "not here"),
        (refusal(507, ""), VectorIndexError, "has no space left.*more disk"),
        (refusal(500, "No space left on device: WAL buffer"), VectorIndexError, "has no space left.*more disk"),
        (refusal(400, 'Exceeded 9 > 5 for "limit". Help: Reduce it'), VectorIndexError, "strict_mode_config"),
        (refusal(400, '{"status": {"error": ' + "[" * 950), VectorIndexError, r"\(HTTP 400\)"),
        (httpx.Response(404, text="<html>" + "x" * 10_000), VectorIndexError, "HTTP 404"),
        (httpx.Response(200, json={"status": "ok"}), VectorIndexError, "without a result"),
        (httpx.Response(302, headers={"location": "https://elsewhere"}), VectorIndexError, "HTTP 302"),
        (httpx.Response(200, content=b"<html>"), IndexAnswerUnreadable, "an answer that is not Qdrant's"),
        (httpx.Response(200, content=b"[" * 200_000), IndexAnswerUnreadable, "an answer that is not Qdrant's"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_a_refusal_is_reported_at_once_in_qdrants_words(
    index_on: OpenOn, outcome: httpx.Response, kind: type[VectorIndexError], words: str
) -> None:
    qdrant = Qdrant([outcome])
    with pytest.raises(kind, match=words) as raised:
        await index_on(qdrant).count()
    assert raised.value.retryable is (kind in (CollectionMissing, IndexAnswerUnreadable))
    assert len(qdrant.requests) == 1
    assert len(str(raised.value)) < 1_000
    assert KEY not in str(raised.value)


async def test_a_write_can_be_cancelled_while_the_server_hangs(index_on: OpenOn) -> None:
    arrived = asyncio.Event()

    async def hangs(request: httpx.Request) -> httpx.Response:
        if request.method != "GET":
            arrived.set()
            await asyncio.Event().wait()
        return Qdrant()(request)

    writing = asyncio.create_task(index_on(hangs).replace_files(SCOPE, EMPTIED * 1_000))
    await arrived.wait()
    writing.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await writing


async def test_fewer_results_than_operations_are_no_success(index_on: OpenOn) -> None:
    with pytest.raises(VectorIndexError, match="0 of 1 writes"):
        await index_on(Qdrant([answer([])])).replace_files(SCOPE, EMPTIED)


@pytest.mark.parametrize("sent", [0, 1, 2])
async def test_the_lease_is_checked_before_every_write_also_before_a_repeated_one(index_on: OpenOn, sent: int) -> None:
    allowed = iter(range(sent))

    def check() -> None:
        if next(allowed, None) is None:
            raise LeaseLost("taken over")

    qdrant = Qdrant([refusal(429, "too many", **{"Retry-After": "0"})] * 9)
    index = index_on(qdrant)
    scope = WriteScope("7", "r", "c", 1, check)
    with pytest.raises(LeaseLost):
        await index.remove_points(scope, ["1"])
    assert len(qdrant.requests) == sent
    allowed = iter(range(sent))
    with pytest.raises(LeaseLost):
        await index.replace_files(scope, EMPTIED)
    assert len(qdrant.requests) == 2 * sent


async def test_a_request_has_the_key_asks_for_plain_answers_and_names_a_time_out(index_on: OpenOn) -> None:
    qdrant = Qdrant()
    await index_on(qdrant).count()
    (request,) = qdrant.requests
    url, _, parameters = str(request.url).partition("?")
    assert url == "https://node-1.example:6333/prefix/collections/code/points/count"
    assert parameters == "timeout=25", "the server gives up before the client does, after 30 s"
    assert (request.headers["api-key"], request.headers["accept-encoding"]) == (KEY, "identity")
    assert "authorization" not in request.headers


def test_an_unusable_ca_file_is_a_configuration_error(tmp_path: Path) -> None:
    config = QdrantConfig(url="https://qdrant.example", ca_file=tmp_path / "absent.pem")
    with pytest.raises(ConfigError, match=r"absent\.pem"):
        QdrantIndex(IndexSettings("code", tmp_path, config))


def test_a_node_without_a_port_has_qdrants(tmp_path: Path) -> None:
    config = QdrantConfig(url="https://one.example/qdrant/, http://two.example:80")
    assert addresses(IndexSettings("code", tmp_path, config)) == [
        "https://one.example:6333/qdrant",
        "http://two.example:80",
    ]


@pytest.mark.parametrize(("version", "is_old"), [("1.15.5", True), ("1.16.0", False), ("1.19.0-dev", False)])
async def test_a_server_that_is_too_old_is_refused(index_on: OpenOn, version: str, is_old: bool) -> None:
    with pytest.raises(IndexUnsupported, match=r"needs 1\.16 or later") if is_old else contextlib.nullcontext():
        await index_on(Qdrant(version=version)).ping()


async def test_requests_stay_within_the_limits_of_strict_mode(index_on: OpenOn) -> None:
    strict = {"enabled": True, "condition_max_size": 2, "max_timeout": 9, "max_query_limit": 100}
    qdrant = Qdrant(strict=strict)
    await index_on(qdrant).remove_points(SCOPE, list("12345"))
    assert [each.url.params["timeout"] for each in qdrant.requests] == ["9"] * 3
    with pytest.raises(IndexUnsupported, match="filter_max_conditions: 2, and reposync needs 8"):
        await index_on(Qdrant(strict=strict | {"filter_max_conditions": 2})).count()


@pytest.mark.parametrize(
    ("limit", "most_points", "most_operations"),
    [({}, 128, 2), ({"upsert_max_batchsize": 5}, 5, 2), ({"write_rate_limit": 40}, 10, 1)],
    ids=str,
)
async def test_writes_stay_within_the_limits_of_strict_mode(
    index_on: OpenOn, limit: dict[str, int], most_points: int, most_operations: int
) -> None:
    """A batch that meets a rate limit half-way would begin anew each time, and one above it would never be accepted."""
    qdrant = Qdrant(strict={"enabled": True, **limit})
    texts = [f"text {number}" for number in range(200)]
    await index_on(qdrant).replace_files(SCOPE, [file("a.py", *texts, spec=SPARSE_ALONE)])
    sent = [json.loads(each.content)["operations"] for each in qdrant.requests]
    points = [len(each["upsert"]["points"]) for operations in sent for each in operations if "upsert" in each]
    assert (sum(points), max(points), max(map(len, sent))) == (200, most_points, most_operations)


@pytest.mark.parametrize(
    ("limit", "key"),
    [
        ({"multivector_config": {"dense": {"max_vectors": 2}}}, "multivector_config.dense.max_vectors: 2"),
        ({"sparse_config": {"sparse": {"max_length": 1}}}, "sparse_config.sparse.max_length: 1"),
    ],
    ids=["windows", "terms"],
)
async def test_a_chunk_beyond_a_limit_of_its_vectors_names_the_file_and_the_key_before_it_is_sent(
    index_on: OpenOn, limit: dict[str, Any], key: str
) -> None:
    def chunk(windows: int) -> FileWrite:
        written = file("a.py", "one two three", spec=WINDOWED)
        dense = np.ones((windows, WINDOWED.dimension), np.float32)
        return dataclasses.replace(written, points=[dataclasses.replace(each, dense=dense) for each in written.points])

    qdrant = Qdrant(strict={"enabled": True, **limit})
    index = index_on(qdrant)
    with pytest.raises(VectorIndexError, match=re.escape(key)) as refused:
        await index.replace_files(SCOPE, [chunk(3)])
    assert "a.py" in str(refused.value) and refused.value.remedy is not None
    assert [each for each in qdrant.requests if each.method != "GET"] == []


async def test_points_are_counted_in_pages_if_exact_counts_are_refused(index_on: OpenOn) -> None:
    pages = [answer({"points": [{"id": "1"}, {"id": "2"}], "next_page_offset": "3"})]
    pages += [answer({"points": [{"id": "3"}], "next_page_offset": None})]
    qdrant = Qdrant(pages, strict={"enabled": True, "search_allow_exact": False, "max_query_limit": 2})
    assert await index_on(qdrant).count() == 3
    assert [json.loads(each.content)["limit"] for each in qdrant.requests] == [2, 2]


@pytest.mark.parametrize(
    ("replicas", "second", "counted", "consistencies"),
    [
        (2, answer({"count": 3}), 3, [None, "majority"]),
        (2, answer({"count": 2}), 2, [None, "majority"]),
        (1, None, 2, [None]),
    ],
    ids=["a replica lags", "points are missing", "one replica"],
)
async def test_a_count_that_contradicts_the_manifest_is_asked_again_of_a_majority(
    index_on: OpenOn, replicas: int, second: httpx.Response, counted: int, consistencies: list[str | None]
) -> None:
    qdrant = Qdrant([answer({"count": 2}), second], replicas=replicas)
    assert await index_on(qdrant).count(expected=3) == counted
    assert [each.url.params.get("consistency") for each in qdrant.requests] == consistencies


async def test_points_that_a_lagging_replica_lacks_are_looked_for_again(
    index_on: OpenOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reposync.vectors.index._FIRST_DELAY_SECONDS", 0.001)
    qdrant = Qdrant([answer([]), answer([{"id": "1"}]), answer([]), answer([])], replicas=2)
    assert await index_on(qdrant).existing(["1", "2"]) == {"1"}
    assert [json.loads(each.content)["ids"] for each in qdrant.requests] == [["1", "2"], ["1", "2"], ["2"], ["2"]]
    alone = Qdrant()
    assert (await index_on(alone).existing(["1"]), alone.requests) == (set(), [])

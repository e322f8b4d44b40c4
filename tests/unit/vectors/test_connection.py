"""Failures of Qdrant: what a person reads, and what is repeated."""

import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import httpx
import pytest

from reposync.errors import (
    ConfigError,
    IndexAnswerUnreadable,
    IndexUnavailable,
    IndexUnsupported,
    LeaseLost,
    VectorIndexError,
)
from reposync.vectors.index import QdrantIndex, open_index
from reposync.vectors.port import CollectionMissing, FileWrite, IndexSettings, WriteScope

KEY = "a-secret-key"
COUNTED = {"result": {"count": 3}, "status": "ok", "time": 0}


DESCRIPTION = {"result": {"config": {"params": {}}, "payload_schema": {}}, "status": "ok", "time": 0}


class Qdrant:
    """A server that describes its collection, and answers other requests from a list; the last answer stays."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self._answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET" and request.url.path.endswith("/collections/code"):
            answer: httpx.Response | Exception = httpx.Response(200, json=DESCRIPTION)
        else:
            self.requests.append(request)
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, stream=httpx.ByteStream(answer.content))


OpenOn = Callable[[Qdrant], QdrantIndex]


@pytest.fixture(params=[False, True], ids=["httpx", "qdrant-client"])
async def index_on(request: pytest.FixtureRequest) -> AsyncGenerator[OpenOn, None]:
    """Opens an index on a fake server, without and with Qdrant's client."""
    settings = IndexSettings(
        collection="code",
        state_dir=Path("unused"),
        url="https://user:pw@qdrant.example:6333/prefix?x=1",
        api_key=KEY,
        attempts=3,
        longest_wait_seconds=0.05,
    )
    async with contextlib.AsyncExitStack() as stack:

        def open_on(qdrant: Qdrant) -> QdrantIndex:
            index = open_index(settings, long_lived=request.param, transport=httpx.MockTransport(qdrant))
            stack.push_async_callback(index.close)
            return index

        yield open_on


def error(status: int, message: str = "Qdrant says so", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"status": {"error": message}, "time": 0}, headers=headers)


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("cut short"),
        error(500),
        error(408),
        error(429, **{"Retry-After": "0"}),
        error(429, **{"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
    ],
    ids=str,
)
async def test_a_failure_that_may_pass_is_repeated(index_on: OpenOn, failure: httpx.Response | Exception) -> None:
    qdrant = Qdrant(failure, failure, httpx.Response(200, json=COUNTED))
    assert await index_on(qdrant).count() == 3
    assert len(qdrant.requests) == 3


async def test_a_pause_of_a_day_is_not_waited_for(index_on: OpenOn) -> None:
    qdrant = Qdrant(error(429, **{"Retry-After": "86400"}))
    with pytest.raises(IndexUnavailable, match="rate limit") as raised:
        await index_on(qdrant).count()
    assert raised.value.retry_after_seconds == 86_400
    assert len(qdrant.requests) == 1


async def test_a_failure_that_lasts_is_unavailable_after_some_attempts(index_on: OpenOn) -> None:
    qdrant = Qdrant(httpx.ConnectError("refused"))
    words = r"Qdrant at https://qdrant\.example:6333/prefix: the request to count points failed 3 times: .*refused"
    with pytest.raises(IndexUnavailable, match=words) as raised:
        await index_on(qdrant).count()
    assert raised.value.retryable
    assert len(qdrant.requests) == 3
    assert KEY not in str(raised.value)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (
            error(400, "Wrong input: vector size"),
            VectorIndexError,
            r"could not count points: Wrong input: vector size \(HTTP 400\)",
        ),
        (error(401, "Invalid api-key"), VectorIndexError, "refuses the API key.*Check QDRANT_API_KEY"),
        (error(404, "Not found: Collection `code` doesn't exist!"), CollectionMissing, "A sync makes the collection"),
        (error(404, "page not found"), VectorIndexError, "page not found"),
        (error(500, "collection `code` cannot be opened: damaged again"), VectorIndexError, "damaged again"),
        (error(501, "not here"), IndexUnsupported, "not here"),
        (httpx.Response(404, text="<html>" + "x" * 10_000), VectorIndexError, "HTTP 404"),
        (httpx.Response(200, json={"status": "ok"}), VectorIndexError, "without a result"),
        (httpx.Response(302, headers={"location": "https://elsewhere"}), VectorIndexError, "HTTP 302"),
    ],
)
async def test_a_refusal_is_reported_at_once_in_qdrants_words(
    index_on: OpenOn, answer: httpx.Response, kind: type[VectorIndexError], words: str
) -> None:
    qdrant = Qdrant(answer)
    index = index_on(qdrant)
    with pytest.raises(kind, match=words) as raised:
        await index.count()
    assert raised.value.retryable is (kind is CollectionMissing)
    assert len(str(raised.value)) < 1_000
    assert len(qdrant.requests) == 1
    assert KEY not in str(raised.value)
    assert "pw@" not in str(raised.value)


async def test_fewer_results_than_operations_are_no_success(index_on: OpenOn) -> None:
    qdrant = Qdrant(httpx.Response(200, json={"result": [], "status": "ok", "time": 0}))
    index = index_on(qdrant)
    with pytest.raises(VectorIndexError, match="0 of 1 writes"):
        await index.replace_files(WriteScope("7", "r", "c", 1), [FileWrite("a.py", None, "b", [], True)])


@pytest.mark.parametrize("sent", [0, 1, 2])
async def test_the_lease_is_checked_before_every_write_also_before_a_repeated_one(index_on: OpenOn, sent: int) -> None:
    allowed = iter(range(sent))

    def check() -> None:
        if next(allowed, None) is None:
            raise LeaseLost("taken over")

    qdrant = Qdrant(error(429, "too many", **{"Retry-After": "0"}))
    index = index_on(qdrant)
    scope = WriteScope("7", "r", "c", 1, check)
    with pytest.raises(LeaseLost):
        await index.remove_points(scope, ["1"])
    assert len(qdrant.requests) == sent
    allowed = iter(range(sent))
    with pytest.raises(LeaseLost):
        await index.replace_files(scope, [FileWrite("a.py", None, "b", [], True)])
    assert len(qdrant.requests) == 2 * sent


async def test_the_key_goes_to_the_server_and_into_no_description_of_the_settings(index_on: OpenOn) -> None:
    qdrant = Qdrant(httpx.Response(200, json=COUNTED))
    index = index_on(qdrant)
    await index.count()
    assert qdrant.requests[0].headers["api-key"] == KEY


async def test_answers_are_requested_uncompressed(index_on: OpenOn) -> None:
    qdrant = Qdrant(httpx.Response(200, json=COUNTED))
    await index_on(qdrant).count()
    assert qdrant.requests[0].headers["accept-encoding"] == "identity"
    url, _, parameters = str(qdrant.requests[0].url).partition("?")
    assert url == "https://qdrant.example:6333/prefix/collections/code/points/count"
    assert parameters == "timeout=25", "the server gives up before the client does, after 30 s"
    assert "authorization" not in qdrant.requests[0].headers
    assert KEY not in repr(IndexSettings("code", Path("x"), api_key=KEY))


def test_an_unusable_address_or_ca_file_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for url, ca_file, words in (
        ("ftp://qdrant.example", None, "is not an http or https URL"),
        ("https://qdrant.example", tmp_path / "absent.pem", r"absent\.pem"),
        ("https://qdrant.example", tmp_path / "empty.pem", r"empty\.pem"),
    ):
        with pytest.raises(ConfigError, match=words):
            open_index(IndexSettings("code", tmp_path, url=url, ca_file=ca_file))


@pytest.mark.parametrize("body", [b"<html>", b"", b"[" * 200_000, b'{"result": {"count": %s}}' % (b"9" * 5_000_000)])
async def test_an_answer_that_is_not_qdrants_is_left_to_the_next_attempt_of_the_run(
    index_on: OpenOn, body: bytes
) -> None:
    qdrant = Qdrant(httpx.Response(200, content=body))
    index = index_on(qdrant)
    with pytest.raises(IndexAnswerUnreadable, match="an answer that is not Qdrant's") as raised:
        await index.count()
    assert raised.value.retryable
    assert len(qdrant.requests) == 1


async def test_a_refusal_of_deeply_nested_json_is_a_refusal(index_on: OpenOn) -> None:
    deep = b'{"status": {"error": ' + b"[" * 950 + b"]" * 950 + b"}}"
    with pytest.raises(VectorIndexError, match=r"\(HTTP 400\)"):
        await index_on(Qdrant(httpx.Response(400, content=deep))).count()

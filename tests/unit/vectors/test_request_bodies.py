"""Requests that store points: under the server's limit, each file's new points before the delete of its old ones."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.embedding.port import SparseVector
from reposync.errors import VectorIndexError
from reposync.symbol import Symbol
from reposync.vectors import request_bodies
from reposync.vectors.port import FileWrite, PointWrite, WriteScope, point_id
from reposync.vectors.request_bodies import WriteRequest, batch, write_requests

SCOPE = WriteScope("7", "payments", "c" * 40, epoch=5)


def chunk(index: int, *, text: str = "text", rows: int = 1) -> PointWrite:
    return PointWrite(
        chunk_index=index,
        text=text,
        start_line=index,
        end_line=index + 1,
        content_hash=f"h{index}",
        url=None,
        dense=np.ones((rows, 4), dtype=np.float32),
        sparse=SparseVector(np.array([1, 4_000_000_000], dtype=np.uint32), np.array([0.5, 1.5], dtype=np.float32)),
        symbols=[Symbol("parse", "function", 1, 2)],
        calls=["read"],
        start_index=40,
    )


def file(path: str, chunks: int, *, replaces: bool = True, text: str = "text", sha: str = "b" * 40) -> FileWrite:
    return FileWrite(path, "python", sha, [chunk(each, text=text) for each in range(chunks)], replaces)


def body(request: WriteRequest) -> bytes:
    return batch(request.operations(SCOPE))


def operations(requests: list[WriteRequest]) -> list[dict[str, Any]]:
    read = [json.loads(body(request))["operations"] for request in requests]
    return [operation for each in read for operation in each]


def test_a_point_is_written_in_the_layout_that_langchain_reads() -> None:
    (upsert,) = operations(list(write_requests(SCOPE, [file("a.py", 1, replaces=False)], multivector=False)))
    assert upsert["upsert"]["points"] == [
        {
            "id": point_id("7", "a.py", "b" * 40, 0),
            "vector": {"dense": [1, 1, 1, 1], "sparse": {"indices": [1, 4_000_000_000], "values": [0.5, 1.5]}},
            "payload": {
                "page_content": "text",
                "metadata": {
                    "repository_id": "7",
                    "repository": "payments",
                    "path": "a.py",
                    "path_tokens": ["a.py", "*.py"],
                    "language": "python",
                    "start_line": 0,
                    "end_line": 1,
                    "chunk_index": 0,
                    "start_index": 40,
                    "blob_sha": "b" * 40,
                    "commit": "c" * 40,
                    "content_hash": "h0",
                    "symbols": [{"name": "parse", "kind": "function", "start_line": 1, "end_line": 2}],
                    "calls": ["read"],
                    "epoch": 5,
                    "url": None,
                },
            },
        }
    ]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_is_stored_as_it_is(text: str) -> None:
    upsert, delete = operations(list(write_requests(SCOPE, [file(f"dir/{text}", 1, text=text)], multivector=False)))
    payload = upsert["upsert"]["points"][0]["payload"]
    assert (payload["page_content"], payload["metadata"]["path"]) == (text, f"dir/{text}")
    assert delete["delete"]["filter"]["must"][2]["match"]["value"] == f"dir/{text}"


def test_a_delete_names_repository_path_epoch_and_the_points_that_stay() -> None:
    _, delete = operations(list(write_requests(SCOPE, [file("a.py", 1)], multivector=False)))
    assert delete["delete"]["filter"] == {
        "must": [
            {"key": "metadata.repository_id", "match": {"value": "7"}},
            {"key": "metadata.epoch", "range": {"lte": 5}},
            {"key": "metadata.path", "match": {"value": "a.py"}},
        ],
        "must_not": [{"has_id": [point_id("7", "a.py", "b" * 40, 0)]}],
    }


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.integers(0, 3_000)), max_size=12), st.data())
def test_requests_stay_under_the_limit_and_keep_the_order_of_each_file(
    files: list[tuple[int, bool, int]], data: st.DataObject
) -> None:
    most_points, most_bytes = data.draw(st.integers(1, 20)), data.draw(st.integers(2_000, 20_000))
    writes = [
        file(f"{number}.py", chunks, replaces=replaces, text="é" * length)
        for number, (chunks, replaces, length) in enumerate(files)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_bodies, "MAX_REQUEST_BYTES", most_bytes)
        requests = list(write_requests(SCOPE, writes, multivector=False, max_points=most_points))
    seen: list[str] = []
    deleted: list[str] = []
    begun: set[str] = set()
    for request in requests:
        found = operations([request])
        points = [each for one in found for each in one.get("upsert", {}).get("points", [])]
        deletes = [each["delete"]["filter"] for each in found if "delete" in each]
        assert len(points) <= most_points
        assert len(body(request)) <= most_bytes or len(points) + len(deletes) == 1
        assert ["upsert" in each for each in found] == [True] * bool(points) + [False] * len(deletes)
        seen += [point["id"] for point in points]
        for condition in deletes:
            kept = condition.get("must_not", [{"has_id": []}])[0]["has_id"]
            assert set(kept) <= set(seen), "a file's points stand before the delete of its other points"
        of_deletes = [condition["must"][2]["match"]["value"] for condition in deletes]
        deleted += of_deletes
        paths = {point["payload"]["metadata"]["path"] for point in points} | set(of_deletes)
        assert request.continues == bool(paths & begun), "a file is never in two requests that are sent at once"
        begun |= paths
    assert seen == [point_id("7", each.path, "b" * 40, n) for each in writes for n in range(len(each.points))]
    assert deleted == [each.path for each in writes if each.replaces]


def test_windows_become_a_multivector_only_where_the_collection_has_them() -> None:
    windows = [FileWrite("a.py", None, "b" * 40, [chunk(0, rows=3)], False)]
    (upsert,) = operations(list(write_requests(SCOPE, windows, multivector=True)))
    assert upsert["upsert"]["points"][0]["vector"]["dense"] == [[1, 1, 1, 1]] * 3
    with pytest.raises(VectorIndexError, match=r"'a\.py'.*shape \(3, 4\)"):
        list(write_requests(SCOPE, windows, multivector=False))


def test_text_that_is_not_unicode_is_refused_with_its_file() -> None:
    with pytest.raises(VectorIndexError, match=r"'a\.py'"):
        list(write_requests(SCOPE, [file("a.py", 1, text="\ud800")], multivector=False))

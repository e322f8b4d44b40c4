"""The comparison after the storm finds what makes an index inexact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.storm.exactness import Expected, Point, differences
from reposync.vectors.port import point_id

ID = "id-of-payments"


def point(path: str, chunk: int = 0, *, blob: str = "b1", text: str = "text", epoch: int = 1) -> Point:
    metadata: dict[str, Any] = {
        "repository": "payments",
        "repository_id": ID,
        "path": path,
        "chunk_index": chunk,
        "blob_sha": blob,
        "commit": f"c{epoch}",
        "epoch": epoch,
    }
    return {
        "id": point_id(ID, path, blob, chunk),
        "payload": {"page_content": text, "metadata": metadata},
        "vector": {"dense": [1.0]},
    }


POINTS = [point("a.py"), point("a.py", 1), point("b.py", blob="b2")]
EXPECTED = Expected(
    name="payments",
    id=ID,
    head="c9",
    last_commit="c9",
    tree={"a.py": "b1", "b.py": "b2", "empty.py": "b3"},
    manifest={"a.py": "b1", "b.py": "b2", "empty.py": "b3"},
    chunks={"a.py": 2, "b.py": 1, "empty.py": 0},
    fresh=[point("a.py", epoch=7), point("a.py", 1, epoch=7), point("b.py", blob="b2", epoch=7)],
)


def test_an_exact_index_is_exact_whatever_run_stored_it():
    assert differences(EXPECTED, POINTS) == []


NEW_B = point("b.py", blob="b2")


@pytest.mark.parametrize(
    ("points", "said"),
    [
        pytest.param(POINTS[:2], "1 missing [('b.py', 0)]", id="a point is missing"),
        pytest.param([*POINTS, point("gone.py")], "1 points too many [('gone.py', 0)]", id="stale"),
        pytest.param([*POINTS, point("b.py", blob="b0")], "twice", id="an older blob beside the new one"),
        pytest.param([*POINTS[:2], point("b.py", blob="b0")], "1 different", id="an older blob"),
        pytest.param([*POINTS[:2], point("b.py", blob="b2", text="other")], "1 different", id="a different text"),
        pytest.param([*POINTS[:2], NEW_B | {"vector": {"dense": [0.5]}}], "1 different", id="a different vector"),
        pytest.param([*POINTS[:2], NEW_B | {"id": POINTS[0]["id"]}], "ids that are not theirs", id="a wrong id"),
    ],
)
def test_wrong_points_are_found(points: list[Point], said: str):
    assert said in differences(EXPECTED, points)[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"last_commit": "c8"}, "last_commit is c8"),
        ({"manifest": {"a.py": "b1", "b.py": "b2"}}, "tree"),
        ({"chunks": {"a.py": 1, "b.py": 1}}, "counts"),
    ],
)
def test_wrong_rows_are_found(change: dict[str, Any], said: str):
    assert said in differences(replace(EXPECTED, **change), POINTS)[0]

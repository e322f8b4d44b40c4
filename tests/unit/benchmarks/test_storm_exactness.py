"""The comparison after the storm finds what makes an index inexact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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


def test_a_missing_point_is_found():
    assert "1 missing [('b.py', 0)]" in differences(EXPECTED, POINTS[:2])[0]


def test_a_stale_point_is_found():
    assert "1 points too many [('gone.py', 0)]" in differences(EXPECTED, [*POINTS, point("gone.py")])[0]


def test_a_point_of_an_older_blob_is_found_beside_the_new_one():
    assert "twice" in differences(EXPECTED, [*POINTS, point("b.py", blob="b0")])[0]


def test_a_point_of_an_older_blob_is_found_instead_of_the_new_one():
    assert "1 different" in differences(EXPECTED, [*POINTS[:2], point("b.py", blob="b0")])[0]


def test_another_text_and_another_vector_are_found():
    assert "1 different" in differences(EXPECTED, [*POINTS[:2], point("b.py", blob="b2", text="other")])[0]
    moved = point("b.py", blob="b2") | {"vector": {"dense": [0.5]}}
    assert "1 different" in differences(EXPECTED, [*POINTS[:2], moved])[0]


def test_an_id_that_is_not_the_points_own_is_found():
    assert "ids that are not theirs" in differences(EXPECTED, [*POINTS[:2], POINTS[2] | {"id": POINTS[0]["id"]}])[0]


def test_a_commit_that_was_not_reached_is_found():
    assert "last_commit is c8" in differences(replace(EXPECTED, last_commit="c8"), POINTS)[0]


def test_a_manifest_that_is_not_the_tree_is_found():
    assert "tree" in differences(replace(EXPECTED, manifest={"a.py": "b1", "b.py": "b2"}), POINTS)[0]


def test_a_manifest_that_counts_wrongly_is_found():
    assert "counts" in differences(replace(EXPECTED, chunks={"a.py": 1, "b.py": 1}), POINTS)[0]

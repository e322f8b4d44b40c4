"""Which files the paths of a traceback mean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reposync.vectors.fusion import candidates_at
from reposync.vectors.named_places import NamedPlace
from reposync.vectors.port import Candidate

INDEXED = ["src/foo/bar.py", "tests/foo/bar.py", "bar.py", "src/main/java/com/shop/Pool.java", "lib/requests/api.py"]
CHUNK = Candidate("1", "version", "project", "src/foo/bar.py", 1, 20, "python", [], 0.0, {})


@pytest.mark.parametrize(
    ("path", "files"),
    [
        ("/usr/src/app/src/foo/bar.py", ["src/foo/bar.py"]),
        ("src/foo/bar.py", ["src/foo/bar.py"]),
        ("foo/bar.py", ["src/foo/bar.py", "tests/foo/bar.py"]),
        ("/elsewhere/bar.py", ["bar.py"]),
        ("com/shop/Pool.java", ["src/main/java/com/shop/Pool.java"]),
        ("Pool.java", ["src/main/java/com/shop/Pool.java"]),
        ("/usr/lib/python3.11/site-packages/bar.py", []),
        ("/usr/lib/python3.11/site-packages/click/api.py", []),
        ("/usr/lib/python3.11/site-packages/requests/api.py", []),
        ("/app/other.py", []),
        ("", []),
    ],
)
def test_a_path_means_the_file_with_the_most_parts_in_common(path: str, files: list[str]) -> None:
    assert NamedPlace(path, 1).files(INDEXED) == files


def test_a_line_means_the_chunk_that_has_it_and_each_chunk_comes_once() -> None:
    chunks = [CHUNK, replace(CHUNK, id="2", start_line=21, end_line=40)]
    places = [NamedPlace("foo/bar.py", 30), NamedPlace("foo/bar.py", 31), NamedPlace("foo/bar.py", 900)]
    found = candidates_at(places, [["src/foo/bar.py"]] * 3, chunks)
    assert [each.id for each in found] == ["2", "1"]
    assert found[0].score > found[1].score > 9

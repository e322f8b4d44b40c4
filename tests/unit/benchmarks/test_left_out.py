from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.left_out import Repository, show, show_table, tally
from reposync.content.model import Skip
from tests.fixtures.repositories import GitRepository


def test_each_file_is_counted_once_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = "1.5,2.5\n" * 5_000
    outputs = [{"data": {"image/png": "iVBORw0KGgo" * 4_000}}]
    notebook = json.dumps({"cells": [{"source": ["x = 1"], "outputs": outputs}]})
    GitRepository.create(tmp_path / "shop").commit(
        {
            "src/a.py": b"x = 1\n",
            "data/points.csv": numbers.encode(),
            "eda.ipynb": notebook.encode(),
            "logo.png": b"\x89PNG",
            "vendor/github.com/a/b.go": b"package b\n",
            "huge.txt": b"word\n" * 250_000,
        }
    )
    repository = Repository(tmp_path / "shop")

    counts = tally(repository)

    assert (counts.files, counts.indexed, counts.chunks) == (6, 2, 2)
    assert {reason: len(paths) for reason, paths in counts.paths.items()} == {
        Skip.BINARY: 1, Skip.VENDORED: 1, Skip.TOO_LARGE: 1, Skip.DATA: 1,
    }  # fmt: skip
    assert counts.size_bytes[Skip.DATA] == len(numbers)
    assert counts.data_chunks == 8
    assert (counts.notebooks, counts.notebook_chunks, counts.notebook_chunks_whole) == (1, 1, 9)
    show(repository, counts, sample=5)
    show_table([(repository, counts)])
    assert "data/points.csv  (data: words are 0% of it)" in capsys.readouterr().out

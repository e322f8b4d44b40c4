"""Which overlap goes with which chunk size: the written one, the defaults' one at the defaults' size, else a fifth."""

from __future__ import annotations

import pytest

from tests.unit.config.conftest import Load


@pytest.mark.parametrize(
    ("defaults", "own", "size", "overlap"),
    [
        ("", "", 7000, 1500),
        ("", "size: 7000", 7000, 1500),
        ("", "size: 2000", 2000, 400),
        ("", "size: 1000", 1000, 200),
        ("", "size: 2000, overlap: 1500", 2000, 1500),
        ("", "overlap: 0", 7000, 0),
        ("size: 2000", "", 2000, 400),
        ("size: 7000", "", 7000, 1500),
        ("overlap: 700", "", 7000, 700),
        ("overlap: 700", "size: 7000", 7000, 700),
        ("overlap: 700", "size: 2000", 2000, 400),
        ("size: 4000, overlap: 500", "", 4000, 500),
        ("size: 4000, overlap: 500", "size: 4000", 4000, 500),
        ("size: 4000, overlap: 500", "size: 7000", 7000, 1400),
        ("size: 4000, overlap: 500", "overlap: 100", 4000, 100),
        ("size: 4000", "overlap: 100", 4000, 100),
    ],
)
def test_an_overlap_belongs_to_the_size_that_it_was_written_for(
    defaults: str, own: str, size: int, overlap: int, load: Load
) -> None:
    registry = load(
        f"defaults: {{chunk: {{{defaults}}}}}\nrepositories:\n  - {{name: a, path: ., chunk: {{{own}}}}}\n"
    ).registry

    (one,) = registry.resolved()

    assert (one.chunk_size, one.chunk_overlap) == (size, overlap)


def test_any_size_has_an_overlap_below_it(load: Load) -> None:
    for size in (100, 101, 50_000):
        assert 0 <= load(f"defaults: {{chunk: {{size: {size}}}}}\n").registry.defaults.chunk.overlap < size

"""What the tests of the index did not run on in this run, and how to have them run there."""

import pytest

from tests.fixtures.qdrant_targets import MISSING, chosen


@pytest.mark.parametrize("name", MISSING)
def test_the_index_is_tested_on(name: str) -> None:
    if name not in chosen():
        pytest.skip(MISSING[name])

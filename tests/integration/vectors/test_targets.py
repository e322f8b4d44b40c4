"""What the tests of the index did not run on in this run, and how to have them run there."""

import pytest

from tests.fixtures.qdrant_targets import MISSING, missing


@pytest.mark.parametrize("name", MISSING)
def test_the_index_is_tested_on(name: str) -> None:
    if how := missing().get(name):
        pytest.skip(how)

"""Pods of the release before, which keep `.gitattributes` in the row of a version, beside pods of this one: whoever
publishes, the other one goes by the lines of the commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from reposync.store.tables import VersionState
from tests.acceptance.test_two_versions import (  # noqa: F401
    TwoVersions,
    qdrant_server,
    resident,
    two,
)
from tests.fixtures.databases import database_kind, empty_database_url, upgraded_sqlite_file  # noqa: F401
from tests.fixtures.earlier_versions import RELEASE_BEFORE, earlier_version

pytestmark = pytest.mark.full

LINES = (
    b"lib/** linguist-vendored\n",
    b"lib/** linguist-vendored\nnew/1.py linguist-generated\n",
    None,
    b"docs/** linguist-vendored\n",
)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return earlier_version(RELEASE_BEFORE, tmp_path_factory.mktemp("previous"))


@pytest.mark.parametrize("first", ["old", "new"])
async def test_each_goes_by_the_attributes_of_the_commit_whoever_published_last(
    two: TwoVersions,  # noqa: F811
    first: str,
) -> None:
    turns = ["old", "new"] if first == "old" else ["new", "old"]
    for number, lines in enumerate(LINES, 1):
        two.commits(number)
        two.repository.commit({".gitattributes": lines})
        for who in turns:
            if who == "old":
                two.old_syncs()
            else:
                await two.new_syncs()
            (version,) = [each for each in await two.versions() if each.state is VersionState.LIVE]
            await two.has_exactly(version)
        turns.reverse()
    assert two.old_syncs()["files_processed"] == (await two.new_syncs()).files_processed == 0

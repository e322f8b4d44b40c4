"""What a run has to do, from a tree and a manifest."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.content.model import Skip, Skipped
from reposync.sources.port import SYMLINK_MODE, Tree, TreeEntry, path_bytes, path_text
from reposync.store.manifest import ManifestRow
from reposync.sync import plan as planning
from reposync.sync.plan import Plan

FILE = 0o100644


def make_plan(entries: Sequence[TreeEntry], *arguments: Any, proven: bool = True, **named: Any) -> Plan:
    return planning.make_plan(Tree(list(entries), proven), *arguments, **named)


def row(
    blob_sha: str,
    *,
    size_bytes: int | None = 10,
    chunks: int = 1,
    skip_reason: str | None = None,
    wanted_sha: str | None = None,
) -> ManifestRow:
    return ManifestRow("", blob_sha, FILE, size_bytes, chunks, skip_reason, None, 1, wanted_sha)


def entry(path: str, sha: str, mode: int = FILE) -> TreeEntry:
    return TreeEntry(path.encode(), mode, sha)


def keep(file: TreeEntry) -> Skipped | None:
    return Skipped(Skip.SYMLINK, "a symlink") if file.mode == SYMLINK_MODE else None


def exclude_docs(file: TreeEntry) -> Skipped | None:
    return Skipped(Skip.EXCLUDED, "docs/") if file.path.startswith(b"docs/") else None


@pytest.mark.parametrize(
    ("recorded", "reads"),
    [
        pytest.param(row("1"), 0, id="unchanged"),
        pytest.param(row("1", chunks=0, skip_reason=Skip.BINARY), 0, id="skipped for its content"),
        pytest.param(
            row("1", size_bytes=None, chunks=0, skip_reason=Skip.GENERATED), 1, id="skipped for its path before"
        ),
        pytest.param(row("1", chunks=0, skip_reason=Skip.FAILED), 1, id="failed"),
        pytest.param(row("0", wanted_sha="1"), 1, id="outdated: the wanted blob could not be read"),
        pytest.param(row("1", wanted_sha="2"), 1, id="outdated: the commit went back to the recorded blob"),
        pytest.param(row("1", wanted_sha="1"), 0, id="settled"),
    ],
)
def test_whether_a_file_with_the_recorded_blob_is_read_again(recorded: ManifestRow, reads: int):
    assert len(make_plan([entry("a", "1")], {"a": recorded}, keep).read) == reads


def test_a_listing_that_is_not_proven_deletes_nothing():
    plan = make_plan([entry("a", "2")], {"a": row("1"), "b": row("3")}, keep, proven=False)
    assert [each.sha for each in plan.read] == ["2"]
    assert (plan.delete_points, plan.delete_rows, plan.doubtful) == ([], [], ["b"])
    assert not plan.is_empty


def test_a_skipped_file_that_a_listing_lacked_is_settled_by_one_that_has_it():
    doubted = {"docs/a": row("1", size_bytes=None, chunks=0, skip_reason=Skip.EXCLUDED, wanted_sha="")}
    assert len(make_plan([entry("docs/a", "1")], doubted, exclude_docs).skip) == 1


def test_a_file_that_becomes_skipped_loses_its_points_and_is_reported_once():
    tree = [entry("docs/a", "1")]
    first = make_plan(tree, {"docs/a": row("1")}, exclude_docs)
    assert (first.delete_points, first.delete_rows) == (["docs/a"], [])
    assert [each.skipped and each.skipped.reason for each in first.skip] == [Skip.EXCLUDED]
    recorded = {"docs/a": row("1", size_bytes=None, chunks=0, skip_reason=Skip.EXCLUDED)}
    assert make_plan(tree, recorded, exclude_docs).is_empty


@given(st.binary(min_size=1, max_size=20), st.binary(min_size=1, max_size=20))
def test_paths_survive_conversion_to_text_and_never_collide(one: bytes, other: bytes):
    assert path_bytes(path_text(one)) == one
    assert (path_text(one) == path_text(other)) == (one == other)
    path_text(one).encode()


paths = st.sampled_from(["a", "b", "docs/a", "docs/b", "c"])
trees = st.dictionaries(paths, st.sampled_from("123"), max_size=5)


@given(trees, trees, st.booleans())
def test_applying_a_plan_always_ends_at_the_tree(before: dict[str, str], after: dict[str, str], reread: bool):
    """Whatever was recorded: read, skip and both deletions together give exactly the tree."""
    points = dict(before)
    recorded = {path: row(sha) for path, sha in before.items()}
    tree = [entry(path, sha) for path, sha in after.items()]
    plan = make_plan(tree, recorded, exclude_docs, reread=lambda entry, row: reread)
    for path in plan.delete_points:
        points.pop(path)
    for each in plan.read:
        points[each.path.decode()] = each.sha
    assert points == {path: sha for path, sha in after.items() if not path.startswith("docs/")}
    assert {each.path for each in plan.skip} <= after.keys()
    assert set(plan.delete_rows) == before.keys() - after.keys()

"""What a run has to do, from a tree and a manifest."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reposync.content.model import Skip, Skipped
from reposync.errors import DeletionBlocked
from reposync.sources.paths import path_bytes, path_text
from reposync.sources.port import SYMLINK_MODE, TreeEntry
from reposync.sync.plan import make_plan

FILE = 0o100644


@dataclass(frozen=True)
class Row:
    blob_sha: str
    size_bytes: int | None = 10
    chunks: int = 1
    skip_reason: str | None = None


def entry(path: str, sha: str, mode: int = FILE) -> TreeEntry:
    return TreeEntry(path.encode(), mode, sha)


def keep(path: bytes, mode: int) -> Skipped | None:
    return Skipped(Skip.SYMLINK, "a symlink") if mode == SYMLINK_MODE else None


def exclude_docs(path: bytes, mode: int) -> Skipped | None:
    return Skipped(Skip.EXCLUDED, "docs/") if path.startswith(b"docs/") else None


def test_a_first_sync_reads_everything_in_path_order():
    plan = make_plan([entry("b", "2"), entry("a", "1")], {}, keep)
    assert [each.path for each in plan.read] == [b"a", b"b"]
    assert plan.unindex == plan.forget == []


def test_an_unchanged_tree_needs_nothing():
    assert make_plan([entry("a", "1")], {"a": Row("1")}, keep).is_empty


def test_a_changed_file_is_read_and_a_deleted_one_goes():
    plan = make_plan([entry("a", "2")], {"a": Row("1"), "b": Row("3")}, keep)
    assert [each.sha for each in plan.read] == ["2"]
    assert plan.unindex == plan.forget == ["b"]


def test_a_renamed_file_is_counted_and_its_old_path_goes():
    plan = make_plan([entry("new", "1")], {"old": Row("1")}, keep)
    assert plan.renamed == 1
    assert plan.unindex == ["old"]


def test_a_file_that_only_its_content_keeps_out_is_not_read_again():
    recorded = {"a.bin": Row("1", chunks=0, skip_reason=Skip.BINARY)}
    assert make_plan([entry("a.bin", "1")], recorded, keep).is_empty


def test_a_file_whose_path_kept_it_out_is_read_when_the_rules_change():
    recorded = {"a.gen": Row("1", size_bytes=None, chunks=0, skip_reason=Skip.GENERATED)}
    assert len(make_plan([entry("a.gen", "1")], recorded, keep).read) == 1


def test_a_file_that_failed_is_tried_again():
    recorded = {"a": Row("1", chunks=0, skip_reason=Skip.FAILED)}
    assert len(make_plan([entry("a", "1")], recorded, keep).read) == 1


def test_a_file_that_becomes_excluded_loses_its_points_and_is_reported_once():
    tree = [entry("docs/a", "1")]
    first = make_plan(tree, {"docs/a": Row("1")}, exclude_docs)
    assert first.unindex == ["docs/a"]
    assert [each.skipped.reason for each in first.skip] == [Skip.EXCLUDED]
    assert first.forget == []
    recorded = {"docs/a": Row("1", size_bytes=None, chunks=0, skip_reason=Skip.EXCLUDED)}
    assert make_plan(tree, recorded, exclude_docs).is_empty


def test_a_file_that_became_a_symlink_with_the_same_blob_loses_its_points():
    plan = make_plan([entry("a", "1", SYMLINK_MODE)], {"a": Row("1")}, keep)
    assert plan.unindex == ["a"]
    assert len(plan.skip) == 1


def test_a_file_whose_points_were_lost_is_read_again():
    plan = make_plan([entry("a", "1"), entry("b", "2")], {"a": Row("1"), "b": Row("2")}, keep, damaged={"b"})
    assert [each.path for each in plan.read] == [b"b"]


def rows(count: int) -> dict[str, Row]:
    return {f"f{number}": Row(str(number)) for number in range(count)}


def tree(count: int, start: int = 0) -> list[TreeEntry]:
    return [entry(f"f{number}", str(number)) for number in range(start, count)]


def test_an_empty_listing_never_deletes_an_index():
    with pytest.raises(DeletionBlocked, match="no file at all"):
        make_plan([], rows(1), keep).stop_if_suspicious(approved=False)


def test_more_than_half_gone_stops_the_run_and_an_approval_lets_it_pass():
    plan = make_plan(tree(49), rows(100), keep)
    with pytest.raises(DeletionBlocked, match="51 of the 100"):
        plan.stop_if_suspicious(approved=False)
    plan.stop_if_suspicious(approved=True)


@pytest.mark.parametrize(("before", "after"), [(100, 50), (20, 1), (40, 20)])
def test_the_brake_leaves_ordinary_deletions_alone(before: int, after: int):
    make_plan(tree(after), rows(before), keep).stop_if_suspicious(approved=False)


def test_moving_every_file_into_a_folder_is_no_mass_deletion():
    moved = [entry(f"src/{number}", str(number)) for number in range(100)]
    make_plan(moved, rows(100), keep).stop_if_suspicious(approved=False)


paths = st.sampled_from(["a", "b", "docs/a", "docs/b", "c"])
trees = st.dictionaries(paths, st.sampled_from("123"), max_size=5)


@settings(max_examples=200)
@given(trees, trees, st.booleans())
def test_applying_a_plan_always_ends_at_the_tree(before: dict[str, str], after: dict[str, str], reread: bool):
    """Whatever was recorded: read, skip, unindex and forget together give exactly what the tree asks for."""
    points = dict(before)
    recorded = {path: Row(sha) for path, sha in before.items()}
    plan = make_plan([entry(path, sha) for path, sha in after.items()], recorded, exclude_docs, reread=reread)
    for path in plan.unindex:
        points.pop(path)
    for each in plan.read:
        points[each.path.decode()] = each.sha
    assert points == {path: sha for path, sha in after.items() if not path.startswith("docs/")}
    assert {each.path for each in plan.skip} <= after.keys()
    assert set(plan.forget) == before.keys() - after.keys()


@given(st.binary(min_size=1, max_size=20), st.binary(min_size=1, max_size=20))
def test_paths_survive_the_way_to_text_and_back_and_never_collide(one: bytes, other: bytes):
    assert path_bytes(path_text(one)) == one
    assert (path_text(one) == path_text(other)) == (one == other)
    path_text(one).encode("utf-8")

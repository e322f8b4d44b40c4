"""The deletion brake: what it counts, when it stops a run, and what an approval is good for."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from reposync.content.model import Skip, Skipped
from reposync.errors import DeletionBlocked
from reposync.sources.port import TreeEntry
from reposync.store.manifest import ManifestRow
from reposync.store.run import IN_ADVANCE
from reposync.sync.brake import Brake, BrakeFacts, Losses, losses_of

FILE = 0o100644
COMMIT, LATER = "c" * 40, "d" * 40
Decide = Callable[[TreeEntry], Skipped | None]


def rows(count: int, *, chunks: int = 1) -> dict[str, ManifestRow]:
    return {
        f"f{number}": ManifestRow(f"f{number}", str(number), FILE, 10, chunks, None, None, 1) for number in range(count)
    }


def tree(numbers: range, folder: str = "") -> list[TreeEntry]:
    return [TreeEntry(f"{folder}f{number}".encode(), FILE, str(number)) for number in numbers]


def keep(entry: TreeEntry) -> Skipped | None:
    return None


def without_vendor(entry: TreeEntry) -> Skipped | None:
    return Skipped(Skip.VENDORED, "in vendor/") if entry.path.startswith(b"vendor/") else None


def nothing(entry: TreeEntry) -> Skipped | None:
    return Skipped(Skip.NOT_INCLUDED, "matches none")


def losing(before: int, **counts: int) -> Losses:
    losses = Losses(before)
    for reason, count in counts.items():
        for number in range(count):
            losses.add(reason, f"f{number}")
    return losses


def brake(approval: Mapping[str, Any] | None = None, *, commit: str = COMMIT, listed: int = 1) -> Brake:
    return Brake("payments", commit, listed, approval)


def facts(planned: Mapping[str, int], losses: Mapping[str, int], commit: str = COMMIT) -> BrakeFacts:
    """No file is in a folder."""
    return BrakeFacts(commit, dict(planned), dict(losses), 100, {"": sum(losses.values())})


# What counts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "decide", "count_missing", "counts"),
    [
        pytest.param(tree(range(98)), keep, True, {"vanished": 2}, id="deleted"),
        pytest.param(tree(range(100)), nothing, True, {"not_included": 100}, id="skipped by the rules"),
        pytest.param(tree(range(100), "src/"), keep, True, {}, id="renamed"),
        pytest.param(
            tree(range(100), "vendor/"), without_vendor, True, {"vanished": 100}, id="renamed to a skipped path"
        ),
        pytest.param(tree(range(1)), keep, False, {}, id="not in an unproven listing"),
        pytest.param(tree(range(1)), nothing, False, {"not_included": 1}, id="skipped in an unproven listing"),
    ],
)
def test_which_files_count_as_lost(
    entries: list[TreeEntry], decide: Decide, count_missing: bool, counts: dict[str, int]
):
    assert losses_of(rows(100), entries, decide, count_missing=count_missing).counts == counts


def test_a_file_without_points_is_no_loss():
    assert losses_of(rows(3, chunks=0), [], keep, count_missing=True).counts == {}


# When it stops -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "gone", "stops"),
    [(100, 50, False), (20, 19, False), (40, 20, False), (41, 20, False), (100, 51, True), (21, 21, True)],
)
def test_more_than_half_and_more_than_twenty_stop_the_run(before: int, gone: int, stops: bool):
    expected = f"{gone} of the {before} indexed files of payments would be lost"
    with pytest.raises(DeletionBlocked, match=expected) if stops else contextlib.nullcontext():
        assert brake().check(losing(before, vanished=gone)) is None


def test_a_commit_without_any_file_stops_also_the_smallest_index():
    with pytest.raises(DeletionBlocked, match="has no files"):
        brake(listed=0).check(losing(1, vanished=1))


def test_all_reasons_count_together_and_each_is_named_with_its_number():
    losses = losing(100, vanished=20, excluded=20, vendored=11)
    with pytest.raises(DeletionBlocked) as error:
        brake().check(losses)
    assert (
        "20 are not in the commit (f0), 20 are excluded now (f0), 11 count as vendored now (f0)" in error.value.message
    )
    counts = dict(losses.counts)
    assert error.value.facts == facts(counts, counts).as_json()


def test_losses_found_while_reading_add_to_those_of_the_listing():
    planned = losing(100, vanished=30)
    checked = brake()
    assert checked.check(planned) is None
    assert checked.check(planned, losing(100, too_large=20)) is None
    with pytest.raises(DeletionBlocked, match="51 of the 100"):
        checked.check(planned, losing(100, too_large=21))


def test_a_few_files_more_than_were_approved_need_no_second_approval():
    planned = losing(100, vanished=60)
    checked = brake(facts(planned.counts, planned.counts).as_json())
    assert checked.check(planned) is None
    assert checked.check(planned, losing(100, too_large=5)) is None
    with pytest.raises(DeletionBlocked, match="not what would be lost now"):
        checked.check(planned, losing(100, too_large=21))


# What an approval is good for ----------------------------------------------------------------------------------------


def test_an_approval_holds_for_what_was_stopped_and_for_the_rest_of_an_interrupted_attempt():
    planned, read = losing(100, vanished=60), losing(100, minified=30)
    checked = brake(facts(planned.counts, (planned + read).counts).as_json())
    assert checked.check(planned) is None
    assert checked.check(planned, read) is None
    assert checked.check(losing(70, vanished=40)) is None


@pytest.mark.parametrize(
    ("now", "commit"),
    [({"vanished": 61}, COMMIT), ({"vanished": 60, "excluded": 1}, COMMIT), ({"vanished": 60}, LATER)],
)
def test_an_approval_does_not_hold_for_more_files_other_reasons_or_a_different_commit(now: dict[str, int], commit: str):
    approval = facts({"vanished": 60}, {"vanished": 60})
    with pytest.raises(DeletionBlocked, match="What was approved is not what would be lost now"):
        brake(approval.as_json(), commit=commit).check(losing(100, **now))


@pytest.mark.parametrize(
    "approval",
    [
        pytest.param({"kind": "quota", "limit": 3}, id="of a newer program"),
        pytest.param({}, id="of an older program, which wrote this for anything"),
        pytest.param({"gate": "version-1"}, id="of a new version of the index"),
    ],
)
def test_an_approval_of_something_else_approves_no_deletion(approval: Mapping[str, Any]):
    with pytest.raises(DeletionBlocked, match="What was approved is not what would be lost now"):
        brake(approval).check(losing(100, vanished=60))


def test_an_approval_in_advance_covers_all_losses_of_the_attempt_and_is_recorded():
    planned, read = losing(100, vanished=60), losing(100, minified=30)
    checked = brake(IN_ADVANCE)
    assert checked.check(planned) == facts({"vanished": 60}, {"vanished": 60})
    assert checked.check(planned, read) == facts({"vanished": 60}, {"vanished": 60, "minified": 30})

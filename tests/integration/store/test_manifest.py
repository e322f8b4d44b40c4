"""The recorded files of a repository, and that only the attempt that holds the run changes them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reposync.store.manifest import ManifestRow, ManifestTotals
from tests.integration.store.conftest import Store


def indexed(path: str, *, chunks: int = 1, epoch: int = 1, blob_sha: str = "a" * 40) -> ManifestRow:
    return ManifestRow(path, blob_sha, 0o100644, 120, chunks, None, "python", epoch)


def skipped(path: str, *, reason: str = "binary", epoch: int = 1) -> ManifestRow:
    return ManifestRow(path, "b" * 40, 0o100644, None, 0, reason, None, epoch)


async def test_what_is_recorded_is_loaded(store: Store) -> None:
    run = await store.running()
    rows = [indexed("src/a.py"), skipped("logo.png"), indexed('"caf\\351.py"'), indexed("src/日本.py", chunks=3)]

    await store.manifests.record(run, run.repository_id, rows)

    assert await store.manifests.load(run.repository_id) == {row.path: row for row in rows}
    again = [indexed("src/a.py", blob_sha="2" * 40, chunks=5, epoch=2), indexed("logo.png", epoch=2)]
    await store.manifests.record(run, run.repository_id, again)
    assert await store.manifests.load(run.repository_id) == {row.path: row for row in [*rows, *again]}


async def test_a_path_that_no_database_can_hold_does_not_fail_the_run(store: Store) -> None:
    run = await store.running()
    odd = ["nul\0.py", "lone\udce9.py"]

    await store.manifests.record(run, run.repository_id, [indexed(path) for path in odd])

    assert set(await store.manifests.load(run.repository_id)) == {"nul␀.py", "lone\\udce9.py"}
    await store.manifests.forget(run, run.repository_id, odd)
    assert await store.manifests.load(run.repository_id) == {}


async def test_totals_count_what_the_index_should_hold(store: Store) -> None:
    run = await store.running()
    rows = [indexed("a", chunks=3, epoch=1), indexed("b", chunks=4, epoch=2), indexed("c", chunks=1, epoch=2)]
    await store.manifests.record(
        run, run.repository_id, [*rows, skipped("d", epoch=3), indexed("e", chunks=0, epoch=3)]
    )

    totals = await store.manifests.totals(run.repository_id)

    assert totals == ManifestTotals(files=4, chunks=8, skipped=1, max_epoch=2, chunks_of_max_epoch=5, failed=0)


async def test_files_that_could_not_be_read_count_as_failed_whether_the_index_has_them_or_not(store: Store) -> None:
    run = await store.running()
    version = run.repository_id
    outdated = indexed("old.py")._replace(wanted_sha="f" * 40)
    unlisted = indexed("unlisted.py")._replace(wanted_sha="")
    current = indexed("current.py")._replace(wanted_sha="a" * 40)
    files = [outdated, unlisted, current, skipped("lost.py", reason="failed"), skipped("logo.png"), indexed("a.py")]

    await store.manifests.record(run, version, files)

    assert (await store.manifests.totals(version)).failed == (await store.manifests.counts())[version].failed == 3
    loaded = await store.manifests.load(version)
    assert {path for path, row in loaded.items() if row.is_outdated} == {"old.py", "unlisted.py"}
    asked = {(version, row.path) for row in files} | {(version, "gone.py"), ("another", "old.py")}
    assert await store.manifests.outdated(asked) == {(version, "old.py"), (version, "unlisted.py")}
    assert await store.manifests.outdated([]) == set()
    await store.manifests.record(run, version, [indexed("old.py", blob_sha="f" * 40, epoch=2)])
    assert (await store.manifests.totals(version)).failed == 2


async def test_long_paths_that_begin_alike_are_different_files(store: Store) -> None:
    run = await store.running()
    deep = "directory/" * 900
    rows = [indexed(f"{deep}a.py"), indexed(f"{deep}b.py"), indexed("短い/" * 300 + "c.py"), indexed("d" * 512)]

    await store.manifests.record(run, run.repository_id, rows)
    assert await store.manifests.load(run.repository_id) == {row.path: row for row in rows}

    await store.manifests.forget(run, run.repository_id, [rows[0].path])
    assert await store.manifests.load(run.repository_id) == {row.path: row for row in rows[1:]}


@given(paths=st.sets(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=40)))
async def test_any_path_that_git_can_have_comes_back_as_it_was(store: Store, paths: set[str]) -> None:
    active = await store.history.runs(limit=1)
    run = active[0] if active else await store.running()

    await store.manifests.record(run, run.repository_id, [indexed(path) for path in sorted(paths)])

    assert set(await store.manifests.load(run.repository_id)) == paths
    await store.manifests.forget(run, run.repository_id, paths)
    assert await store.manifests.load(run.repository_id) == {}


async def entries(store: Store, version: str, path: str = "", limit: int = 100) -> list[tuple[object, ...]]:
    found = await store.manifests.folder(version, path, limit)
    return [(each.name, each.files, each.indexed, each.failed, each.chunks, each.skip_reason) for each in found]


async def test_a_folder_has_its_folders_first_with_what_is_in_them(store: Store) -> None:
    run = await store.running()
    rows = [
        *(indexed("src/a.py", chunks=2), indexed("src/web/b.py", chunks=3), skipped("src/web/logo.png")),
        *(indexed("setup.py"), skipped("src.png"), skipped("src/broken.py", reason="failed")),
        *(indexed("Src/other.py"), indexed("sr%/c.py"), indexed("日本/d.py")),
    ]
    await store.manifests.record(run, run.repository_id, rows)
    other = await store.running("other")
    await store.manifests.record(other, other.repository_id, [indexed("src/a.py", chunks=9)])
    third = await store.running("third")
    await store.manifests.record(third, third.repository_id, [indexed("src/a.py")])
    await store.manifests.forget(third, third.repository_id, ["src/a.py"])
    assert set(await store.manifests.counts()) == {run.repository_id, other.repository_id}

    top = await entries(store, run.repository_id)

    assert sorted(top[:4]) == sorted(
        [
            ("Src/", 1, 1, 0, 1, None),
            ("sr%/", 1, 1, 0, 1, None),
            ("src/", 4, 2, 1, 5, None),
            ("日本/", 1, 1, 0, 1, None),
        ]
    )
    assert top[4:] == [("setup.py", None, 1, 0, 1, None), ("src.png", None, 0, 0, 0, "binary")]
    assert await entries(store, run.repository_id, "src") == [
        ("web/", 2, 1, 0, 3, None),
        ("a.py", None, 1, 0, 2, None),
        ("broken.py", None, 0, 1, 0, "failed"),
    ]
    assert await entries(store, run.repository_id, "sr%") == [("c.py", None, 1, 0, 1, None)]
    assert await entries(store, run.repository_id, "no-such-folder") == []
    assert await entries(store, run.repository_id, limit=1) == top[:1]
    breakdown = await store.manifests.breakdown(run.repository_id)
    assert list(breakdown.skipped.items()) == [("binary", 2), ("failed", 1)]
    assert sum(each.files for each in breakdown.languages) == 6
    folders = "/".join(["a" * 100] * 5)
    await store.manifests.record(run, run.repository_id, [indexed(f"{folders}/{'b' * 300}.py")])
    assert [each[0] for each in await entries(store, run.repository_id, folders)] == [f"{'b' * 300}.py"]

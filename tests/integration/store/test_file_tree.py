"""The files of a repository by folder, as its page shows them."""

from __future__ import annotations

from reposync.store.file_tree import folder, skip_counts
from tests.integration.store.conftest import Store
from tests.integration.store.test_manifest import indexed, skipped


async def entries(store: Store, version: str, path: str = "", limit: int = 100) -> list[tuple[object, ...]]:
    found = await folder(store.database, version, path, limit)
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


async def test_a_long_path_has_its_own_name(store: Store) -> None:
    run = await store.running()
    folders = "/".join(["a" * 100] * 5)
    await store.manifests.record(run, run.repository_id, [indexed(f"{folders}/{'b' * 300}.py")])

    assert [each[0] for each in await entries(store, run.repository_id, folders)] == [f"{'b' * 300}.py"]


async def test_reasons_for_files_that_are_not_indexed_are_counted(store: Store) -> None:
    run = await store.running()
    rows = [skipped("a.png"), skipped("b.png"), skipped("c.lock", reason="lock_file"), indexed("d.py")]
    await store.manifests.record(run, run.repository_id, rows)

    assert await skip_counts(store.database, run.repository_id) == {"binary": 2, "lock_file": 1}

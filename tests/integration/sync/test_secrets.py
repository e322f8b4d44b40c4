"""What holds a secret is masked before it is hashed, embedded or stored."""

import random

import pytest

from reposync.finding import count_masks
from reposync.sync.content_pool import ContentPool
from tests.fixtures.canaries import PROVIDERS
from tests.fixtures.world import World, comparable

TOKEN = PROVIDERS["gitlab"](random.Random(1))
CODE = f'def connect():\n    token = "{TOKEN}"\n    return open_session(token)\n'.encode()
PLAIN = b"def answer():\n    return 42\n"


def texts(points: dict) -> list[str]:
    return sorted(point["payload"]["page_content"] for point in points.values())


async def test_a_secret_reaches_neither_the_embedding_server_nor_the_index(world: World):
    notebook = b'{"cells": [{"cell_type": "code", "source": ["token = \\"%s\\""]}], "nbformat": 4}' % TOKEN.encode()
    world.repository.commit(
        {"a.py": CODE, "b.ipynb": notebook, "c.txt": f"key: {TOKEN}\n".encode("utf-16"), "d.py": PLAIN}
    )
    await world.completed()
    stored = texts(await world.points())
    assert len(stored) == 4
    assert TOKEN not in "".join(stored) + "".join(world.embeddings.inputs)
    assert sum(map(count_masks, stored)) == 3
    assert await world.indexed() == await world.expected()


async def test_a_first_sync_finds_nothing_that_it_has_to_purge(world: World):
    world.repository.commit({"a.py": CODE, "b.py": PLAIN, "package-lock.json": b"{}\n", "logo.png": b"\x89PNG\0"})
    await world.completed()
    assert "purging secrets" not in {each["phase"] for each in world.watched}


async def test_files_with_secrets_are_left_out_on_request(closed_world: World):
    closed_world.configure(more="secrets: {action: skip}")
    async with closed_world.opened() as world:
        world.repository.commit({"a.py": CODE, "b.py": PLAIN})
        run = await world.completed()
        assert set(await world.indexed()) == {"b.py"}
        assert run.files_skipped == 1
        assert TOKEN not in "".join(world.embeddings.inputs)


async def test_a_path_with_a_secret_is_left_out(world: World):
    world.repository.commit({f"keys/{TOKEN}.txt": b"nothing\n", "b.py": PLAIN})
    await world.completed()
    assert set(await world.indexed()) == {"b.py"}


@pytest.mark.parametrize("policy", ["{action: warn}", "{action: off, generic: off}", '{allow: ["*.py"]}'])
async def test_what_is_only_reported_or_allowed_is_stored_as_it_is(closed_world: World, policy: str):
    closed_world.configure(more=f"secrets: {policy}")
    async with closed_world.opened() as world:
        world.repository.commit({"a.py": CODE})
        await world.completed()
        assert texts(await world.points()) == [CODE.decode()]


async def test_a_file_that_is_allowed_later_has_the_points_that_it_would_have_had(closed_world: World):
    closed_world.repository.commit({"a.py": CODE, "b.py": PLAIN})
    closed_world.configure(more="secrets: {action: off, generic: off}")
    async with closed_world.opened() as world:
        await world.completed()
        former = comparable(await world.points())
    for policy in ("{}", '{allow: ["a.py"]}'):
        closed_world.configure(more=f"secrets: {policy}")
        closed_world.embeddings.forget()
        async with closed_world.opened() as world:
            await world.completed()
            now = comparable(await world.points())
            assert (now == former) is (policy != "{}")
            assert len(world.embeddings.inputs) == 1


async def test_nothing_is_indexed_without_rules(closed_world: World, tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "no-folder").write_text("")
    monkeypatch.setenv("KF_RULE_CACHE_DIR", str(tmp_path / "no-folder"))
    pool = closed_world.content = ContentPool(1)
    try:
        async with closed_world.opened() as world:
            world.repository.commit({"a.py": CODE})
            run = await world.sync()
            assert (run.status, run.error_code) == ("failed", "SECRET_RULES_UNAVAILABLE")
            assert "The rules for secrets cannot be loaded" in run.error_message
            assert await world.points() == {}
    finally:
        pool.close()


async def test_findings_say_where_and_since_when_and_never_what(world: World):
    world.repository.commit({"a.py": CODE})
    await world.completed()
    first = world.repository.git("rev-parse", "main").decode().strip()
    world.repository.commit({"a.py": None, "moved/a.py": b"\n" + CODE, "b.py": b'api_key = "tR4nkZq81LmXw02bYc7d"\n'})
    await world.completed()
    second = world.repository.git("rev-parse", "main").decode().strip()
    found = [(row.path, row.line, row.rule, row.action, row.first_commit) for _, row in await findings(world)]
    assert found == [
        ("b.py", 1, "named-secret", "warn", second),
        ("moved/a.py", 3, "gitlab-pat", "mask", first),
    ]
    assert TOKEN not in repr(await findings(world))
    world.repository.commit({"moved/a.py": PLAIN, "b.py": None})
    await world.completed()
    assert await findings(world) == []


async def test_a_run_without_changed_files_asks_for_no_findings_and_scans_nothing(world: World):
    world.repository.commit({"a.py": CODE})
    await world.completed()
    before = await findings(world)
    assert (await world.completed()).files_processed == 0
    assert await findings(world) == before


async def test_a_rule_that_hits_many_files_is_a_notice_of_the_run(world: World):
    world.repository.commit({f"{number}.py": CODE for number in range(3)} | {"b.py": PLAIN})
    run = await world.completed()
    assert "Secrets are masked in 3 of 4 files" in run.error_message


async def findings(world: World) -> list:
    return await world.app.findings.page(None, None, 100)


OFF = "secrets: {action: off, generic: off}"


async def test_rules_that_come_later_mask_what_is_indexed_and_embed_only_that(closed_world: World):
    files = {f"{number}.py": f"def plain_{number}():\n    return {number}\n".encode() for number in range(9)}
    long = b"".join(b"def filler_%d():\n    return %d\n" % (number, number) for number in range(30))
    closed_world.repository.commit({**files, "a.py": long + CODE + long, "b.ipynb": PLAIN})
    closed_world.configure(more=OFF)
    async with closed_world.opened() as world:
        await world.completed()
        assert TOKEN in "".join(texts(await world.points()))
        before = await world.points()
    closed_world.embeddings.forget()
    closed_world.configure()
    async with closed_world.opened() as world:
        blobs = world.repository.path / "objects"
        run = await world.completed()
        after = await world.points()
        assert blobs.exists()
        assert TOKEN not in "".join(texts(after)) + "".join(world.embeddings.inputs)
        hit = {key for key in before if before[key]["payload"] != after[key]["payload"]}
        assert before.keys() == after.keys()
        assert len(world.embeddings.inputs) == run.chunks_embedded == len(hit) >= 1
        assert run.files_processed == 0
        assert "rules none -> " in run.error_message and "1 file of 11 masked" in run.error_message
        assert [row.path for _, row in await findings(world)] == ["a.py"]
        assert (await world.completed()).error_message is None
        masked = comparable(after)
        run = await world.completed(full=True)
        assert comparable(await world.points()) == masked


async def test_a_source_that_does_not_answer_keeps_no_secrets_in_the_index(closed_world: World):
    closed_world.repository.commit({"a.py": CODE, "b.py": PLAIN})
    closed_world.configure(more=OFF)
    async with closed_world.opened() as world:
        await world.completed()
    closed_world.configure()
    away = closed_world.repository.path.rename(closed_world.folder / "away.git")
    async with closed_world.opened() as world:
        assert (await world.sync()).status == "failed"
        assert TOKEN not in "".join(texts(await world.points()))
        away.rename(closed_world.repository.path)
        run = await world.completed()
        assert run.files_processed == 0
        assert await world.indexed() == await world.expected()


async def test_a_path_with_a_secret_is_removed_by_rules_that_come_later(closed_world: World):
    closed_world.repository.commit({f"{TOKEN}.py": PLAIN, "b.py": PLAIN})
    closed_world.configure(more=OFF)
    async with closed_world.opened() as world:
        await world.completed()
    closed_world.configure()
    async with closed_world.opened() as world:
        await world.completed()
        assert set(await world.indexed()) == {"b.py"}
        assert (await world.completed()).files_processed == 0

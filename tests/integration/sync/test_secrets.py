"""What holds a secret is masked before it is hashed, embedded or stored."""

import random
import string

import pytest

from reposync.app.verification import Verification
from reposync.finding import count_masks
from reposync.operations.runs import detail
from reposync.store.run import Run
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


async def shown_of(world: World, run: Run) -> str:
    """All that the database shows of a repository and a run."""
    row = await world.app.repositories.get("project")
    (version,) = await world.app.versions.of(row.id)
    shown = [
        await world.app.manifests.load(version.id),
        await world.app.manifests.folder(version.id, "keys", 100),
        await world.app.history.problems(run.id, limit=100),
        await world.app.history.get(run.id),
        await findings(world),
    ]
    return repr(shown)


def database(world: World) -> bytes:
    return b"".join(path.read_bytes() for path in (world.folder / "state").rglob("*") if path.is_file())


async def test_a_path_with_a_secret_is_left_out_and_shown_with_a_mask(world: World):
    others = [PROVIDERS["stripe"](random.Random(seed)) for seed in range(2)]
    world.repository.commit(
        {f"keys/{TOKEN}.txt": b"nothing\n", "b.py": PLAIN, f"keys/{TOKEN}.png": b"\x89PNG\0"}
        | {f"keys/{other}/a.py": PLAIN for other in others}
    )
    run = await world.completed()
    assert set(await world.indexed()) == {"b.py"}
    problems = {problem.path for problem in await world.app.history.problems(run.id, limit=100)}
    assert len(problems) == 4 and all("···" in path for path in problems)
    shown = await shown_of(world, run)
    assert "keys/[gitlab-pat" in shown and "its path holds a secret" in shown
    assert not [secret for secret in (TOKEN, *others) if secret in shown or secret.encode() in database(world)]
    found = [(row.line, row.action) for _, row in await findings(world)]
    assert found == [(0, "mask")] * 4
    run = await world.completed()
    assert (run.files_skipped, run.files_processed) == (0, 0)
    world.repository.commit({"b.py": None})
    assert (await world.completed()).files_skipped == 0
    world.repository.commit({f"keys/{TOKEN}.txt": None})
    await world.completed()
    assert len(await findings(world)) == 3


async def test_a_path_with_a_secret_is_shown_if_its_files_are_allowed(closed_world: World):
    closed_world.configure(more='secrets: {allow: ["keys/**"]}')
    async with closed_world.opened() as world:
        world.repository.commit({f"keys/{TOKEN}.txt": b"nothing\n"})
        await world.completed()
        assert set(await world.indexed()) == {f"keys/{TOKEN}.txt"}


async def test_a_path_with_a_secret_that_is_only_reported_stays_and_is_found(closed_world: World):
    closed_world.configure(more="secrets: {action: warn}")
    async with closed_world.opened() as world:
        world.repository.commit({f"{TOKEN}.py": PLAIN, "b.py": PLAIN})
        await world.completed()
        assert len(await world.indexed()) == 2
        world.repository.commit({f"{TOKEN}.py": CODE})
        await world.completed()
        assert [(row.line, row.action) for _, row in await findings(world)] == [(0, "warn"), (2, "warn")]


async def test_a_verdict_about_paths_with_secrets_is_exact(world: World):
    world.repository.commit({f"{TOKEN}.py": PLAIN, "b.py": PLAIN})
    await world.completed()
    verdict = await Verification(world.app, against_source=True).verify("project")
    assert verdict.exact, verdict


async def test_rules_that_would_leave_out_most_files_wait_for_a_person_and_name_a_masked_path(closed_world: World):
    closed_world.repository.commit({f"{TOKEN}/{number}.py": PLAIN for number in range(30)} | {"b.py": PLAIN})
    closed_world.configure(more=OFF)
    async with closed_world.opened() as world:
        await world.completed()
    closed_world.configure()
    async with closed_world.opened() as world:
        told = [str((await world.preview()).blocked), str((run := await world.sync()).error_message)]
        assert run.status == "blocked"
        for message in told:
            assert "30 hold secrets now ([gitlab-pat" in message and TOKEN not in message
        assert len(await world.indexed()) == 31
        away = world.repository.path.rename(world.folder / "away.git")
        run = await world.sync()
        assert "waits for a person" in run.error_message and TOKEN not in run.error_message
        assert len(await world.indexed()) == 31
        away.rename(world.repository.path)
        assert (await world.sync(approved=True)).status == "completed"
        assert set(await world.indexed()) == {"b.py"}


async def test_a_message_of_a_source_that_quotes_a_secret_is_masked(closed_world: World):
    # Of a kind that the redaction of logs does not know.
    secret = f"lin_api_{''.join(random.Random(1).choices(string.ascii_letters + string.digits, k=40))}"
    closed_world.edit_registry("{name: project, ", f'{{name: project, branch: "{secret}", ')
    async with closed_world.opened() as world:
        world.repository.commit({"a.py": PLAIN})
        run = await world.sync()
        assert run.error_code == "BRANCH_NOT_FOUND"
        assert secret not in run.error_message and "···" in run.error_message


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
    runs = [await world.completed()]
    first = world.repository.git("rev-parse", "main").decode().strip()
    world.repository.commit({"a.py": None, "moved/a.py": b"\n" + CODE, "b.py": b'api_key = "tR4nkZq81LmXw02bYc7d"\n'})
    runs.append(await world.completed())
    second = world.repository.git("rev-parse", "main").decode().strip()
    found = [(row.path, row.line, row.rule, row.action, row.first_commit) for _, row in await findings(world)]
    assert found == [
        ("b.py", 1, "named-secret", "warn", second),
        ("moved/a.py", 3, "gitlab-pat", "mask", first),
    ]
    assert TOKEN not in repr(await findings(world))
    assert [(await detail(world.app, run)).new_secrets for run in runs] == [1, 1]
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


async def test_a_masked_text_that_the_model_refuses_is_not_stored_without_its_vector(closed_world: World):
    closed_world.repository.commit({"a.py": CODE, "b.py": PLAIN})
    closed_world.configure(more=OFF)
    async with closed_world.opened() as world:
        await world.completed()
    closed_world.configure()
    closed_world.embeddings.refuses = "[gitlab-pat"
    async with closed_world.opened() as world:
        for _ in range(2):
            run = await world.completed()
            assert (run.error_code, run.files_failed) == ("FILES_FAILED", 1)
            assert [problem.path for problem in await world.app.history.problems(run.id)] == ["a.py"]
            assert set(await world.indexed()) == {"b.py"}
        closed_world.embeddings.refuses = None
        await world.completed()
        assert await world.indexed() == await world.expected()
        assert all(point["vector"]["dense"] for point in (await world.points()).values())


async def test_a_definition_whose_name_holds_a_secret_is_masked_by_rules_that_come_later(closed_world: World):
    name = PROVIDERS["npm"](random.Random(1))
    body = "".join(f"    value_{number} = {number} + 1\n" for number in range(40))
    closed_world.repository.commit({"a.py": f"def {name}():\n{body}\n\ndef other():\n    return {name}()\n".encode()})
    closed_world.configure(more=OFF)
    async with closed_world.opened() as world:
        await world.completed()
        assert name in repr(await world.metadata())
    closed_world.configure()
    async with closed_world.opened() as world:
        await world.completed()
        assert name not in repr(await world.points())
        assert "other" in repr(await world.metadata())


@pytest.mark.parametrize("is_away", [False, True], ids=["with its source", "without its source"])
async def test_a_path_with_a_secret_is_masked_by_rules_that_come_later(closed_world: World, is_away: bool):
    closed_world.repository.commit({f"{TOKEN}.py": PLAIN, f"keys/{TOKEN}.png": b"\x89PNG\0", "b.py": PLAIN})
    closed_world.configure(more=OFF)
    async with closed_world.opened() as world:
        first = await world.completed()
        assert TOKEN in await shown_of(world, first)
    closed_world.configure()
    path = closed_world.repository.path
    away = path.rename(closed_world.folder / "away.git") if is_away else path
    async with closed_world.opened() as world:
        run = await world.sync()
        assert run.status == ("failed" if is_away else "completed")
        assert set(await world.indexed()) == {"b.py"}
        assert TOKEN not in await shown_of(world, first) + await shown_of(world, run)
        assert [(row.line, row.action) for _, row in await findings(world)] == [(0, "mask")] * 2
        away.rename(path)
        run = await world.completed()
        assert (run.files_processed, run.files_deleted) == (0, 0)
        assert len(await findings(world)) == 2

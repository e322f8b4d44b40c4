"""After a completed run the index holds precisely the indexable files of one commit."""

from tests.fixtures.repositories import Executable, GitRepository, Submodule, Symlink
from tests.fixtures.world import World, comparable

CODE = b"def answer():\n    return 42\n"


def module(name: str, lines: int = 60) -> bytes:
    return "".join(f"def {name}_{number}(value):\n    return value + {number}\n" for number in range(lines)).encode()


async def test_an_unchanged_repository_embeds_and_stores_nothing(world: World):
    world.repository.commit({"a.py": CODE})
    await world.completed()
    before = await world.points()
    world.embeddings.forget()
    run = await world.completed()
    assert (run.files_processed, run.chunks_embedded, run.chunks_reused) == (0, 0, 0)
    assert world.embeddings.log == []
    assert await world.points() == before


async def test_a_changed_file_is_replaced_and_the_others_stay(world: World):
    world.repository.commit({"a.py": CODE, "b.py": module("b")})
    await world.completed()
    untouched = {key for key, point in (await world.points()).items() if point["payload"]["metadata"]["path"] == "b.py"}
    world.repository.commit({"a.py": b"def answer():\n    return 43\n"})
    world.embeddings.forget()
    run = await world.completed()
    assert run.files_processed == 1
    assert world.embeddings.inputs == ["def answer():\n    return 43\n"]
    assert await world.indexed() == await world.expected()
    assert untouched <= (await world.points()).keys()


async def test_a_renamed_file_costs_no_embedding_call_and_its_old_path_is_gone(world: World):
    world.repository.commit({"old.py": module("same"), "other.py": CODE})
    await world.completed()
    world.embeddings.forget()
    world.repository.commit({"old.py": None, "moved/new.py": module("same")})
    run = await world.completed()
    assert world.embeddings.log == []
    assert run.chunks_reused > 1
    assert run.files_deleted == 1
    assert await world.indexed() == await world.expected()


async def test_identical_files_are_embedded_once_and_both_are_found(world: World):
    world.repository.commit({"a.py": CODE, "copy/a.py": CODE})
    run = await world.completed()
    assert set(await world.indexed()) == {"a.py", "copy/a.py"}
    assert (run.chunks_embedded, run.chunks_reused) == (1, 1)


async def test_skipped_files_are_not_read_and_not_reported_again(world: World):
    world.repository.commit({"data.bin2": b"\x00\x01" * 50, "empty.py": b"", "yarn.lock": b"x 1\n", "a.py": CODE})
    assert (await world.completed()).files_skipped == 3
    world.repository.commit({"b.py": b"print(1)\n"})
    run = await world.completed()
    assert (run.files_processed, run.files_skipped) == (1, 0)
    assert world.watched[-1]["bytes_read"] == len(b"print(1)\n")


async def test_a_symlink_is_never_followed_and_a_dangling_one_hurts_nobody(world: World, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("the launch code is 0000")
    world.repository.commit(
        {"link.txt": Symlink(str(secret)), "dangling": Symlink("nowhere"), "loop": Symlink("loop"), "a.py": CODE}
    )
    run = await world.completed()
    assert set(await world.indexed()) == {"a.py"}
    assert all("launch code" not in point["payload"]["page_content"] for point in (await world.points()).values())
    assert await world.app.history.count_problems(run.id) == {"symlink": 3}


async def test_hidden_files_are_indexed_and_blank_and_binary_files_are_not(world: World):
    world.repository.commit({"blank.py": b" \n\n\t\n", "data.py": b"\x00\x01\x02\xff" * 100})
    run = await world.completed()
    assert (run.files_processed, await world.points()) == (0, {}), "nothing of it can be indexed"
    assert await world.app.history.count_problems(run.id) == {"empty": 1, "binary": 1}
    world.repository.commit({".github/workflows/ci.yml": b"on: push\n", ".hidden": b"text\n"})
    await world.completed()
    assert set(await world.indexed()) == {".github/workflows/ci.yml", ".hidden"}


async def test_a_submodule_and_an_lfs_pointer_are_skipped_with_their_reason(world: World):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4" * 64 + b"\nsize 12345\n"
    world.repository.commit(
        {"sub": Submodule("1" * 40), "model.py": pointer, "run.sh": Executable(b"#!/bin/sh\necho\n")}
    )
    run = await world.completed()
    assert set(await world.indexed()) == {"run.sh"}
    assert await world.app.history.count_problems(run.id) == {"submodule": 1, "lfs_pointer": 1}


async def test_hostile_and_unusual_paths_are_only_names(world: World):
    names = [
        b"-rf",
        b"sp ace/na\nme.py",
        b"caf\xe9.py",
        b"caf\xe8.py",
        "ümlaut/日本.py".encode(),
        b"a%2Fb.py",
        b'quo"te.py',
        b"\\.py",
    ]
    world.repository.commit({name: b"value = %d\n" % number for number, name in enumerate(names)})
    await world.completed()
    assert len(await world.indexed()) == len(names)
    world.repository.commit(dict.fromkeys(names[:-1]))
    await world.completed()
    assert len(await world.indexed()) == 1


async def test_a_full_sync_reads_everything_and_embeds_nothing_that_is_known(world: World):
    world.repository.commit({"a.py": CODE, "b.py": module("b")})
    await world.completed()
    before = comparable(await world.points())
    world.embeddings.forget()
    run = await world.completed(full=True)
    assert run.files_processed == 2
    assert world.embeddings.log == []
    assert comparable(await world.points()) == before


async def test_a_plan_reports_what_a_sync_would_do_and_writes_nothing(world: World):
    world.repository.commit({"a.py": CODE, "b.py": module("b"), "c.py": CODE + b"# c\n"})
    registered = await world.app.repositories.list()
    plan = await world.preview()
    assert (plan.files_to_store, plan.files_unchanged, plan.commit_before) == (3, 0, None)
    assert plan.chunks_to_embed == plan.chunks
    assert await world.app.repositories.list() == registered
    assert await world.app.history.runs() == []
    assert world.embeddings.log == [] or all(each.inputs == 1 for each in world.embeddings.log)
    run = await world.completed()
    assert run.chunks_embedded == plan.chunks_to_embed

    world.repository.commit({"a.py": None, "c.py": None, "d.py": CODE, "b.py": module("b", 61)})
    plan = await world.preview()
    before = await world.points()
    assert (plan.files_to_store, plan.files_to_delete, plan.files_renamed) == (2, 2, 1)
    assert await world.points() == before
    run = await world.completed()
    assert (run.chunks_embedded, run.files_deleted) == (plan.chunks_to_embed, 2)
    assert (await world.preview()).files_to_read == 0


async def test_two_repositories_of_one_collection_leave_each_other_alone(closed_world: World, tmp_path):
    other = GitRepository.create(tmp_path / "other.git")
    other.commit({"a.py": CODE, "x.py": module("x")})
    closed_world.configure(extra=f'  - {{name: other, path: "{other.path}"}}\n')
    closed_world.repository.commit({"a.py": CODE})
    async with closed_world.opened() as world:
        await world.completed("project")
        world.embeddings.forget()
        await world.completed("other")
        assert sum(each.inputs for each in world.embeddings.log) < 12, "a.py is known from the other repository"
        other.commit({"a.py": None})
        await world.completed("other")
        assert {(each["repository"], each["path"]) for each in await world.metadata()} == {
            ("project", "a.py"),
            ("other", "x.py"),
        }

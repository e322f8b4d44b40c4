"""What the last commits of a branch changed, from every kind of source, and what merge requests say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reposync.errors import SourceError
from reposync.sources.history import state_before
from reposync.sources.port import MAX_CHANGES, MAX_TITLE_CHARS, PastCommit, Source
from tests.fixtures.repositories import GitRepository, Submodule
from tests.integration.sources.conftest import Site

Open = Callable[..., Source]


@pytest.fixture(params=["local", "remote", "gitlab"])
def source(request: pytest.FixtureRequest, site: Site) -> Open:
    opened: Open = getattr(site, request.param)
    return opened


def changed(commit: PastCommit) -> list[tuple[str | None, str | None]]:
    assert commit.changes is not None
    return [
        (each.before and each.before.path.decode(), each.after and each.after.path.decode()) for each in commit.changes
    ]


@pytest.mark.parametrize("has_filters", [True, False])
async def test_each_commit_has_its_words_and_the_files_that_it_changed(
    site: Site, source: Open, has_filters: bool
) -> None:
    site.project.allow_filter = has_filters
    first = site.repository.commit({"a.py": b"1\n", "deep/er/b.py": b"2\n", "deep/c.py": b"3\n"})
    second = site.repository.commit(
        {"deep/er/b.py": b"4\n", "deep/c.py": None, "moved/c.py": b"3\n", "lib": Submodule("1" * 40)},
        message="Count the words\n\nand more",
        author="Grace <grace@example.com>",
    )
    third = site.repository.commit({"deep": b"a file now\n"})

    newest, middle, oldest = await source().history(third, 100)

    assert [each.sha for each in (newest, middle, oldest)] == [third, second, first]
    assert (oldest.parents, oldest.changes) == ((), None)
    assert (middle.subject, middle.message) == ("Count the words", "Count the words\n\nand more")
    assert (middle.author, middle.email, middle.parents) == ("Grace", "grace@example.com", (first,))
    assert set(changed(middle)) == {(None, "lib"), ("deep/c.py", "moved/c.py"), ("deep/er/b.py", "deep/er/b.py")}
    assert set(changed(newest)) == {(None, "deep"), ("deep/er/b.py", None)}


async def test_no_more_commits_are_read_than_asked_for(site: Site, source: Open) -> None:
    shas = [site.repository.commit({"a.py": b"%d\n" % number}) for number in range(5)]

    found = await source().history(shas[-1], 3)

    assert [each.sha for each in found] == shas[:1:-1]
    assert all(each.changes is not None for each in found[:2])


async def test_a_commit_that_is_not_there_has_no_history(site: Site, source: Open) -> None:
    site.repository.commit({"a.py": b"1\n"})
    assert await source().history("7" * 40, 10) == []


async def test_a_merge_is_compared_with_the_branch_that_it_was_merged_into(site: Site, source: Open) -> None:
    site.repository.commit({"a.py": b"1\n"})
    ours = site.repository.commit({"ours.py": b"1\n"})
    site.repository.force(ours, branch="topic")
    theirs = [site.repository.commit({f"theirs_{number}.py": b"1\n"}, branch="topic") for number in range(2)]
    ours = site.repository.commit({"ours.py": b"2\n"})
    merge = site.repository.commit({"theirs_0.py": b"1\n", "theirs_1.py": b"1\n"}, parents=[ours, theirs[-1]])

    found = await source().history(merge, 100)

    assert len(found) == 6
    assert found[0].parents == (ours, theirs[-1])
    assert changed(found[0]) == [(None, "theirs_0.py"), (None, "theirs_1.py")]


async def test_a_shallow_clone_ends_where_its_commits_do(site: Site, source: Open) -> None:
    shas = [site.repository.commit({"a.py": b"%d\n" % number}) for number in range(4)]
    (site.repository.path / "shallow").write_text(f"{shas[2]}\n")
    for sha in shas[:2]:
        site.repository.git("config", "gc.reflogExpire", "now")
        object_file = site.repository.path / "objects" / sha[:2] / sha[2:]
        object_file.unlink(missing_ok=True)

    found = await source().history(shas[-1], 100)

    assert [each.sha for each in found] == [shas[3], shas[2]]
    assert found[1].changes is None


async def test_hostile_commits_are_bounded(site: Site, source: Open) -> None:
    site.repository.commit({"a.py": b"1\n"})
    site.repository.commit(
        {f"{number}.py": b"1\n" for number in range(300)}, message=b"\xff\x00\x1b[31m" + b"x" * 100_000
    )
    deep = site.repository.commit({"/".join(["d"] * 400) + "/e.py": b"1\n"}, message=b"")

    newest, many, _ = await source().history(deep, 10)

    assert newest.subject == ""
    assert many.has_more and many.changes is not None and len(many.changes) <= MAX_CHANGES + 1
    assert len(many.subject) <= MAX_TITLE_CHARS and len(many.message) <= 10_000
    assert changed(newest) == [(None, "/".join(["d"] * 400) + "/e.py")]


# The state before the questions ---------------------------------------------------------------------------------------


async def history_of(site: Site, tip: str) -> list[PastCommit]:
    return await site.local().history(tip, 100)


async def test_the_state_before_a_line_of_commits_is_the_parent_of_the_oldest(site: Site) -> None:
    shas = [site.repository.commit({"a.py": b"%d\n" % number}) for number in range(5)]
    commits = await history_of(site, shas[-1])

    assert state_before(commits, shas[-1], {shas[4], shas[2]}) == shas[1]
    assert state_before(commits, shas[-1], {shas[0]}) is None
    assert state_before(commits[:2], shas[-1], {shas[4]}) == shas[3]
    assert state_before(commits[:2], shas[-1], {shas[3]}) == shas[2], "which was not read, but is known"


async def test_the_state_before_a_merged_change_is_the_branch_before_the_merge(site: Site) -> None:
    """The topic is older than what the branch had by then, whose changes stay in."""
    repository: GitRepository = site.repository
    root = repository.commit({"a.py": b"1\n"})
    topic = repository.commit({"topic.py": b"1\n"}, branch="topic", parents=[root])
    main = [repository.commit({"a.py": b"%d\n" % number}) for number in (2, 3)]
    merge = repository.commit({"topic.py": b"1\n"}, parents=[main[-1], topic])
    tip = repository.commit({"a.py": b"4\n"})

    commits = await history_of(site, tip)

    assert state_before(commits, tip, {topic}) == main[-1]
    assert state_before(commits, tip, {merge, tip}) == main[-1]
    assert state_before(commits, tip, {tip}) == merge
    assert state_before(commits, tip, {main[0], topic}) == root


# Merge requests -------------------------------------------------------------------------------------------------------


async def test_the_last_merged_requests_are_read_a_hundred_at_a_time(site: Site) -> None:
    site.repository.commit({"a.py": b"1\n"})
    site.project.merged = [
        {"title": f"Title {number}\nmore", "description": "why", "merge_commit_sha": f"{number:040x}"}
        for number in range(250)
    ]
    site.server.log.forget()

    found = await site.gitlab().merged_requests(150)

    assert len(site.server.log.matching("merge_requests")) == 2
    assert len(found) == 150
    assert (found[0].number, found[0].title, found[0].commit) == (250, "Title 249", f"{249:040x}")
    assert (found[0].description, found[0].author) == ("why", "ada")


async def test_a_request_counts_if_one_commit_brought_all_of_it(site: Site) -> None:
    site.repository.commit({"a.py": b"1\n"})
    site.project.merged = [
        {"title": "squashed", "squash_commit_sha": "a" * 40},
        {"title": "fast forward", "sha": "b" * 40},
        {"title": 5, "merge_commit_sha": "c" * 40, "author": None, "description": ["not a text"]},
        {"title": "x", "merge_commit_sha": "../../etc"},
        {"title": "x", "merge_commit_sha": "d" * 40, "iid": "one"},
    ]

    found = await site.gitlab().merged_requests(10)

    assert [(each.title, each.commit, each.description) for each in found] == [
        ("", "c" * 40, ""),
        ("squashed", "a" * 40, ""),
    ]


async def test_a_project_without_merge_requests_has_none(site: Site) -> None:
    site.repository.commit({"a.py": b"1\n"})
    site.project.merge_requests_disabled = True
    assert await site.gitlab().merged_requests(10) == []
    assert await site.local().merged_requests(10) == []


async def test_without_git_the_history_of_a_project_cannot_be_read(site: Site) -> None:
    tip = site.repository.commit({"a.py": b"1\n"})
    site.project.git_refused = 403
    with pytest.raises(SourceError, match=r"read by git, which .* refuses") as caught:
        await site.gitlab().history(tip, 10)
    assert "read_repository" in str(caught.value.remedy)

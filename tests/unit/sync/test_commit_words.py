"""Which files each commit is said to have changed, by the paths that they have now."""

from reposync.sources.port import FileChange, PastCommit, TreeEntry
from reposync.sync.commit_words import said_of_files


def change(before: str | None, after: str | None) -> FileChange:
    entries = [None if path is None else TreeEntry(path.encode(), 0o100644, "1" * 40) for path in (before, after)]
    return FileChange(*entries)


def commit(
    subject: str, *changes: FileChange, parents: int = 1, has_more: bool = False, author: str = "Ada"
) -> PastCommit:
    names = tuple(f"{number}" * 40 for number in range(parents))
    return PastCommit("a" * 40, names, author, "ada@example.com", subject, subject, changes, has_more)


def test_a_file_that_was_moved_later_is_meant_by_its_path_of_today() -> None:
    newest_first = [
        commit("Move it again", change("lib/c.py", "lib/d.py")),
        commit("Move it", change("b.py", "lib/c.py")),
        commit("Write it", change(None, "b.py"), change("a.py", "a.py")),
    ]
    assert list(said_of_files(newest_first)) == [
        ("Move it again", ["lib/d.py"]),
        ("Move it", ["lib/d.py"]),
        ("Write it", ["lib/d.py", "a.py"]),
    ]


def test_a_file_with_the_former_name_of_one_that_was_moved_before_is_itself() -> None:
    newest_first = [
        commit("Write a new one", change(None, "a.py")),
        commit("Move the old one", change("a.py", "b.py")),
        commit("Write the old one", change(None, "a.py")),
    ]
    assert list(said_of_files(newest_first))[::2] == [("Write a new one", ["a.py"]), ("Write the old one", ["b.py"])]


def test_merges_bots_reverts_formats_and_commits_that_are_not_known_to_the_end_say_nothing() -> None:
    unknown = PastCommit("b" * 40, ("c" * 40,), "Ada", "ada@example.com", "Unknown", "Unknown", None)
    merge = commit("Merge a branch", change("a.py", "a.py"), parents=2)
    huge = commit("Everything", change("a.py", "a.py"), has_more=True)
    deleted = commit("Remove it", change("a.py", None))
    dull = [
        commit(subject, change("a.py", "a.py"), author=author)
        for subject, author in (
            ('Revert "Count the words"', "Ada"),
            ("Bump click from 8.1 to 8.2 (#1234)", "Ada"),
            ("Run black", "Ada"),
            ("Count the words", "renovate[bot]"),
        )
    ]
    assert list(said_of_files([unknown, merge, huge, deleted, *dull])) == [("Remove it", [])]

"""`reposync grep`, beside a daemon and without one."""

from __future__ import annotations

from tests.acceptance.conftest import Person
from tests.acceptance.test_search_beside_a_daemon import indexed, pod
from tests.fixtures.pods import Pod
from tests.fixtures.repositories import GitRepository

__all__ = ["indexed", "pod"]


def test_lines_are_printed_as_grep_prints_them_with_the_repository(indexed: Person, repository: GitRepository):
    repository.commit(
        {"odd name.txt": b"first\n\tred \x1b[31m and \xe2\x80\xae back\n", "more.py": b"x = remove(1)\nremove\n"}
    )
    indexed.types("sync")

    assert indexed.types("grep", "red .* back").stdout == "app:odd name.txt:2: \tred \\x1b[31m and \\u202e back\n"
    assert indexed.types("grep", "remove").stdout.splitlines() == [
        "app:more.py:1: x = remove(1)",
        "app:more.py:2: remove",
        "app:sessions.py:1: def remove_expired_sessions(): pass",
    ]
    assert indexed.types("grep", "-F", "remove(", "--path", "*.py").stdout == "app:more.py:1: x = remove(1)\n"
    assert indexed.types("grep", "-i", "REMOVE$", "--repository", "app").stdout == "app:more.py:2: remove\n"
    assert indexed.types("grep", r"1\)\nrem").stdout == "app:more.py:1: x = remove(1)\napp:more.py:2: remove\n"
    nothing = indexed.types("grep", "no such text")
    assert (nothing.stdout, nothing.stderr) == ("", "Nothing found.\n")
    some = indexed.types("grep", "remove", "--limit", "1")
    assert len(some.stdout.splitlines()) == 1
    assert "raise the limit" in some.stderr


def test_a_bad_pattern_and_an_unknown_repository_are_errors(indexed: Person):
    assert "missing ): foo(, at character 1" in indexed.types("grep", "foo(", exit_code=2).stderr
    assert "ap" in indexed.types("grep", "foo", "--repository", "ap", exit_code=3).stderr


def test_the_daemon_answers_and_the_command_prints_the_same_as_without_one(indexed: Person, pod: Pod):
    words = ("grep", "-i", "REMOVE", "--repository", "app", "--language", "python")
    beside = indexed.types(*words).stdout, indexed.asks(*words)
    assert "at character 1" in indexed.types("grep", "foo(", exit_code=2).stderr
    assert beside[0] == "app:sessions.py:1: def remove_expired_sessions(): pass\n"

    assert pod.terminate() == 0
    assert (indexed.types(*words).stdout, indexed.asks(*words)) == beside

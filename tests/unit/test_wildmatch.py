"""Gitignore patterns mean what they mean to git, in time that grows with the pattern and the path alone."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reposync.wildmatch import PathPatterns, check_pattern

WORDS = [
    "a", "src", "*", "**", "*.py", "?", "test[^s]*", "build[!0-9]*", "[!a]*", "[a-c]", "[[:alpha:]]?", "*a*b", "***",
]  # fmt: skip
HOSTILE = st.text("ab*?[]!^-\\:./ ä", min_size=1, max_size=6)
BODIES = st.lists(st.sampled_from(WORDS) | HOSTILE, min_size=1, max_size=4).map("/".join)
HEADS, TAILS = st.sampled_from(["", "/", "**/"]), st.sampled_from(["", "/", "/*", "/**"])
PATTERNS = st.builds("{}{}{}".format, HEADS, BODIES, TAILS)
SEGMENTS = st.sampled_from(["a", "b", "src", "a.py", "tests", "build", "build7", "ab", "-", "]"]) | st.text(
    "ab.x-^]![ä ", min_size=1, max_size=4
)
PATHS = st.lists(SEGMENTS, min_size=1, max_size=5).map("/".join)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def ignored_by_git(repository: Path, lines: Sequence[Sequence[str]], paths: Sequence[str]) -> list[list[bool]]:
    """One row for each gitignore file, with an answer for each path; one process of git for all of them."""
    for number, content in enumerate(lines):
        (repository / str(number)).mkdir(exist_ok=True)
        (repository / str(number) / ".gitignore").write_text("\n".join(content) + "\n", encoding="latin-1")
    asked = [f"{number}/{path}" for number in range(len(lines)) for path in paths]
    answer = subprocess.run(
        ["git", "-C", str(repository), "check-ignore", "--no-index", "-z", "--stdin"],
        input="".join(f"{path}\0" for path in asked).encode("latin-1"),
        capture_output=True,
        check=False,  # it ends with 1 if it ignores nothing
    )
    assert answer.stderr == b""
    ignored = set(answer.stdout.decode("latin-1").split("\0"))
    return [[f"{number}/{path}" in ignored for path in paths] for number in range(len(lines))]


def is_plain(path: str) -> bool:
    return not any(part in (".", "..") for part in path.split("/"))


def is_as_documented(pattern: str) -> bool:
    """Git takes `a**/b` for `a*/**/b`, against its own documentation."""
    return re.match(r"[^*?\[\\]*[^*?\[\\/]\*\*", pattern.removeprefix("/")) is None


@given(patterns=st.lists(PATTERNS.filter(is_as_documented), max_size=12), paths=st.lists(PATHS, max_size=12))
@example(["test[^s]*", "build[!0-9]*", "log[^a-z]*"], ["test/models.py", "build/main.c", "src/log/writer.go", "tests"])
@example(["a/*", "/a/*/b", "src/", "/src", "src/**/", "a/**/b"], ["a/b/c", "a/b", "src/a/b", "src", "b/src/a"])
@example(["[a/b]", "a\\/b", "**\\/b", "\\/b", "a[", "a\\", "*\\/"], ["a", "a/b", "b", "c/b"])
@example(["a\\ ", "a  ", "a\\\\  ", "\\!a", "!a", "#a", "\\#a"], ["a", "a ", "a\\", "!a", "#a"])
def test_what_git_ignores_is_matched_and_nothing_else(repository: Path, patterns: list[str], paths: list[str]) -> None:
    paths = [path for path in paths if is_plain(path)]
    # A negative pattern alone ignores nothing.
    expected = ignored_by_git(repository, [[pattern] for pattern in patterns], paths)

    found = [[PathPatterns([pattern]).match(path) is not None for path in paths] for pattern in patterns]

    assert found == expected


@given(
    lines=st.lists(st.tuples(st.sampled_from(["", "!"]), PATTERNS.filter(is_as_documented)), max_size=8),
    paths=st.lists(PATHS, max_size=8),
)
def test_the_last_line_that_git_matches_decides(
    repository: Path, lines: list[tuple[str, str]], paths: list[str]
) -> None:
    lines = [(sign, pattern) for sign, pattern in lines if pattern[0] not in "!#"]
    paths = [path for path in paths if is_plain(path)]
    matched = ignored_by_git(repository, [[pattern] for _, pattern in lines], paths)
    together = PathPatterns([sign + pattern for sign, pattern in lines])

    for column, path in enumerate(paths):
        deciding = [number for number in range(len(lines)) if matched[number][column]][-1:]
        expected = [number for number in deciding if lines[number][0] != "!"]
        number = together.match(path)

        assert ([] if number is None else [number]) == expected


def test_every_byte_is_in_the_classes_in_which_git_has_it(repository: Path) -> None:
    names = ["alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper"]
    names.append("xdigit")
    ranges = ["[!-~]", "[!a]", "[\\]-a]", "[]-a]", "[a-]", "[^]]", "?", "[z-ab]", "[a-c-e]", "[+--]", "[a&&b]", "[[a]"]
    patterns = [f"[[:{name}:]]" for name in names] + ranges
    paths = [chr(code) for code in range(1, 256) if chr(code) not in "./"]
    expected = ignored_by_git(repository, [[pattern] for pattern in patterns], paths)

    assert [[PathPatterns([each]).match(path) is not None for path in paths] for each in patterns] == expected


def test_thousands_of_lines_are_numbered_as_they_were_given() -> None:
    lines = [f"name-{number}" for number in range(3_000)]
    many = PathPatterns(lines)

    assert [many.match(f"src/name-{number}/a.py") for number in (0, 1, 1_500, 2_999)] == [0, 1, 1_500, 2_999]
    assert many.match("src/name-3000/a.py") is None


def test_a_later_line_brings_back_files_of_a_folder_that_an_earlier_one_takes_out() -> None:
    some = PathPatterns(["old/", "!old/keep/**"])

    assert some.match("old/a.py") == 0
    assert some.match("old/keep/a.py") is None


@pytest.mark.parametrize("pattern", ["", "/", "!", "!/", " ", "#a", "[a", "[[:none:]]", "a\\"])
def test_what_can_match_nothing_is_reported(pattern: str) -> None:
    with pytest.raises(ValueError, match="it"):
        check_pattern(pattern)

    assert PathPatterns([pattern]).match("a") is None


@pytest.mark.parametrize(
    "pattern",
    ["*" + "a*" * 200 + "b", "**/a/" * 100 + "b", "[!b]*" * 100 + "b", "**/" + "*/" * 300 + "b/**/c",
     "*" + "a" * 900 + "b*", "**/" + "*a*/" * 200 + "b/**/c", "*a*a*a*a*a*a*a*a*b/"],
)  # fmt: skip
def test_no_pattern_takes_longer_than_its_length_times_the_path(pattern: str) -> None:
    """Matching that backtracks would outlast the universe here: the suite's time-out is the assertion."""
    for path in ("a" * 4000, "a/" * 2000 + "a", "a" * 2000 + "/b" * 1000):
        assert PathPatterns([pattern]).match(path) is None

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.content.attributes import Attributes


def vendored(text: str | bytes, path: str | bytes) -> bool | None:
    return Attributes.parse({b"": text}).vendored(path.encode() if isinstance(path, str) else path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a.c linguist-vendored", True),
        ("a.c linguist-vendored=true", True),
        ("a.c -linguist-vendored", False),
        ("a.c linguist-vendored=false", False),
        ("a.c !linguist-vendored", None),
        ("a.c\ttext  linguist-vendored\teol=lf\r", True),
        ("  a.c linguist-vendored", True),
        ("# a.c linguist-vendored", None),
        ("!a.c linguist-vendored", None),
        ("[attr]linguist-vendored x", None),
        ("a.c linguist-vendored-not", None),
        ("b.c linguist-vendored", None),
        ('"a.c" linguist-vendored', True),
        ('"\\141.c" linguist-vendored', True),
        ('"a.c linguist-vendored', None),
    ],
)
def test_a_line_sets_unsets_or_says_nothing(line: str, expected: bool | None) -> None:
    assert vendored(line, "a.c") is expected


def test_the_deeper_file_wins_and_in_a_file_the_later_line() -> None:
    attributes = Attributes.parse(
        {
            b"": "* linguist-generated\n*.c -linguist-generated\n",
            b"lib": "*.c linguist-generated\n",
            b"lib/ours": "*.c !linguist-generated\n",
        }
    )
    assert attributes.generated(b"a.h") is True
    assert attributes.generated(b"a.c") is False
    assert attributes.generated(b"other/a.c") is False
    assert attributes.generated(b"lib/a.c") is True
    assert attributes.generated(b"lib/a.h") is True
    assert attributes.generated(b"lib/ours/a.c") is None
    assert attributes.vendored(b"a.h") is None


def test_only_the_lines_that_matter_are_kept_and_mean_the_same() -> None:
    text = "*.c text\n# on linguist-vendored\nlib/** text linguist-vendored\r\n* -text\n*.x linguist-language=X\n"
    kept = Attributes.relevant(text)
    assert kept == "lib/** text linguist-vendored\n"
    assert Attributes.relevant(kept) == kept
    assert Attributes.relevant("* text=auto\n") == ""
    assert (
        Attributes.relevant(b"caf\xe9/*.c linguist-vendored\nlib/*.c linguist-vendored\n")
        == "lib/*.c linguist-vendored\n"
    )


# What git 2.39 reads otherwise than it documents is left out: `x**`, a slash in brackets, two slashes.
TOKENS = [
    "a", "b", "ab", "*", "?", "/", "**/", "/**", "/**/", "[ab]", "[!a]", "[a-c]", "[]a]", "[[:alpha:]]", "\\*", ".c",
]  # fmt: skip
NAMES = ["a", "b", "ab", "aab", "a.c", "b.c", "*", "]", "c"]
states = st.sampled_from([f"{sign}linguist-vendored" for sign in ("", "-", "!")]) | st.sampled_from(
    [f"linguist-vendored={value}" for value in ("true", "false")]
)
patterns = (
    st.lists(st.sampled_from(TOKENS), min_size=1, max_size=6)
    .map("".join)
    .map(lambda pattern: re.sub("/{2,}", "/", pattern))
    .map(lambda pattern: re.sub(r"(?<=[^/])\*{2,}|\*{2,}(?=[^/])", "*", pattern))
)
PATHS = sorted({f"{folder}{name}" for folder in ("", "a/", "a/b/", "b/", "ab/b/c/", "a/a/b/a/") for name in NAMES})


@given(st.lists(st.tuples(patterns, states), max_size=8), st.lists(st.tuples(patterns, states), max_size=4))
def test_answers_are_those_of_git_check_attr(
    repository: Path, above: list[tuple[str, str]], below: list[tuple[str, str]]
) -> None:
    files = {
        folder: "".join(f"{pattern} {state}\n" for pattern, state in lines)
        for folder, lines in ((b"", above), (b"a", below))
    }
    for folder, text in files.items():
        (repository / folder.decode() / ".gitattributes").write_text(text)
    output = subprocess.run(
        ["git", "-C", str(repository), "check-attr", "-z", "--stdin", "linguist-vendored"],
        input="\0".join(PATHS).encode(),
        capture_output=True,
        check=True,
    ).stdout.decode()
    fields = output.split("\0")
    states = {"set": True, "true": True, "unset": False, "false": False, "unspecified": None}
    expected = {path: states[value] for path, value in zip(fields[::3], fields[2::3], strict=False)}
    attributes = Attributes.parse(files)
    assert {path: attributes.vendored(path.encode()) for path in PATHS} == expected


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "a").mkdir()
    return tmp_path


@given(st.dictionaries(st.binary(max_size=8), st.binary(max_size=300), max_size=3), st.binary(max_size=60))
def test_no_attributes_file_and_no_path_raises(files: dict[bytes, bytes], path: bytes) -> None:
    attributes = Attributes.parse({folder: text + b"\n* linguist-vendored" for folder, text in files.items()})
    assert attributes.vendored(path) in {True, False, None}
    assert attributes.generated(path) in {True, False, None}


@pytest.mark.parametrize(
    "pattern",
    ["*a" * 60 + "b", "**/*a*a*a*a*a*a*a/" * 20 + "b", "a*" * 60 + "/**/" + "a*" * 60 + "b", "**/a/" * 40 + "b"],
)
def test_a_pattern_made_to_take_for_ever_does_not(pattern: str) -> None:
    """Matching that backtracks would outlast the universe here: the suite's time-out is the assertion."""
    for path in (b"a" * 4000, b"a/" * 2000 + b"a", b"aa/aaaa/" * 400):
        assert vendored(f"{pattern} linguist-vendored", path) is None


def test_a_file_of_too_many_lines_is_read_as_far_as_the_limit() -> None:
    lines = [f"f{n}.c linguist-vendored" for n in range(10_000)]
    kept = Attributes.relevant("\n".join(lines))
    assert len(kept.split("\n")) < 4000
    assert vendored(kept, "f9999.c") is True
    assert vendored("\n".join(f"*{line}" for line in lines), "f9999.c") is None

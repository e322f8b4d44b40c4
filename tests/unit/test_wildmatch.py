"""Filters of paths, as readers of the search write them: gitignore's meaning, in time that does not run away."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from reposync.wildmatch import Glob

SEGMENTS = st.text("ab*?.", min_size=1, max_size=5) | st.sampled_from(["**", "a", "src", "*.py", "[ab]", "[!a]*"])
PATTERNS = st.builds(
    lambda parts, head, tail: head + "/".join(parts) + tail,
    st.lists(SEGMENTS, min_size=1, max_size=4),
    st.sampled_from(["", "/"]),
    st.sampled_from(["", "/"]),
)
PATHS = st.lists(st.text("ab.", min_size=1, max_size=4) | st.sampled_from(["src", "a.py"]), min_size=1, max_size=5)


@given(pattern=PATTERNS, parts=PATHS)
@example("src/", ["src", "a.py"])
@example("/a", ["b", "a"])
@example("a/**/b", ["a", "b", "a"])
@settings(max_examples=300, deadline=None)
def test_what_gitignore_matches_is_matched_and_nothing_else(pattern: str, parts: list[str]) -> None:
    # pathspec takes `**/` at the end for `**`; to git it is the folders in there.
    if any(part in (".", "..") for part in parts) or "***" in pattern or pattern.endswith("**/"):
        return
    path = "/".join(parts)

    assert Glob(pattern).match_file(path) == GitIgnoreSpec.from_lines([pattern]).match_file(path)


@pytest.mark.parametrize("pattern", ["", "/", "!", "!/", " ", "#a", "[a", "a\\"])
def test_what_can_match_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="it"):
        Glob(pattern)


@pytest.mark.parametrize("pattern", ["*" + "a*" * 200 + "b", "**/a/" * 100 + "b", "[!b]*" * 100 + "b"])
def test_no_pattern_takes_longer_than_its_length_times_the_path(pattern: str) -> None:
    # Anything that goes back over a star takes longer than the universe has, and the time limit of the suite ends it.
    for path in ("a" * 4000, "a/" * 2000 + "a", "a" * 2000 + "/b" * 1000):
        Glob(pattern).match_file(path)

"""The tokens by which Qdrant narrows a search by a glob: they never exclude a path that matches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.vectors.path_tokens import MAX_PATH_CHARS, MAX_SEGMENTS, glob_tokens, path_tokens
from reposync.wildmatch import PathPatterns

# Few characters, so that patterns and paths often have to do with each other.
CHARACTERS = "ab.-! #*?[]\\:^"
plain = st.text("ab.", min_size=1, max_size=4)
names = (plain | st.text(CHARACTERS, min_size=1, max_size=4)).filter(lambda name: name not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=5).map("/".join)


def one_of(*values: str) -> st.SearchStrategy[str]:
    return st.sampled_from(values)


@st.composite
def globs_for(draw: st.DrawFn, path: str) -> str:
    """A pattern that likely matches the path: some of its segments, some of them in part as wildcards."""
    segments = path.split("/")
    start = draw(st.integers(0, len(segments) - 1))
    pattern = draw(one_of("", "", "/") if start == 0 else one_of("**/", "", "*/" * start))
    for number, segment in enumerate(segments[start : draw(st.integers(start + 1, len(segments)))]):
        if number:
            pattern += draw(one_of("/", "/", "/", "\\/", "/**/"))
        cut = draw(st.integers(0, len(segment)))
        match draw(st.integers(0, 5)):
            case 0:
                pattern += draw(one_of("*", "**", "?*", "***"))
            case 1 if cut:
                pattern += segment[: cut - 1] + draw(one_of("?", "*", "**", "[!/]", "[^]/[]", "[a/b.]")) + segment[cut:]
            case 2:
                pattern += draw(one_of("*", "**")) + segment[cut:]
            case 3:
                pattern += "".join(draw(one_of(f"\\{each}", f"[\\{each}]", f"[/\\{each}b]")) for each in segment)
            case _:
                pattern += segment
    return pattern + draw(one_of("", "", "/", "/**", "/*", "  "))


def has_all_tokens(glob: str, path: str) -> bool:
    return not path_tokens(path) or set(glob_tokens(glob)) <= set(path_tokens(path))


@given(st.data())
def test_no_path_that_matches_lacks_a_token_of_the_pattern(data: st.DataObject) -> None:
    path = data.draw(paths)
    for glob in data.draw(st.lists(globs_for(path), min_size=20, max_size=20)):
        assert PathPatterns([glob]).match(path) is None or has_all_tokens(glob, path), (glob, path)


@pytest.mark.parametrize(
    "path", ["x" * MAX_PATH_CHARS, "/".join("x" * MAX_SEGMENTS), "a.b/" * (MAX_SEGMENTS - 1) + "c"]
)
def test_a_path_at_the_limits_has_tokens_and_a_longer_one_has_none(path: str) -> None:
    assert 0 < len(path_tokens(path)) <= 127 and sum(map(len, path_tokens(path))) <= 10_000
    assert path_tokens("x" * (MAX_PATH_CHARS + 1)) == path_tokens("/".join("x" * (MAX_SEGMENTS + 1))) == []


@pytest.mark.parametrize(
    ("path", "tokens"),
    [
        ("src/a/setup.py", ["/src/", "/src/a/", "src", "a", "setup.py", "*.py"]),
        ("a/a/a", ["/a/", "/a/a/", "a"]),
        ("conf.d/x.tar.gz", ["/conf.d/", "conf.d", "x.tar.gz", "*.d", "*.gz", "*.tar.gz"]),
        (".gitignore", [".gitignore", "*.gitignore"]),
        ("a.b.c.d", ["a.b.c.d", "*.d", "*.c.d"]),
    ],
)
def test_a_path_has_its_folders_names_and_extensions(path: str, tokens: list[str]) -> None:
    assert path_tokens(path) == tokens
    assert all(PathPatterns([token]).match(path) is not None for token in tokens)


@pytest.mark.parametrize(
    ("glob", "tokens"),
    [
        ("src/**", ["/src/"]),
        ("src/*.py", ["/src/", "*.py"]),
        ("src/a", ["/src/", "a"]),
        ("*.test.ts", ["*.test.ts"]),
        ("docs/", ["docs"]),
        ("/Makefile", ["Makefile"]),
        ("**/docs/**", ["docs"]),
        ("src/**/test_*.py", ["/src/", "*.py"]),
        (r"app/\[slug\]/page.tsx", ["/app/", "page.tsx"]),
        ("src/[a/b]/*.[ch]", ["/src/"]),
        ("test_[0-9]*.py", ["*.py"]),
    ],
)
def test_a_pattern_is_narrowed_to_the_tokens_that_its_paths_have(glob: str, tokens: list[str]) -> None:
    assert glob_tokens(glob) == tokens


@pytest.mark.parametrize("glob", ["*", "**", "/", "test_*", "Dockerfile.*", r"\#x", "[a]", "*.[ch]"])
def test_a_pattern_without_such_tokens_narrows_nothing(glob: str) -> None:
    assert glob_tokens(glob) == []


def test_a_pattern_of_many_names_is_narrowed_by_some_of_them() -> None:
    assert len(glob_tokens("**/" + "/".join(f"a{number}" for number in range(1000)))) == 4

"""Hits of one file that share lines are joined, and no line is shown twice."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from reposync.content.chunking import chunk_spans, chunk_text
from reposync.vectors.overlaps import joined, passages
from reposync.vectors.port import Candidate, SearchHit

URL = "https://gitlab.example.com/p/-/blob/abc/a.py#L{}-{}"
TEXT = "".join(f"line {number}\n" for number in range(1, 101))


def hits_of(text: str, size: int = 200, overlap: int = 40, path: str = "a.py") -> list[SearchHit]:
    chunks = chunk_text(text, None, size, overlap)
    return [
        SearchHit(
            repository="r",
            path=path,
            start_line=chunk.start_line,
            end_line=chunk.end_line,
            language=None,
            score=1.0 - number / 100,
            text=chunk.text,
            url=URL.format(chunk.start_line, chunk.end_line),
            commit="c",
        )
        for number, chunk in enumerate(chunks)
    ]


def candidates(hits: Sequence[SearchHit]) -> list[Candidate]:
    return [
        Candidate(id(hit), hit.version, "r", hit.path, hit.start_line, hit.end_line, None, [], hit.score, {})
        for hit in hits
    ]


def shown(hits: Sequence[SearchHit]) -> list[SearchHit]:
    return [each.shown({id(hit): hit for hit in hits}) for each in passages(candidates(hits))]


def test_two_neighbours_become_one_hit_at_the_place_of_the_better_one() -> None:
    first, second, *_ = hits_of(TEXT)
    far = hits_of("elsewhere\n", path="b.py")
    (one, other) = shown([second, *far, first])
    assert (one.start_line, one.end_line, one.score) == (first.start_line, second.end_line, second.score)
    assert one.text == "".join(TEXT.splitlines(keepends=True)[: second.end_line])
    assert one.url == URL.format(first.start_line, second.end_line)
    assert other.path == "b.py"


def test_a_neighbour_that_was_deleted_meanwhile_is_left_out() -> None:
    first, second, *_ = hits_of(TEXT)
    (found,) = [each.shown({id(second): second}) for each in passages(candidates([second, first]))]
    assert (found.start_line, found.text) == (second.start_line, second.text)


def test_a_third_neighbour_shows_only_lines_of_its_own() -> None:
    first, second, third, *_ = hits_of(TEXT)
    one, other = shown([first, second, third])
    assert (one.end_line, other.start_line, other.end_line) == (second.end_line, second.end_line + 1, third.end_line)
    assert other.text == "".join(TEXT.splitlines(keepends=True)[second.end_line : third.end_line])
    assert other.url == URL.format(second.end_line + 1, third.end_line)


def test_chunks_of_different_files_and_versions_stay_apart() -> None:
    first = hits_of(TEXT)[0]
    found = [first, replace(first, path="b.py"), replace(first, version="of another repository")]
    assert shown(found) == found


lines = st.lists(st.sampled_from(["", "x", "x = 1", "a\x0bb", "long " * 30, "}", "\r"]), min_size=1, max_size=60)


@given(lines, st.randoms(use_true_random=False), st.sampled_from([(100, 30), (64, 0), (200, 199)]))
def test_whatever_chunks_are_found_every_text_is_the_lines_that_it_names(
    parts: list[str], random: object, sizes: tuple[int, int]
) -> None:
    text = "\n".join(parts)
    found = hits_of(text, *sizes)
    random.shuffle(found)  # type: ignore[attr-defined]
    results = shown(found[: len(found) // 2 + 1])
    file = text.split("\n")
    for hit in results:
        assert hit.text in text
        of_lines = "\n".join(file[hit.start_line - 1 : hit.end_line])
        assert hit.text.rstrip("\n") in of_lines
    # A line that a cut goes through is in two chunks; all others are shown once.
    ends = sorted((hit.start_line, hit.end_line) for hit in results)
    assert all(one[1] < other[0] for one, other in pairwise(ends))


@given(st.lists(st.sampled_from(["", "x", "x = 1", "y = 2"]), min_size=20, max_size=99))
def test_joining_neighbours_gives_the_text_back(parts: list[str]) -> None:
    text = "\n".join(parts)
    spans = chunk_spans(text, None, 60, 25)
    for first, second in pairwise(spans):
        shared = text.count("\n", 0, first[1] - 1) - text.count("\n", 0, second[0]) + 1
        if shared > 0:
            assert joined(text[slice(*first)], text[slice(*second)], shared) == text[first[0] : second[1]]

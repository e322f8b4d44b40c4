"""The public retrieval benchmarks: what their figures mean, and what is reported about data that cannot be read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.public_index import Missing, State
from benchmarks.public_questions import (
    Answer,
    FileQuestion,
    InvalidData,
    LineAnswer,
    LineQuestion,
    Repository,
    read_file_questions,
    read_line_questions,
    read_repositories,
    score_files,
    score_lines,
)
from tests.fixtures.repositories import GitRepository

SECOND = 1 / math.log2(3)
REPOSITORY = {
    "name": "chi",
    "language": "go",
    "url": "https://github.com/go-chi/chi.git",
    "revision": "0" * 40,
    "benchmark_root": None,
}
QUESTION = {"query": "how routes are matched", "category": "semantic", "relevant": ["tree.go"], "secondary": []}


@dataclass(frozen=True)
class Hit:
    path: str
    start_line: int = 1
    end_line: int = 100


def question(*relevant: str | dict[str, object], secondary: tuple[str, ...] = ()) -> FileQuestion:
    return FileQuestion.model_validate(QUESTION | {"relevant": relevant, "secondary": secondary})


def ndcg(asked: FileQuestion, *hits: Hit) -> tuple[float, float]:
    """By files and by hits."""
    scores = score_files(asked, hits, hits)
    return scores.files, scores.hits


def folder_with(tmp_path: Path, **files: object) -> Path:
    (tmp_path / "annotations").mkdir()
    for name, content in files.items():
        file = tmp_path / {"repositories": "repositories.json", "lines": "octocode-lines.csv"}.get(
            name, f"annotations/{name}.json"
        )
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    return tmp_path


# Files -------------------------------------------------------------------------------------------------------------


def test_a_perfect_order_is_one_and_nothing_found_is_zero():
    asked = question("tree.go", secondary=("mux.go",))

    assert ndcg(asked, Hit("src/tree.go"), Hit("src/mux.go")) == (1, 1)
    assert ndcg(asked, Hit("src/mux.go"), Hit("src/tree.go")) == (1, 1)
    assert ndcg(asked, Hit("src/other.go")) == (0, 0)
    assert ndcg(asked) == (0, 0)


def test_several_hits_in_one_file_are_one_file_but_take_up_places_among_the_hits():
    hits = [Hit("mux.go"), Hit("mux.go", 90, 200), Hit("tree.go")]

    assert ndcg(question("tree.go"), *hits) == (pytest.approx(SECOND), pytest.approx(0.5))


def test_only_the_first_ten_files_and_the_first_ten_hits_count():
    others = [Hit(f"{number}.go") for number in range(10)]

    assert ndcg(question("tree.go"), *others, Hit("tree.go")) == (0, 0)
    assert ndcg(question("tree.go"), *others[1:], Hit("tree.go")) == (pytest.approx(1 / math.log2(11)),) * 2


def test_an_answer_is_found_by_the_end_of_its_path_in_whole_names():
    assert Answer(path="tree.go").is_file("src/tree.go")
    assert Answer(path="src/tree.go").is_file("tree.go")
    assert not Answer(path="tree.go").is_file("src/subtree.go")


def test_lines_of_an_answer_count_for_hits_and_not_for_files():
    asked = question({"path": "tree.go", "start_line": 10, "end_line": 20})

    assert ndcg(asked, Hit("tree.go", 30, 40), Hit("tree.go", 20, 29)) == (1, pytest.approx(SECOND))


# Lines -------------------------------------------------------------------------------------------------------------


def test_lines_are_scored_as_in_the_example_of_the_authors():
    asked = LineQuestion("q", (LineAnswer("a.rs", 10, 50, 2), LineAnswer("b.rs", 20, 30, 1)))

    scores = score_lines(asked, [Hit("c.rs", 1, 10), Hit("a.rs", 30, 60), Hit("b.rs", 25, 35)])

    assert (scores.hit, scores.mrr) == (1, 0.5)
    assert scores.ndcg == pytest.approx((2 * SECOND + 0.5) / (2 + SECOND))


def test_lines_are_right_if_they_overlap_and_only_in_the_same_file():
    asked = LineQuestion("q", (LineAnswer("src/a.rs", 10, 20, 2),))

    for lines, is_right in [((1, 9), 0), ((1, 10), 1), ((20, 30), 1), ((21, 30), 0)]:
        assert score_lines(asked, [Hit("src/a.rs", *lines)]).hit == is_right
    assert score_lines(asked, [Hit("a.rs", 10, 20)]).hit == 0
    assert score_lines(asked, [*[Hit("b.rs")] * 10, Hit("src/a.rs")]).mrr == 0


# Repositories --------------------------------------------------------------------------------------------------------


def test_a_repository_without_the_pinned_commit_is_left_out_or_taken_at_its_head(tmp_path: Path):
    given, state = GitRepository.create(tmp_path / "go-chi" / "chi"), State(tmp_path / "state")
    state.folder.mkdir()
    head = given.commit({"tree.go": b"package chi\n"})
    there = Repository.model_validate(REPOSITORY | {"revision": head})
    gone = Repository.model_validate(REPOSITORY)

    assert state.pin(there, tmp_path, newest=False) == head
    assert state.pin(gone, tmp_path, newest=True) == head
    with pytest.raises(Missing, match="go-chi/chi has no commit 000000000000"):
        state.pin(gone, tmp_path, newest=False)
    with pytest.raises(Missing, match="no folder go-chi/chi"):
        state.pin(there, tmp_path / "elsewhere", newest=True)


# Reading -----------------------------------------------------------------------------------------------------------


def test_questions_are_read_with_whatever_else_their_authors_noted(tmp_path: Path):
    lines = "query,result1,result2,result3\nwhere are chunks cut,src/a.rs:41-61:2,src/b c.rs:1-1:1,\n"
    folder = folder_with(tmp_path, repositories=[REPOSITORY], chi=[QUESTION | {"seed": 1}], lines=lines)

    (repository,) = read_repositories(folder)
    (asked,) = read_file_questions(folder, repository)
    (asked_lines,) = read_line_questions(folder)

    assert repository.folder == "go-chi/chi"
    assert asked.answers == (Answer(path="tree.go"),)
    assert asked_lines.answers == (LineAnswer("src/a.rs", 41, 61, 2), LineAnswer("src/b c.rs", 1, 1, 1))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"chi": '[\n{"query": }]'}, "chi.json, line 2: not JSON: Expecting value."),
        ({"chi": [QUESTION, {"query": "x"}]}, "chi.json, item 2, category: Field required."),
        ({"chi": [QUESTION | {"relevant": ["a", {}]}]}, "chi.json, item 1, relevant, item 2, path: Field required."),
        ({"lines": ""}, "line 1: the header must be"),
        ({"lines": "query,result1\n"}, "has no questions."),
        ({"lines": "query,result1\nhow,a.rs:41-61:2\nhow,a.rs:41:2\n"}, "line 3: not a query and spans such as"),
    ],
)
def test_bad_data_is_reported_with_its_place(tmp_path: Path, files: dict[str, object], message: str):
    folder = folder_with(tmp_path, repositories=[REPOSITORY], **files)
    (repository,) = read_repositories(folder)

    with pytest.raises(InvalidData) as error:
        read_line_questions(folder) if "lines" in files else read_file_questions(folder, repository)

    assert message in str(error.value)

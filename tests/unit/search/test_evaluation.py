"""What a file of questions may say, and what its figures mean."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.config.document import RegistryErrors
from reposync.errors import ConfigError, IndexUnavailable
from reposync.search.evaluation import (
    MAX_BYTES,
    MAX_QUESTIONS,
    Found,
    Question,
    found_of,
    gains,
    load_questions,
    ranks_of,
    read_questions,
    scores,
)
from reposync.search.measuring import figures
from reposync.vectors.port import SearchHit

ONE = "- {question: where are sessions removed, repository: payments, path: src/sessions.py, %s}\n"
QUESTION = Question(question="where are sessions removed", repository="payments", path="src/sessions.py")
IN_LINES = QUESTION.model_copy(update={"lines": (10, 24)})


def hit(path: str, lines: tuple[int, int] = (1, 100), repository: str = "payments") -> SearchHit:
    return SearchHit(repository, path, *lines, None, 0.5, "", None, commit="0" * 40)


# The file ----------------------------------------------------------------------------------------------------------


def test_a_question_has_a_file_that_answers_it_and_perhaps_lines():
    text = """\
- question: >
    where are expired
    sessions removed
  repository: payments
  path: src/sessions.py
- {question: "what is ${HOME} here", repository: payments, path: README.md, lines: [3, 3]}
"""

    first, second = read_questions(text.encode(), "questions.yaml")

    assert (first.question, first.path, first.lines) == ("where are expired sessions removed", "src/sessions.py", None)
    assert (second.question, second.lines) == ("what is ${HOME} here", (3, 3))


MISTAKES = {
    "an empty file": ("", "1:1: the file must be a list of questions"),
    "an empty list": ("[]\n", "1:1: the file must be a list of questions"),
    "a text instead of a question": ("- where\n", "1:3: [0] must be a mapping of keys to values"),
    "an unknown key": (ONE % "line: 5", "1:87: unknown key `line` in [0]; did you mean `lines`?"),
    "an empty question": ("- {question: ' ', repository: b, path: c}\n", "1:14: [0].question must not be empty"),
    "a question that no search takes": (
        f"- {{question: {'word ' * 401}, repository: b, path: c}}\n",
        "1:14: [0]: The query has 2,004 characters; at most 2,000",
    ),
    "a path from the root": ("- {question: a, repository: b, path: /c}\n", "1:38: [0].path must start at the repo"),
    "no answer": ("- {question: a, repository: b}\n", "1:3: [0] must have either `path` or `paths`"),
    "two kinds of answers": (ONE % "paths: [a]", "1:3: [0] must have either `path` or `paths`"),
    "no file among several": ("- {question: a, repository: b, paths: []}\n", "1:3: [0] must have either `path` or"),
    "a path upwards among several": (
        "- {question: a, repository: b, paths: [c, ../d]}\n",
        "1:43: [0].paths[1] must start at the repo",
    ),
    "lines of several files": (
        "- {question: a, repository: b, paths: [c, d], lines: [1, 2]}\n",
        "1:3: `lines` are those of `path`",
    ),
    "one line": (ONE % "lines: 5", "1:94: [0].lines must be the first and the last line"),
    "lines in the wrong order": (ONE % "lines: [6, 5]", "1:94: [0].lines must be the first and the last line"),
    "lines that are no numbers": (ONE % "lines: [a, true]", "1:94: [0].lines must be the first and the last line"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_place(mistake: str):
    text, expected = MISTAKES[mistake]

    with pytest.raises(RegistryErrors) as caught:
        read_questions(text.encode(), "questions.yaml")

    (problem,) = caught.value.problems
    assert str(problem).startswith(f"questions.yaml:{expected}")
    assert caught.value.exit_code == 2


def test_all_mistakes_of_a_file_are_reported_at_once():
    with pytest.raises(RegistryErrors) as caught:
        read_questions((ONE % "lines: 5" + ONE % "pth: b").encode(), "questions.yaml")
    assert [problem.line for problem in caught.value.problems] == [1, 2]


def test_a_file_that_is_too_large_is_refused():
    with pytest.raises(RegistryErrors, match=f"1:1: the file is larger than {MAX_BYTES:,} bytes"):
        read_questions(b"#" * (MAX_BYTES + 1), "questions.yaml")
    with pytest.raises(RegistryErrors, match=r"questions.yaml:10001:3: more than 10,000 questions"):
        read_questions(b"- {}\n" * (MAX_QUESTIONS + 1), "questions.yaml")


def test_a_file_that_cannot_be_read_is_an_error_in_words(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"There is no questions file .*gone\.yaml"):
        load_questions(tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_questions(tmp_path)


# The rank of an answer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "hits", "expected"),
    [
        (QUESTION, [], None),
        (QUESTION, [hit("README.md"), hit("src/sessions.py")], 2),
        (QUESTION, [hit("src/sessions.py", repository="web"), hit("src/sessions.py")], 2),
        (QUESTION, [hit("README.md")] * 9 + [hit("src/sessions.py")], 10),
        (QUESTION, [hit("README.md")] * 10 + [hit("src/sessions.py")], None),
        (IN_LINES, [hit("src/sessions.py", (1, 9)), hit("src/sessions.py", (24, 50))], 2),
        (IN_LINES, [hit("src/sessions.py", (25, 50)), hit("src/sessions.py", (1, 10))], 2),
        (IN_LINES, [hit("README.md", (10, 24))], None),
    ],
)
def test_the_rank_is_that_of_the_first_hit_in_the_file_and_in_its_lines(
    question: Question, hits: Sequence[SearchHit], expected: int | None
):
    assert found_of(question, hits).rank == expected


# Figures -----------------------------------------------------------------------------------------------------------


def test_the_figures_are_those_computed_by_hand():
    found = scores([Found((1,)), Found((2,)), Found(()), Found((4,))])

    assert (found.questions, found.recall) == (4, {1: 0.25, 5: 0.75, 10: 0.75})
    assert found.mrr == (1 + 1 / 2 + 1 / 4) / 4
    # 1 / log2(3) and 1 / log2(5)
    assert found.ndcg == pytest.approx((1 + 0.6309297536 + 0.4306765581) / 4, abs=1e-9)


SEVERAL = Question(question="a", repository="payments", paths=("src/a.py", "src/b.py", "src/a.py"))


def test_an_answer_of_several_files_is_found_file_by_file():
    hits = [hit("src/b.py"), hit("README.md"), hit("src/b.py", (200, 300)), hit("src/a.py")]

    found = found_of(SEVERAL, hits)

    assert (found.ranks, found.relevant, found.first) == ((1, 4), 2, "src/b.py")
    each = gains(found)
    assert (each.recall, each.mrr) == ((0.5, 1.0, 1.0), 1.0)
    # 1 / log2(2) + 1 / log2(5), of the best 1 / log2(2) + 1 / log2(3)
    assert each.ndcg == pytest.approx((1 + 0.4306765581) / (1 + 0.6309297536), abs=1e-9)


ANSWERS = st.builds(
    lambda ranks, missing: Found(tuple(sorted(ranks)), len(ranks) + missing),
    st.sets(st.integers(1, 10), max_size=6),
    st.integers(0, 30),
).filter(lambda found: found.relevant > 0)


@given(ANSWERS)
def test_every_gain_is_between_0_and_1_and_more_hits_never_lower_recall(found: Found):
    each = gains(found)

    assert all(0 <= value <= 1 + 1e-12 for value in (*each.recall, each.mrr, each.ndcg))
    assert each.recall == tuple(sorted(each.recall))
    assert (each.mrr == 0) == (each.ndcg == 0) == (not found.ranks)
    assert each.mrr >= each.recall[0]


@given(ANSWERS, st.data())
def test_an_answer_that_moves_up_never_lowers_a_figure(found: Found, data: st.DataObject):
    free = [rank for rank in range(1, 11) if rank not in found.ranks]
    if not found.ranks or not free or free[0] > found.ranks[-1]:
        return
    moved = data.draw(st.sampled_from([rank for rank in found.ranks if rank > free[0]]))
    better = found._replace(ranks=tuple(sorted({*found.ranks, free[0]} - {moved})))

    before, after = gains(found), gains(better)

    assert all(now >= was for was, now in zip(before.recall, after.recall, strict=True))
    assert after.mrr >= before.mrr and after.ndcg > before.ndcg


def best(relevant: int) -> Found:
    return Found(tuple(range(1, min(relevant, 10) + 1)), relevant)


@given(st.integers(1, 40))
def test_the_best_order_has_the_full_gain(relevant: int):
    each = gains(best(relevant))
    assert (each.mrr, each.ndcg) == (1, pytest.approx(1))
    assert each.recall[-1] == min(relevant, 10) / relevant


@given(st.lists(ANSWERS, min_size=1, max_size=30), st.randoms())
def test_means_do_not_depend_on_the_order_of_the_questions_and_lie_in_their_intervals(
    answers: list[Found], random: Random
):
    shown = figures(answers)
    mixed = random.sample(answers, len(answers))

    assert figures(answers) == shown, "the same questions have the same intervals"
    assert (scores(mixed).mrr, scores(mixed).ndcg, scores(mixed).recall) == (
        *(scores(answers).mrr, scores(answers).ndcg),
        scores(answers).recall,
    )
    for figure in (*shown.recall.values(), shown.mrr, shown.ndcg):
        assert 0 <= figure.low <= figure.mean + 1e-9 and figure.mean <= figure.high + 1e-9 <= 1 + 1e-6
    assert shown.ndcg.mean == scores(answers).ndcg


def test_the_interval_is_that_of_the_mean():
    """Of 400 questions of which half are answered first, the standard error is 0.025."""
    shown = figures([Found((1,)), Found(())] * 200)
    assert shown.mrr.mean == 0.5
    assert (shown.mrr.low, shown.mrr.high) == (pytest.approx(0.451, abs=0.006), pytest.approx(0.549, abs=0.006))


def test_without_questions_there_are_no_figures():
    for of_none in (scores, figures):
        with pytest.raises(ValueError, match="no questions"):
            of_none([])


# Asking ------------------------------------------------------------------------------------------------------------


def numbered(count: int) -> list[Question]:
    return [
        Question(question=f"what is {number}", repository="payments", path=f"{number}.py") for number in range(count)
    ]


async def test_each_answer_counts_for_its_own_question_and_few_are_searched_at_once():
    questions = numbered(20)
    running, most = 0, 0

    async def ask(question: Question) -> list[SearchHit]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(questions.index(question) % 3):
            await asyncio.sleep(0)
        running -= 1
        return [hit("1.py"), hit(question.path)]

    assert [found.rank for found in await ranks_of(questions, ask)] == [1 if number == 1 else 2 for number in range(20)]
    assert most == 4


async def test_the_first_error_ends_the_evaluation():
    async def ask(question: Question) -> list[SearchHit]:
        raise IndexUnavailable(f"no answer to {question.question}")

    with pytest.raises(IndexUnavailable, match="no answer to what is 0"):
        await ranks_of(numbered(9), ask)

"""What a file of questions may say, and what its figures mean."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from reposync.config.document import RegistryErrors
from reposync.errors import ConfigError, IndexUnavailable
from reposync.search.evaluation import (
    MAX_BYTES,
    MAX_QUESTIONS,
    Question,
    load_questions,
    rank,
    ranks_of,
    read_questions,
    scores,
)
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
    assert rank(question, hits) == expected


# Figures -----------------------------------------------------------------------------------------------------------


def test_the_figures_are_those_computed_by_hand():
    found = scores([1, 2, None, 4])

    assert (found.questions, found.recall) == (4, {1: 0.25, 5: 0.75, 10: 0.75})
    assert found.mrr == (1 + 1 / 2 + 1 / 4) / 4
    # 1 / log2(3) and 1 / log2(5)
    assert found.ndcg == pytest.approx((1 + 0.6309297536 + 0.4306765581) / 4, abs=1e-9)


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

    assert await ranks_of(questions, ask) == [1 if number == 1 else 2 for number in range(20)]
    assert most == 4


async def test_the_first_error_ends_the_evaluation():
    async def ask(question: Question) -> list[SearchHit]:
        raise IndexUnavailable(f"no answer to {question.question}")

    with pytest.raises(IndexUnavailable, match="no answer to what is 0"):
        await ranks_of(numbered(9), ask)

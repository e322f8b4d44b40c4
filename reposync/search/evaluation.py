"""Evaluates search with questions whose answers are known: the questions file, and the metrics."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter, ValidationError, field_validator

from reposync.config import fields
from reposync.config.document import RegistryErrors, read_document
from reposync.config.fields import ConfigModel, InvalidValue
from reposync.config.loading import content_of, validation_problems
from reposync.errors import UsageError, first_error
from reposync.search.documents import Scores
from reposync.search.query import read_query
from reposync.vectors.port import SearchHit

MAX_BYTES = 2_000_000
MAX_QUESTIONS = 10_000
DEPTH = 10
"""How many hits of each search count."""
CUTOFFS = (1, 5, DEPTH)
_AT_ONCE = 4


def _folded(value: Any) -> Any:
    # A question may be written in several lines of YAML.
    return " ".join(value.split()) if isinstance(value, str) else value


def _span(value: Any) -> Any:
    if value is None:
        return None
    is_pair = isinstance(value, list | tuple) and [type(each) for each in value] == [int, int]
    if not is_pair or not 1 <= value[0] <= value[1]:
        raise InvalidValue("must be the first and the last line, counted from 1, such as [10, 24]")
    return tuple(value)


class Question(ConfigModel):
    """A question and the file that answers it; `lines`: the first and the last line of the answer."""

    question: Annotated[fields.Text, BeforeValidator(_folded)]
    repository: fields.Text
    path: fields.Text
    lines: Annotated[tuple[int, int] | None, BeforeValidator(_span)] = None

    @field_validator("question")
    @classmethod
    def _searchable(cls, question: str) -> str:
        try:
            read_query(question)
            return question.strip()
        except UsageError as error:
            raise InvalidValue(error.message, is_sentence=True) from None

    @field_validator("path")
    @classmethod
    def _from_the_top(cls, path: str) -> str:
        # Any other form never equals the path of a hit.
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise InvalidValue("must start at the repository's top and have no empty, . or .. part: src/main.py")
        return path

    def is_answered_by(self, hit: SearchHit) -> bool:
        if (hit.repository, hit.path) != (self.repository, self.path):
            return False
        if self.lines is None:
            return True
        first, last = self.lines
        return hit.start_line <= last and hit.end_line >= first


Search = Callable[[Question], Awaitable[Sequence[SearchHit]]]
"""The hits for a question, best first; `DEPTH` of them are enough."""


# The questions file ------------------------------------------------------------------------------------------------


def load_questions(path: Path) -> tuple[Question, ...]:
    """Raises RegistryErrors with all problems of the file; ConfigError if it cannot be read."""
    return read_questions(content_of(path, "questions file", max_bytes=MAX_BYTES), str(path))


def read_questions(content: bytes, file: str) -> tuple[Question, ...]:
    """The questions of a YAML text. Raises RegistryErrors with all problems, each with its line and column in `file`.

    10,000 questions (1.6 MB) take 13 s: do not call it on an event loop.
    """
    document = read_document(content, file, None, max_bytes=MAX_BYTES)
    problems = list(document.problems)
    if not isinstance(document.data, list) or not document.data:
        message = "the file must be a list of questions, each with `question`, `repository` and `path`"
        raise RegistryErrors([document.problem(document.place_of(()), message), *problems])
    if len(document.data) > MAX_QUESTIONS:
        place = document.values[(MAX_QUESTIONS,)]
        raise RegistryErrors([document.problem(place, f"more than {MAX_QUESTIONS:,} questions")])
    questions: tuple[Question, ...] = ()
    try:
        questions = TypeAdapter(tuple[Question, ...]).validate_python(document.data)
    except ValidationError as error:
        problems += validation_problems(error, document, Question)
    if problems:
        raise RegistryErrors(problems)
    return questions


# Metrics -----------------------------------------------------------------------------------------------------------


async def ranks_of(questions: Sequence[Question], search: Search) -> list[int | None]:
    """The `rank` of each question, in order; few are searched at once. Raises the first error of `search`."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def ranked(question: Question) -> int | None:
        async with slots:
            return rank(question, await search(question))

    try:
        async with asyncio.TaskGroup() as tasks:
            found = [tasks.create_task(ranked(each)) for each in questions]
    except ExceptionGroup as errors:
        raise first_error(errors) from errors
    return [each.result() for each in found]


def rank(question: Question, hits: Sequence[SearchHit]) -> int | None:
    """Rank (from 1) of the first hit that answers the question; None if none of the first 10 does. Further chunks of
    the same file do not count."""
    return next((number for number, hit in enumerate(hits[:DEPTH], 1) if question.is_answered_by(hit)), None)


def scores(ranks: Sequence[int | None]) -> Scores:
    """Each question has one relevant item, the first hit that answers it.

    `recall[k]`: the share of questions that are answered within the first k hits (Manning and others, 2008, 8.4).
    `mrr`: mean reciprocal rank, 1 / rank, cut off at 10 (Voorhees, TREC-8, 1999). `ndcg`: normalised discounted
    cumulative gain at 10 with binary relevance, 1 / log2(1 + rank) (Järvelin, Kekäläinen, ACM TOIS 20(4), 2002).

    Raises ValueError without ranks."""
    if not ranks:
        raise ValueError("no questions, no scores")
    found = [each for each in ranks if each is not None]

    def mean(gains: Sequence[float]) -> float:
        # fsum rounds once, so the order of the questions does not matter.
        return math.fsum(gains) / len(ranks)

    return Scores(
        questions=len(ranks),
        recall={cutoff: sum(each <= cutoff for each in found) / len(ranks) for cutoff in CUTOFFS},
        mrr=mean([1 / each for each in found]),
        ndcg=mean([1 / math.log2(1 + each) for each in found]),
    )

"""Evaluates search with questions whose answers are known: the questions file, and the metrics."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

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
MAX_PATHS = 100
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


def _from_the_top(path: str) -> str:
    # Any other form never equals the path of a hit.
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidValue("must start at the repository's top and have no empty, . or .. part: src/main.py")
    return path


FilePath = Annotated[fields.Text, AfterValidator(_from_the_top)]


class Question(ConfigModel):
    """A question and the file that answers it; `lines`: the first and the last line of the answer. `paths`: in place of
    `path`, several files that together are the answer."""

    question: Annotated[fields.Text, BeforeValidator(_folded)]
    repository: fields.Text
    path: FilePath | None = None
    paths: Annotated[tuple[FilePath, ...], Field(max_length=MAX_PATHS)] = ()
    lines: Annotated[tuple[int, int] | None, BeforeValidator(_span)] = None

    @field_validator("question")
    @classmethod
    def _searchable(cls, question: str) -> str:
        try:
            read_query(question)
            return question.strip()
        except UsageError as error:
            raise InvalidValue(error.message, is_sentence=True) from None

    @model_validator(mode="after")
    def _answered(self) -> Self:
        if (self.path is None) == (not self.paths):
            raise InvalidValue("must have either `path` or `paths`")
        if self.lines is not None and self.path is None:
            raise InvalidValue("`lines` are those of `path`", is_sentence=True)
        return self

    @property
    def answers(self) -> tuple[str, ...]:
        """The files, each once."""
        return tuple(dict.fromkeys(self.paths if self.path is None else (self.path,)))

    def is_answered_by(self, hit: SearchHit) -> bool:
        """Whether the hit is in one of the files, and in the lines."""
        if hit.repository != self.repository or hit.path not in self.answers:
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


class Found(NamedTuple):
    """`ranks`: from 1, ascending, of the first hit in each file of the answer that is among the first 10 hits; further
    chunks of a file do not count. `relevant`: of how many files the answer is. `first`: the path of the first hit."""

    ranks: tuple[int, ...]
    relevant: int = 1
    first: str | None = None

    @property
    def rank(self) -> int | None:
        """Of the first hit that answers the question; None if none of the first 10 does."""
        return self.ranks[0] if self.ranks else None


async def ranks_of(questions: Sequence[Question], search: Search) -> list[Found]:
    """What was found of each question, in order; few are searched at once. Raises the first error of `search`."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def ranked(question: Question) -> Found:
        async with slots:
            return found_of(question, await search(question))

    try:
        async with asyncio.TaskGroup() as tasks:
            found = [tasks.create_task(ranked(each)) for each in questions]
    except ExceptionGroup as errors:
        raise first_error(errors) from errors
    return [each.result() for each in found]


def found_of(question: Question, hits: Sequence[SearchHit]) -> Found:
    ranks: dict[str, int] = {}
    for number, hit in enumerate(hits[:DEPTH], 1):
        if question.is_answered_by(hit):
            ranks.setdefault(hit.path, number)
    return Found(tuple(ranks.values()), len(question.answers), hits[0].path if hits else None)


class Gains(NamedTuple):
    """What one question adds to the means, each from 0 to 1. `recall`: by the cutoffs."""

    recall: tuple[float, ...]
    mrr: float
    ndcg: float


def gains(found: Found) -> Gains:
    """`recall`: the share of the files of the answer that are within the first k hits (Manning and others, 2008, 8.4).
    `mrr`: 1 / rank of the first of them, cut off at 10 (Voorhees, TREC-8, 1999). `ndcg`: normalised discounted
    cumulative gain at 10 with binary relevance: the sum of 1 / log2(1 + rank), divided by that of the best order
    (Järvelin, Kekäläinen, ACM TOIS 20(4), 2002)."""
    recall = tuple(sum(rank <= cutoff for rank in found.ranks) / found.relevant for cutoff in CUTOFFS)
    best = math.fsum(_discount(rank) for rank in range(1, min(found.relevant, DEPTH) + 1))
    reached = math.fsum(map(_discount, found.ranks))
    return Gains(recall, 1 / found.ranks[0] if found.ranks else 0.0, reached / best)


def _discount(rank: int) -> float:
    return 1 / math.log2(1 + rank)


def scores(found: Sequence[Found]) -> Scores:
    """Means over the questions. Raises ValueError without questions."""
    if not found:
        raise ValueError("no questions, no scores")
    each = [gains(one) for one in found]

    def mean(values: Iterable[float]) -> float:
        # fsum rounds once, so the order of the questions does not matter.
        return math.fsum(values) / len(found)

    return Scores(
        questions=len(found),
        recall={cutoff: mean(one.recall[at] for one in each) for at, cutoff in enumerate(CUTOFFS)},
        mrr=mean(one.mrr for one in each),
        ndcg=mean(one.ndcg for one in each),
    )

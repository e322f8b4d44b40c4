"""Measuring how well search finds known answers: those of a file of questions, and those that the history of a
repository knows."""

from __future__ import annotations

import uuid
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field, ValidationError

from reposync.errors import UsageError
from reposync.operations.core import Actor, Arguments, Rule, operation
from reposync.operations.fields import MAX_PATH_CHARS, PlainText
from reposync.operations.search import MAX_QUERY_CHARS
from reposync.search.documents import Figure as Figure
from reposync.search.documents import Figures as Figures
from reposync.search.documents import FolderScore as FolderScore
from reposync.search.documents import HistoryScores as HistoryScores
from reposync.search.documents import PastAnswer as PastAnswer
from reposync.search.documents import Scores as Scores

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.search.evaluation import Question

MAX_LAST = 2_000


class AskedQuestion(BaseModel):
    """A question and the file that answers it; `lines`: the first and the last line of the answer. `paths`: in place of
    `path`, several files that together are the answer."""

    question: str = Field(min_length=1, max_length=MAX_QUERY_CHARS)
    repository: PlainText = Field(min_length=1)
    path: str | None = Field(None, min_length=1, max_length=MAX_PATH_CHARS)
    paths: list[str] = Field(default_factory=list, max_length=100)
    lines: tuple[int, int] | None = None


class Questions(Arguments):
    questions: list[AskedQuestion] = Field(min_length=1, max_length=10_000)


class Miss(AskedQuestion):
    """`ranks`: of the answer, by what was searched; null: it is not among the first 10."""

    ranks: dict[str, int | None]


class Evaluation(BaseModel):
    """`live`: of what is searched at present. `misses`: the questions whose answer is not the first one."""

    questions: int
    live: Scores
    misses: list[Miss]


@operation("POST", "/eval", Questions, Evaluation, rule=Rule.MAINTAIN, uses_index=True, is_slow=True, is_audited=True)
async def evaluate(app: Application, actor: Actor, asked: Questions) -> Evaluation:
    """Measure how well search finds known answers."""
    from reposync.app.history_evaluation import ask
    from reposync.search.evaluation import scores

    for name in sorted({question.repository for question in asked.questions}):
        await app.repositories.get(name)  # before anything is searched: a wrong name is reported at once
    found = await ask(app, _checked(asked))
    missed = [(question, one.rank) for question, one in zip(asked.questions, found, strict=True) if one.rank != 1]
    return Evaluation(
        questions=len(found),
        live=scores(found),
        misses=[Miss(**question.model_dump(), ranks={"live": rank}) for question, rank in missed],
    )


def _checked(asked: Questions) -> list[Question]:
    """Raises UsageError."""
    from reposync.search.evaluation import Question

    try:
        return [Question.model_validate(question.model_dump()) for question in asked.questions]
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        raise UsageError(
            f"A question cannot be asked: {'.'.join(map(str, problem['loc']))} {problem['msg']}."
        ) from None


class PastQuestions(Arguments):
    replay: bool = Field(
        False,
        description="Search past states of the repository, which do not have the changes yet: a throwaway index is "
        "built for them.",
    )
    last: int = Field(500, ge=1, le=MAX_LAST, description="The number of questions, of the newest commits that are.")


@operation(
    "POST",
    "/repositories/{name}/evaluations",
    PastQuestions,
    HistoryScores,
    rule=Rule.MAINTAIN,
    uses_index=True,
    is_slow=True,
    is_audited=True,
)
async def evaluate_history(
    app: Application, actor: Actor, asked: PastQuestions, *, name: str, identity: str | None = None
) -> HistoryScores:
    """Measure how well search finds the files that the last commits and merge requests changed, by what these say."""
    from reposync.app.history_evaluation import evaluate_history as measure

    row = await app.repositories.get(name, identity)
    found = await measure(app, name, asked.last, replay=asked.replay, identity=row.id)
    figures = {way: _plain(each) for way, each in found.by.items()}
    values = {"commit_sha": found.commit, "states": found.states, "model": found.model, "questions": found.questions}
    await app.evaluations.add(row.id, {"id": uuid.uuid4().hex, "at": found.at, "figures": figures, **values})
    return found


def _plain(figures: Figures) -> dict[str, dict[str, float]]:
    named = {**{f"recall@{at}": each for at, each in figures.recall.items()}, "mrr": figures.mrr, "ndcg": figures.ndcg}
    return {name: asdict(each) for name, each in named.items()}


class PastEvaluation(BaseModel):
    """`commit`: the newest state that was searched; `states`: how many past ones, 0: the live index, which had the
    changes. `figures`: by what was searched (`words`, `meaning`, `both`), then by figure (`recall@1`, `recall@5`,
    `recall@10`, `mrr`, `ndcg`)."""

    at: datetime
    commit: str
    states: int
    model: str | None
    questions: int
    figures: dict[str, dict[str, Figure]]


class PastEvaluations(BaseModel):
    """The newest first. `next_cursor` is always null: a few hundred are kept."""

    items: list[PastEvaluation]
    next_cursor: str | None = None


class Newest(Arguments):
    limit: int = Field(60, ge=1, le=200, description="The maximum number of evaluations.")


@operation("GET", "/repositories/{name}/evaluations", Newest, PastEvaluations, rule=Rule.READ)
async def evaluations(app: Application, actor: Actor, asked: Newest, *, name: str) -> PastEvaluations:
    """The figures of former evaluations with questions from the history of the repository."""
    row = await app.repositories.get(name)
    return PastEvaluations(
        items=[
            PastEvaluation(**each.model_dump(exclude={"id", "commit_sha"}), commit=each.commit_sha)
            for each in await app.evaluations.of(row.id, asked.limit)
        ]
    )

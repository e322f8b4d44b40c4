"""`reposync eval`: how well search finds known answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import json_option
from reposync.cli.output import print_json, print_table
from reposync.cli.startup import run_with_app
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.search.evaluation import Ask, Question, Scores


@dataclass(frozen=True)
class Evaluation:
    """`ranks`: the rank of the answer by version, in the order of the questions; None: not in the first 10."""

    questions: Sequence[Question]
    ranks: dict[str, list[int | None]]

    def scores(self) -> dict[str, Scores]:
        from reposync.search.evaluation import scores

        return {version: scores(ranks) for version, ranks in self.ranks.items()}

    def misses(self) -> Iterator[tuple[Question, dict[str, int | None]]]:
        """The questions whose answer is not the first hit of each version."""
        for number, question in enumerate(self.questions):
            found = {version: ranks[number] for version, ranks in self.ranks.items()}
            if any(each != 1 for each in found.values()):
                yield question, found


@click.command("eval")
@click.argument("file", metavar="QUESTIONS.yaml", type=click.Path(path_type=Path))
@click.option("--misses", is_flag=True, help="List the questions whose answer is not the first result.")
@json_option
def evaluate(file: Path, misses: bool, as_json: bool) -> None:
    """Measure how well search finds the known answers of QUESTIONS.yaml: recall, MRR and NDCG of the first 10 results.

    Compares the live index with the version under construction, if there is one.
    """
    from reposync.search.evaluation import load_questions

    questions = load_questions(file)
    evaluation = run_with_app(lambda app: _evaluate(app, questions), with_engine=True)
    if as_json:
        print_json(_document(evaluation))
        return
    _print_scores(evaluation)
    if misses:
        _print_misses(evaluation)


async def _evaluate(app: Application, questions: Sequence[Question]) -> Evaluation:
    from reposync.search.evaluation import ranks_of

    repositories = {question.repository for question in questions}
    for name in sorted(repositories):
        await app.repositories.get(name)
    building = await building_versions(app, repositories)
    live = await ranks_of(questions, _ask(app))
    if not building:
        return Evaluation(questions, {"live": live})
    # Repositories without a new version keep their live ranks, so that both scores are about the same questions.
    at = [number for number, question in enumerate(questions) if question.repository in building]
    ranks = await ranks_of([questions[number] for number in at], _ask(app, version="building"))
    new = live.copy()
    for number, rank in zip(at, ranks, strict=True):
        new[number] = rank
    return Evaluation(questions, {"live": live, "building": new})


async def building_versions(app: Application, repositories: Collection[str]) -> set[str]:
    """The `repositories` with a version of their index under construction."""
    from reposync.store.tables import VersionState

    rows = await app.repositories.list(repositories)
    versions = await app.versions.all()
    return {row.name for row in rows if any(each.state is VersionState.BUILDING for each in versions.get(row.id, ()))}


def _ask(app: Application, **which: Any) -> Ask:
    from reposync.search.evaluation import DEPTH

    return lambda each: app.searching.search(each.question, repository=each.repository, limit=DEPTH, **which)


def _document(evaluation: Evaluation) -> dict[str, Any]:
    scores = evaluation.scores()
    return {
        "questions": len(evaluation.questions),
        **{version: asdict(scores[version]) if version in scores else None for version in ("live", "building")},
        "misses": [{**question.model_dump(), "ranks": ranks} for question, ranks in evaluation.misses()],
    }


def _print_scores(evaluation: Evaluation) -> None:
    from reposync.search.evaluation import CUTOFFS, DEPTH

    scores, count = evaluation.scores(), len(evaluation.questions)
    rows = [[f"recall@{cutoff}", *(f"{each.recall[cutoff]:.3f}" for each in scores.values())] for cutoff in CUTOFFS]
    rows.append([f"MRR@{DEPTH}", *(f"{each.mrr:.3f}" for each in scores.values())])
    rows.append([f"NDCG@{DEPTH}", *(f"{each.ndcg:.3f}" for each in scores.values())])
    print_table(["1 question" if count == 1 else f"{count:,} questions", *(f">{version}" for version in scores)], rows)


def _print_misses(evaluation: Evaluation) -> None:
    for question, ranks in evaluation.misses():
        lines = "" if question.lines is None else f":{question.lines[0]}-{question.lines[1]}"
        found = ", ".join(f"{version} {_place(rank)}" for version, rank in ranks.items())
        click.echo()
        click.echo(escape_unprintable(question.question))
        click.echo(f"  {escape_unprintable(question.repository)} {escape_unprintable(question.path)}{lines}: {found}")


def _place(rank: int | None) -> str:
    return "not in the first 10" if rank is None else f"rank {rank}"

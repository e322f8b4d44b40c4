"""`reposync eval`: how well search finds the known answers of a file of questions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.output import json_option, print_json, table_console, visible
from reposync.cli.startup import run_async, settings

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.config.settings import Settings
    from reposync.search.evaluation import Ask, Question, Scores


@dataclass(frozen=True)
class Evaluation:
    """`ranks`: for each version, in the order of the questions, the rank of the answer; None: not in the first 10."""

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
    evaluation = run_async(_evaluate(settings(), questions))
    if as_json:
        print_json(_document(evaluation))
        return
    _print_scores(evaluation)
    if misses:
        _print_misses(evaluation)


async def _evaluate(config: Settings, questions: Sequence[Question]) -> Evaluation:
    from reposync.app.application import open_application
    from reposync.search.evaluation import ranks_of

    async with open_application(config, with_engine=True) as app:
        repositories = {question.repository for question in questions}
        for name in sorted(repositories):
            await app.repositories.get(name)
        building = await building_versions(app, repositories)
        live = await ranks_of(questions, _ask(app))
        if not building:
            return Evaluation(questions, {"live": live})
        # Repositories without a new version keep their live one, so that both figures are about the same questions.
        at = [number for number, question in enumerate(questions) if question.repository in building]
        ranks = await ranks_of([questions[number] for number in at], _ask(app, version="building"))
        new = live.copy()
        for number, rank in zip(at, ranks, strict=True):
            new[number] = rank
        return Evaluation(questions, {"live": live, "building": new})


async def building_versions(app: Application, repositories: Collection[str]) -> set[str]:
    """Those of `repositories` that have a version of their index under construction."""
    from reposync.store.versions import VersionState

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
    from rich.table import Table

    from reposync.search.evaluation import CUTOFFS, DEPTH

    scores = evaluation.scores()
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(_count(len(evaluation.questions)))
    for version in scores:
        table.add_column(version, justify="right")
    for cutoff in CUTOFFS:
        table.add_row(f"recall@{cutoff}", *(f"{each.recall[cutoff]:.3f}" for each in scores.values()))
    table.add_row(f"MRR@{DEPTH}", *(f"{each.mrr:.3f}" for each in scores.values()))
    table.add_row(f"NDCG@{DEPTH}", *(f"{each.ndcg:.3f}" for each in scores.values()))
    table_console().print(table)


def _count(questions: int) -> str:
    return "1 question" if questions == 1 else f"{questions:,} questions"


def _print_misses(evaluation: Evaluation) -> None:
    for question, ranks in evaluation.misses():
        lines = "" if question.lines is None else f":{question.lines[0]}-{question.lines[1]}"
        found = ", ".join(f"{version} {_place(rank)}" for version, rank in ranks.items())
        click.echo()
        click.echo(visible(question.question))
        click.echo(f"  {visible(question.repository)} {visible(question.path)}{lines}: {found}")


def _place(rank: int | None) -> str:
    return "not in the first 10" if rank is None else f"rank {rank}"

"""`reposync eval`: how well search finds known answers, of a file of questions or of a repository's history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reposync import operations
from reposync.cli.completion import repository_names
from reposync.cli.output import Line, Result, as_json
from reposync.cli.performing import Performer, performs
from reposync.cli.tables import table
from reposync.errors import UsageError
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.search.documents import Comparison

_WORST_QUESTIONS = 10
_RESULTS, _QUESTIONS = ".json", (".yaml", ".yml")


@click.command("eval")
@click.argument("file", metavar="[QUESTIONS.yaml]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--from-history",
    "repository",
    metavar="NAME",
    shell_complete=repository_names,
    help="Questions from the commits and merge requests of this repository: what they say, and the files they changed.",
)
@click.option("--last", metavar="N", type=int, help="So many questions of its history.  [default: 500]")
@click.option("--replay", is_flag=True, help="Search the repository as it was before those changes.")
@click.option("--past", is_flag=True, help="Ask nothing: list the figures of former evaluations of its history.")
@click.option(
    "--save",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the results to FILE.json, for --compare, or these questions to FILE.yaml.",
)
@click.option(
    "--compare",
    metavar="BEFORE AFTER",
    nargs=2,
    type=click.Path(path_type=Path),
    help="Compare two files of results, from --save or --json, question by question.",
)
@click.option("--misses", is_flag=True, help="List the questions whose answer is not the first result.")
@performs
def evaluate(
    perform: Performer,
    file: Path | None,
    repository: str | None,
    last: int | None,
    replay: bool,
    past: bool,
    save: Path | None,
    compare: tuple[Path, Path] | None,
    misses: bool,
) -> Result:
    """Measure how well search finds the known answers of QUESTIONS.yaml, or of a repository's history.

    Prints recall, MRR and NDCG of the first 10 results.
    """
    if [file, repository, compare].count(None) != 2:
        raise UsageError("Give a file of questions, or --from-history NAME, or --compare BEFORE AFTER.")
    options = {"--last": last, "--replay": replay, "--save": save, "--misses": misses, "--past": past}
    given = [option for option, value in options.items() if value is not None and value is not False]
    _refuse_ignored(given, file, compare)
    if compare is not None:
        return _comparison(*compare)
    if repository is not None and past:
        kept = perform(operations.evaluation.evaluations, {}, name=repository)
        return Result(kept, _past_lines(kept), None if kept.items else "No evaluation of its history yet.")
    if repository is not None:
        return _of_history(perform, repository, {"last": last, "replay": replay}, save, misses=misses)
    from reposync.search.evaluation import load_questions

    questions = [question.model_dump() for question in load_questions(file)] if file is not None else []
    evaluation = perform(operations.evaluation.evaluate, {"questions": questions})
    return Result(evaluation, [_scores(evaluation.live), *(_miss_lines(miss) for miss in evaluation.misses if misses)])


def _refuse_ignored(given: Sequence[str], file: Path | None, compare: tuple[Path, Path] | None) -> None:
    """Raises UsageError for options that this evaluation would ignore."""
    if compare is not None:
        what, used = "--compare", []
    elif file is not None:
        what, used = "a file of questions", ["--misses"]
    elif "--past" in given:
        what, used = "--past", ["--past"]
    else:
        return
    if ignored := [option for option in given if option not in used]:
        raise UsageError(f"{' and '.join(ignored)} cannot be used with {what}.")


def _scores(live: operations.evaluation.Scores) -> Line:
    from reposync.search.evaluation import CUTOFFS, DEPTH

    title = "1 question" if live.questions == 1 else f"{live.questions:,} questions"
    figures = {f"recall@{at}": live.recall[at] for at in CUTOFFS}
    figures |= {f"MRR@{DEPTH}": live.mrr, f"NDCG@{DEPTH}": live.ndcg}
    return table([{title: name, "live": value} for name, value in figures.items()])


def _miss_lines(miss: operations.evaluation.Miss) -> str:
    lines = "" if miss.lines is None else f":{miss.lines[0]}-{miss.lines[1]}"
    paths = " ".join(map(escape_unprintable, miss.paths if miss.path is None else [miss.path]))
    place = f"{escape_unprintable(miss.repository)} {paths}{lines}"
    rank = miss.ranks["live"]
    return f"\n{escape_unprintable(miss.question)}\n  {place}: live {f'rank {rank}' if rank else 'not in the first 10'}"


# Two evaluations -----------------------------------------------------------------------------------------------------


def _comparison(before: Path, after: Path) -> Result:
    from reposync.search.comparing import compared, load_scores

    one, other = load_scores(before), load_scores(after)
    found = compared(one, other)
    hint = None
    if bool(one.states) != bool(other.states):
        hint = "One of them is a replay, the other has the changes in its index: that alone makes a difference."
    return Result(found, _comparison_lines(found), hint)


def _comparison_lines(found: Comparison) -> Iterator[Line]:
    alone = f"; {found.unpaired:,} that only one of them has are left out" if found.unpaired else ""
    yield f"{found.questions:,} questions of both: by {found.before}, then by {found.after}{alone}"
    yield ""
    rows = [
        {
            "": name,
            "before": each.before,
            "after": each.after,
            "difference": f"{each.difference.mean:+.3f} [{each.difference.low:+.3f}, {each.difference.high:+.3f}]",
            "better": each.wins,
            "worse": each.losses,
        }
        for name, each in found.figures.items()
    ]
    yield table(rows)
    yield "In brackets: the 95% confidence interval. If it has 0 in it, the difference may be chance."


# Of the history ------------------------------------------------------------------------------------------------------


def _of_history(perform: Performer, name: str, asked: dict[str, Any], save: Path | None, *, misses: bool) -> Result:
    if save is not None and save.suffix not in (_RESULTS, *_QUESTIONS):
        raise UsageError(f"{save} must end with .json, for the results, or with .yaml, for the questions.")
    found = perform(operations.evaluation.evaluate_history, asked, name=name)
    if save is not None:
        _save(save, found)
    return Result(found, _history_lines(found, misses=misses), _hint(found))


def _hint(found: operations.evaluation.HistoryScores) -> str | None:
    if found.states:
        return None
    return "These figures flatter: the changes that the questions are about are in the index."


def _save(path: Path, found: operations.evaluation.HistoryScores) -> None:
    try:
        path.write_text(f"{as_json(found)}\n" if path.suffix == _RESULTS else _questions(found), "utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


def _questions(found: operations.evaluation.HistoryScores) -> str:
    """JSON in lines, which is YAML."""
    rows = [
        json.dumps({"question": each.question, "repository": found.repository, "paths": each.paths}, ensure_ascii=False)
        for each in found.answers
    ]
    return "".join(f"- {row}\n" for row in rows)


def _history_lines(found: operations.evaluation.HistoryScores, *, misses: bool) -> Iterator[Line]:
    from reposync.search.evaluation import CUTOFFS, DEPTH
    from reposync.search.measuring import LEAST_OF_FOLDER, main_of

    what = "1 question" if found.questions == 1 else f"{found.questions:,} questions"
    states = "1 past state" if found.states == 1 else f"{found.states} past states"
    where = (
        f"{states}, none of which has the changes" if found.states else f"{found.commit[:12]}, which has the changes"
    )
    yield f"{what} of {escape_unprintable(found.repository)}, searched in {where}"
    yield ""
    titles = [*(f"recall@{at}" for at in CUTOFFS), f"MRR@{DEPTH}", f"NDCG@{DEPTH}"]
    columns = {way: [*each.recall.values(), each.mrr, each.ndcg] for way, each in found.by.items()}
    rows = [
        {"": title} | {way: _interval(column[number]) for way, column in columns.items()}
        for number, title in enumerate(titles)
    ]
    yield table(rows)
    yield "In brackets: the 95% confidence interval."
    if found.left_out:
        yield ""
        yield from _left_out(found.left_out)
    main = main_of(found.by)
    if found.worst_folders:
        yield ""
        folders = [
            {"worst folders": each.folder, "questions": each.questions, "MRR": each.mrr} for each in found.worst_folders
        ]
        yield table(folders)
        yield f"Of folders with {LEAST_OF_FOLDER} questions or more, by {main}."
    shown = [each for each in found.answers if each.ranks[main][:1] != [1]]
    if shown:
        yield ""
        yield "All misses:" if misses else "Worst questions:"
        yield from _answer_lines(shown if misses else shown[:_WORST_QUESTIONS], main)


def _past_lines(kept: operations.evaluation.PastEvaluations) -> Iterator[Line]:
    if kept.items:
        yield table([_past_row(each) for each in kept.items])


def _past_row(each: operations.evaluation.PastEvaluation) -> dict[str, Any]:
    from reposync.search.measuring import main_of

    main = main_of(each.figures)
    found = each.figures.get(main, {})
    return {
        "at": each.at,
        "commit": each.commit[:12],
        "states": each.states or "head",
        "questions": each.questions,
        "by": main,
        "model": each.model,
        **{name: _interval(found[name]) for name in ("recall@10", "mrr", "ndcg") if name in found},
    }


def _interval(figure: operations.evaluation.Figure) -> str:
    return f"{figure.mean:.3f} [{figure.low:.3f}, {figure.high:.3f}]"


def _left_out(left_out: dict[str, int]) -> Iterator[Line]:
    from reposync.search.past_questions import RULES

    yield f"Left out: {sum(left_out.values()):,} commits"
    yield table([{"commits": count, "": RULES[rule]} for rule, count in left_out.items()])  # type: ignore[index]


def _answer_lines(answers: Iterable[operations.evaluation.PastAnswer], main: str) -> Iterator[Line]:
    for each in answers:
        ranks, first = each.ranks[main], each.first[main]
        where = f"rank {', '.join(map(str, ranks))}" if ranks else "not in the first 10"
        source = f"!{each.request}" if each.request is not None else each.commit[:8]
        yield f"{source}  {escape_unprintable(each.question)}"
        instead = f"; first: {escape_unprintable(first)}" if first is not None else "; nothing was found"
        yield f"  {' '.join(map(escape_unprintable, each.paths))}: {where}{instead}"

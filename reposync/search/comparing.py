"""The comparison of two evaluations, paired by question."""

from __future__ import annotations

import math
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from reposync.config.loading import content_of
from reposync.errors import UsageError
from reposync.search.documents import Comparison, Difference, Figure, HistoryScores, PastAnswer
from reposync.search.measuring import found_by, intervals, main_of, values_of

MAX_BYTES = 20_000_000


def load_scores(path: Path) -> HistoryScores:
    """What `reposync eval --from-history NAME --json` printed. Raises ConfigError if it cannot be read, UsageError if
    it is something else."""
    content = content_of(path, "results file", max_bytes=MAX_BYTES)
    if len(content) > MAX_BYTES:
        raise UsageError(f"{path} is larger than {MAX_BYTES:,} bytes.")
    try:
        found = TypeAdapter(HistoryScores).validate_json(content)
        if not found.answers:
            raise ValueError("no answers")
        for answer in found.answers:
            if not answer.paths or any(not 1 <= rank <= 10 for ranks in answer.ranks.values() for rank in ranks):
                raise ValueError("an answer without files, or a rank beyond 10")
            if not found.by.keys() <= answer.ranks.keys() or any(
                len(ranks) > len(answer.paths) for ranks in answer.ranks.values()
            ):
                raise ValueError("an answer without ranks, or with too many")
        main_of(found.by)
    except (ValidationError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} has no results of an evaluation.",
            remedy="Give the JSON document of an evaluation with questions from a history.",
        ) from error
    return found


def compared(before: HistoryScores, after: HistoryScores) -> Comparison:
    """By what each of them searches by, over the questions that both have: the same words about the same files. Raises
    UsageError if there is none."""
    by_before, by_after = main_of(before.by), main_of(after.by)
    first = {_key(each): each for each in before.answers}
    pairs = [(first[_key(each)], each) for each in after.answers if _key(each) in first]
    if not pairs:
        raise UsageError("The two evaluations have no question in common.", remedy="Compare two of one repository.")
    names, was = values_of([found_by(each, by_before) for each, _ in pairs])
    _, now = values_of([found_by(each, by_after) for _, each in pairs])
    change = now - was
    return Comparison(
        questions=len(pairs),
        unpaired=len(before.answers) + len(after.answers) - 2 * len(pairs),
        before=by_before,
        after=by_after,
        figures={
            name: Difference(
                math.fsum(was[:, at]) / len(pairs),
                math.fsum(now[:, at]) / len(pairs),
                Figure(math.fsum(change[:, at]) / len(pairs), low, high),
                int((change[:, at] > 0).sum()),
                int((change[:, at] < 0).sum()),
            )
            for at, (name, (low, high)) in enumerate(zip(names, intervals(change), strict=True))
        },
    )


def _key(answer: PastAnswer) -> tuple[str, frozenset[str]]:
    return answer.question, frozenset(answer.paths)

"""Figures over questions with their confidence intervals, and where they are low."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from reposync.search.documents import Figure, Figures, FolderScore, PastAnswer
from reposync.search.evaluation import CUTOFFS, Found, gains

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESAMPLES: Final = 2_000
SEED: Final = 20_240_101
"""The same questions and answers have the same intervals."""
_PERCENTILES: Final = (2.5, 97.5)
LEAST_OF_FOLDER: Final = 3
"""Questions; of fewer, a mean says nothing."""
WORST_FOLDERS: Final = 5
_FOLDER_PARTS: Final = 2


def figures(found: Sequence[Found]) -> Figures:
    """Means over the questions, with percentile intervals of the bootstrap (Efron, Tibshirani, An Introduction to the
    Bootstrap, 1993, 13.3). Raises ValueError without questions."""
    names, values = values_of(found)
    bounds = intervals(values)
    each = {
        name: Figure(math.fsum(column) / len(found), low, high)
        for name, column, (low, high) in zip(names, values.T.tolist(), bounds, strict=True)
    }
    return Figures({cutoff: each[f"recall@{cutoff}"] for cutoff in CUTOFFS}, each["mrr"], each["ndcg"])


def values_of(found: Sequence[Found]) -> tuple[list[str], NDArray[np.float64]]:
    """A row for each question, a column for each figure."""
    import numpy as np

    if not found:
        raise ValueError("no questions, no figures")
    names = [*(f"recall@{cutoff}" for cutoff in CUTOFFS), "mrr", "ndcg"]
    rows = [(*one.recall, one.mrr, one.ndcg) for one in map(gains, found)]
    return names, np.array(rows, np.float64)


def intervals(values: NDArray[np.float64]) -> list[tuple[float, float]]:
    """The 95% confidence interval of the mean of each column: percentiles of the bootstrap over the rows."""
    import numpy as np

    count, random = len(values), np.random.default_rng(SEED)
    # How often each question was drawn: one product in place of copies of all rows.
    drawn = random.multinomial(count, np.full(count, 1 / count), RESAMPLES)
    low, high = np.percentile(drawn @ values / count, _PERCENTILES, axis=0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def found_by(answer: PastAnswer, by: str) -> Found:
    return Found(tuple(answer.ranks[by]), len(answer.paths), answer.first.get(by))


def main_of(by: Sequence[str] | Mapping[str, object]) -> str:
    """What people search by: both, if there is a model."""
    return "both" if "both" in by else "words"


def worst_first(answers: Sequence[PastAnswer], by: str) -> list[PastAnswer]:
    def quality(answer: PastAnswer) -> tuple[float, float]:
        each = gains(found_by(answer, by))
        return each.ndcg, each.mrr

    return sorted(answers, key=quality)


def worst_folders(answers: Sequence[PastAnswer], by: str) -> list[FolderScore]:
    """The worst first, of folders of at most two levels."""
    of_folder = defaultdict[str, list[float]](list)
    for answer in answers:
        reciprocal = gains(found_by(answer, by)).mrr
        for folder in {folder_of(path) for path in answer.paths}:
            of_folder[folder].append(reciprocal)
    each = [
        FolderScore(folder, len(ranks), math.fsum(ranks) / len(ranks))
        for folder, ranks in of_folder.items()
        if len(ranks) >= LEAST_OF_FOLDER
    ]
    return sorted(each, key=lambda one: (one.mrr, -one.questions, one.folder))[:WORST_FOLDERS]


def folder_of(path: str) -> str:
    return "/".join(path.split("/")[:-1][:_FOLDER_PARTS]) or "."

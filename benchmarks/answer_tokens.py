"""How many tokens an answer for a language model takes to name the right file:
`benchmarks.retrieval_public --tokens`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.public_questions import FileQuestion, Repository
from reposync.search.answers import DEPTH, answer
from reposync.search.searching import Searching

BUDGETS = (500, 1_000, 2_000)


async def measure_answers(
    searching: Searching, files: Sequence[tuple[Repository, FileQuestion]]
) -> dict[int, list[float]]:
    """By budget in tokens, for each question 1.0 if the answer names one of its relevant files, 0.0 if not."""
    named: dict[int, list[float]] = {budget: [] for budget in BUDGETS}
    for repository, question in files:
        hits = await searching.search(question.query, repository=repository.name, limit=DEPTH)
        for budget, found in named.items():
            given = answer(hits, question.query, max_tokens=budget)
            shown = {each["path"] for each in given.structure["files"]}
            named = {place.rpartition(":")[0] for each in given.structure["further"] for place in each["places"]}
            paths = shown | named
            found.append(float(any(each.is_file(path) for each in question.relevant for path in paths)))
    return named


def table(named: Mapping[int, Sequence[float]]) -> Iterator[str]:
    yield f"\n| tokens of the answer | {' | '.join(f'{budget:,}' for budget in named)} |"
    yield "|---" * (1 + len(named)) + "|"
    shares = (f"{statistics.mean(found):.3f}" for found in named.values())
    yield f"| questions whose file is named | {' | '.join(shares)} |"

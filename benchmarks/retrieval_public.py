"""How well a search finds the answers of two public benchmarks of code search, through the product's index and search.

python -m benchmarks.retrieval_public --data DIR --repositories DIR [--only semble|octocode]
    [--provider none|static|local] [--state DIR] [--repository NAME ...] [--all-files] [--newest] [--tokens] [--json]

The questions and their metrics: `benchmarks/public_questions.py`. `--repositories` holds git repositories as
`OWNER/NAME` (the last two parts of the URL), bare or with a work tree. One that is missing, or lacks the pinned commit,
is left out and named; `--newest` takes the HEAD of one that lacks the commit, and names it.

`reposync sync` indexes each at that commit, all into one collection, as it does by default: the code below
`benchmark_root` (`benchmarks/public_index.py`), or with `--all-files` every file that is not skipped. The state is kept
in `--state`; the next run indexes only what has changed. Use a state for one provider and one choice of files.

Each question is one search in its repository for ten hits, which is timed, and one for more, for the order of files.
With `--tokens` the answers that a language model gets are measured, within budgets of tokens, and nothing else.
Figures are means over questions. `--json` prints those of every question.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.answer_tokens import measure_answers, table
from benchmarks.measure import machine, percentile
from benchmarks.public_index import Missing, State
from benchmarks.public_questions import (
    OCTOCODE,
    TOP,
    FileQuestion,
    FileScores,
    InvalidData,
    LineQuestion,
    LineScores,
    Repository,
    read_file_questions,
    read_line_questions,
    read_repositories,
    score_files,
    score_lines,
)
from reposync.app.application import Application
from reposync.app.index_overview import index_overviews
from reposync.app.opening import open_application
from reposync.config.registry import Registry
from reposync.config.settings import Configuration, Settings
from reposync.embedding.port import EmbeddingSpec, SparseVector
from reposync.search.searching import Searching
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import IndexQuery, SearchHit

DEEPER = 50
"""Hits of the search for files: enough for ten files of nearly every question."""


# Ways to search ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """`words`, `model`: which of the two kinds of vectors are searched. `ranking`: as in the section `search`."""

    name: str
    words: bool = True
    model: bool = True
    ranking: str = "plain"


WAYS = (
    Way("words", model=False),
    Way("words, ranked", model=False, ranking="code"),
    Way("model", words=False),
    Way("hybrid"),
    Way("hybrid, ranked", ranking="code"),
)
HAS_RANKING = "search" in Registry.model_fields


class _OneKind:
    """An index in which only words, or only vectors of the model, are searched."""

    def __init__(self, index: QdrantIndex, way: Way) -> None:
        self._index, self._way = index, way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    async def spec(self) -> EmbeddingSpec | None:
        """Without a dimension, the question is not embedded."""
        spec = await self._index.spec()
        return spec if spec is None or self._way.model else replace(spec, dimension=0)

    async def search(self, query: IndexQuery) -> list[SearchHit]:
        nothing = SparseVector(np.empty(0, np.uint32), np.empty(0, np.float32))
        return await self._index.search(query if self._way.words else replace(query, sparse=nothing))


class _Parts:
    """The application, as a search with one way sees it."""

    def __init__(self, app: Application, way: Way) -> None:
        self._app, self._way = app, way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)

    @property
    def configuration(self) -> Configuration:
        configuration = self._app.configuration
        if not HAS_RANKING:
            return configuration
        registry = configuration.registry
        search = registry.search.model_copy(update={"ranking": self._way.ranking})  # type: ignore[attr-defined]
        return replace(configuration, registry=registry.model_copy(update={"search": search}))

    def index(self, collection: str) -> _OneKind:
        return _OneKind(self._app.index(collection), self._way)


# Measuring ---------------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """Scores by way, in the order of the questions. `milliseconds`: of the searches for ten hits."""

    files: dict[str, list[FileScores]] = field(default_factory=lambda: defaultdict(list))
    lines: dict[str, list[LineScores]] = field(default_factory=lambda: defaultdict(list))
    milliseconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


async def measure_searches(
    app: Application,
    ways: Sequence[Way],
    files: Sequence[tuple[Repository, FileQuestion]],
    lines: Sequence[LineQuestion],
) -> Measured:
    measured = Measured()
    for way in ways:
        searching = Searching(_Parts(app, way))  # type: ignore[arg-type]

        async def timed(query: str, repository: Repository) -> list[SearchHit]:
            started = time.perf_counter()
            hits = await searching.search(query, repository=repository.name, limit=TOP)  # noqa: B023 - called below
            measured.milliseconds[way.name].append((time.perf_counter() - started) * 1000)  # noqa: B023
            return hits

        for repository in dict.fromkeys([each for each, _ in files] + [OCTOCODE] * bool(lines)):
            await searching.search("opens the index and the model", repository=repository.name)
        for repository, question in files:
            hits = await timed(question.query, repository)
            deeper = await searching.search(question.query, repository=repository.name, limit=DEEPER)
            measured.files[way.name].append(score_files(question, hits, deeper))
        for line_question in lines:
            hits = await timed(line_question.query, OCTOCODE)
            measured.lines[way.name].append(score_lines(line_question, hits))
    return measured


# Report ------------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """Everything that is printed."""

    measured: Measured
    files: Sequence[tuple[Repository, FileQuestion]]
    lines: Sequence[LineQuestion]
    left_out: Mapping[str, str]
    other_commit: Mapping[str, str]
    index: Mapping[str, Any]
    named: Mapping[int, Sequence[float]]

    def markdown(self) -> Iterator[str]:
        yield f"{machine()}; {versions()}"
        for name, reason in self.left_out.items():
            yield f"left out: {name}: {reason}"
        for name, commit in self.other_commit.items():
            yield f"not at its pinned commit: {name}: {commit[:12]}"
        yield (
            f"{self.index['chunks']:,} chunks of {self.index['files']:,} files in {self.index['repositories']} "
            f"repositories; sync {self.index['wall_seconds']:.1f} s wall, {self.index['cpu_seconds']:.1f} s CPU"
        )
        if self.named:
            yield from table(self.named)
            return
        ways = list(self.measured.milliseconds)
        if self.files:
            yield from _table(f"semble, NDCG@10, {len(self.files)} questions", ways, self._rows_of_files(ways))
        if self.lines:
            yield from _table(f"octocode, {len(self.lines)} questions", ways, self._rows_of_lines(ways))
        yield from _table("search for ten hits, ms", ways, self._rows_of_times(ways))

    def _rows_of_files(self, ways: Sequence[str]) -> Iterator[list[str]]:
        def row(name: str, kind: str, wanted: Callable[[Repository, FileQuestion], bool]) -> list[str]:
            at = [number for number, each in enumerate(self.files) if wanted(*each)]
            means = [statistics.mean(getattr(self.measured.files[way][number], kind) for number in at) for way in ways]
            return [f"{name} ({len(at)})", *(f"{mean:.3f}" for mean in means)]

        yield row("**all, by files**", "files", lambda *_: True)
        yield row("all, by hits", "hits", lambda *_: True)
        if self.other_commit:
            yield row("at pinned commits", "files", lambda repository, _: repository.name not in self.other_commit)
        for category in sorted({question.category for _, question in self.files}):
            yield row(category, "files", lambda _, question, wanted=category: question.category == wanted)
        for language in sorted({repository.language for repository, _ in self.files}):
            yield row(language, "files", lambda repository, _, wanted=language: repository.language == wanted)

    def _rows_of_lines(self, ways: Sequence[str]) -> Iterator[list[str]]:
        for name, kind in (("hit@10", "hit"), ("MRR@10", "mrr"), ("NDCG@10", "ndcg")):
            found = [statistics.mean(getattr(each, kind) for each in self.measured.lines[way]) for way in ways]
            yield [name, *(f"{mean:.3f}" for mean in found)]

    def _rows_of_times(self, ways: Sequence[str]) -> Iterator[list[str]]:
        for name, part in (("p50", 0.5), ("p95", 0.95)):
            yield [name, *(f"{percentile(self.measured.milliseconds[way], part):.1f}" for way in ways)]

    def as_json(self) -> dict[str, Any]:
        """Means, and for each question the figures by way."""
        measured = self.measured
        return {
            "machine": machine(),
            "versions": versions(),
            "left_out": dict(self.left_out),
            "other_commit": dict(self.other_commit),
            "index": dict(self.index),
            "tokens": {str(budget): statistics.mean(found) for budget, found in self.named.items()},
            "milliseconds": {
                way: {"p50": percentile(each, 0.5), "p95": percentile(each, 0.95)}
                for way, each in measured.milliseconds.items()
            },
            "semble": {
                way: {kind: statistics.mean(getattr(each, kind) for each in scores) for kind in ("files", "hits")}
                for way, scores in measured.files.items()
            },
            "octocode": {
                way: {kind: statistics.mean(getattr(each, kind) for each in scores) for kind in ("hit", "mrr", "ndcg")}
                for way, scores in measured.lines.items()
            },
            "questions": [
                {"repository": repository.name, "language": repository.language, "category": question.category}
                | {"query": question.query}
                | {"ways": {way: asdict(scores[number]) for way, scores in measured.files.items()}}
                for number, (repository, question) in enumerate(self.files)
            ]
            + [
                {"repository": OCTOCODE.name, "query": question.query}
                | {"ways": {way: asdict(scores[number]) for way, scores in measured.lines.items()}}
                for number, question in enumerate(self.lines)
            ],
        }


def _table(title: str, ways: Sequence[str], rows: Iterator[list[str]]) -> Iterator[str]:
    yield f"\n| {title} | {' | '.join(ways)} |"
    yield "|---" * (1 + len(ways)) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def versions() -> str:
    found = []
    for package in ("reposync", "qdrant-edge-py", "onnxruntime"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


# The program -------------------------------------------------------------------------------------------------------


async def run(options: argparse.Namespace) -> Report:
    known = read_repositories(options.data)
    wanted = set(options.repository or [each.name for each in (*known, OCTOCODE)])
    if unknown := wanted - {each.name for each in (*known, OCTOCODE)}:
        raise InvalidData(f"{options.data / 'repositories.json'} has no repository {', '.join(sorted(unknown))}.")
    measured_by_files = [each for each in known if each.name in wanted and options.only != "octocode"]
    by_files = {each: read_file_questions(options.data, each) for each in measured_by_files}
    by_lines = read_line_questions(options.data) if OCTOCODE.name in wanted and options.only != "semble" else ()
    state = State(options.state)
    state.folder.mkdir(parents=True, exist_ok=True)
    left_out, commits = {}, {}
    for repository in (*known, OCTOCODE):
        try:
            commits[repository] = state.pin(repository, options.repositories, newest=options.newest)
        except Missing as reason:
            left_out[repository.name] = str(reason)
    state.register(commits, options.provider, all_files=options.all_files)
    files = [(each, question) for each, questions in by_files.items() if each in commits for question in questions]
    lines = by_lines if OCTOCODE in commits else ()
    names = list(dict.fromkeys([each.name for each, _ in files] + [OCTOCODE.name] * bool(lines)))
    if not names:
        raise InvalidData(f"{options.repositories} has none of the repositories: {next(iter(left_out.values()))}.")
    usage = state.sync(names)
    ways = [way for way in WAYS if options.provider != "none" or not way.model]
    ways = [way for way in ways if HAS_RANKING or way.ranking == "plain"]
    async with open_application(Settings.from_environment(state.environment), with_engine=True) as app:
        live = [each.live for each in await index_overviews(app, names) if each.live is not None]
        named = await measure_answers(app.searching, files) if options.tokens else {}
        measured = Measured() if options.tokens else await measure_searches(app, ways, files, lines)
    index = {
        "provider": options.provider,
        "repositories": len(live),
        "files": sum(each.files for each in live),
        "chunks": sum(each.chunks for each in live),
        "wall_seconds": usage.wall_seconds,
        "cpu_seconds": usage.cpu_seconds,
    }
    other = {each.name: commit for each, commit in commits.items() if each.name in names and commit != each.revision}
    left_out = {name: reason for name, reason in left_out.items() if name in wanted}
    return Report(measured, files, lines, left_out, other, index, named)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the questions")
    parser.add_argument("--repositories", type=Path, required=True, metavar="DIR", help="git repositories OWNER/NAME")
    parser.add_argument("--only", choices=("semble", "octocode"))
    parser.add_argument("--provider", choices=("none", "static", "local"), default="none")
    parser.add_argument("--state", type=Path, metavar="DIR", help="default: in the temporary directory")
    parser.add_argument("--repository", nargs="+", metavar="NAME", help="only these, octocode among them")
    parser.add_argument("--all-files", action="store_true", help="not only code")
    parser.add_argument("--newest", action="store_true", help="HEAD of a repository without the pinned commit")
    parser.add_argument("--tokens", action="store_true", help="only the answers for a language model")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = "-".join(["retrieval", options.provider, *(["all"] if options.all_files else [])])
    options.state = (options.state or Path(tempfile.gettempdir()) / "reposync-benchmarks" / folder).resolve()
    try:
        report = asyncio.run(run(options))
    except InvalidData as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    if options.json:
        print(json.dumps(report.as_json(), indent=1))
    else:
        print("\n".join(report.markdown()))


if __name__ == "__main__":
    main()

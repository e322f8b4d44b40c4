"""`reposync search`, and `reposync eval`: how well search finds known answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import prints, run_with_app, settings
from reposync.cli.output import Result, table
from reposync.cli.running_daemon import ask_daemon
from reposync.symbol import read_symbols
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from rich.table import Table

    from reposync.app.application import Application
    from reposync.search.evaluation import Ask, Question
    from reposync.vectors.port import SearchHit

JSON_KEYS = (
    *("repository", "path", "start_line", "end_line", "language", "score", "text", "url", "outdated"),
    *("meaning_indexed", "parts", "symbols"),
)
OUTDATED = "older than the commit: could not be read"


@click.command()
@click.argument("query", nargs=-1)
@click.option("--repository", metavar="NAME", help="Only in this repository.")
@click.option(
    "--path", "path_glob", metavar="GLOB", help="Only files that match this gitignore pattern: 'src/**/*.py'."
)
@click.option("--language", metavar="NAME", help="Only in this language: python, go, markdown ...")
@click.option("--symbol", metavar="NAME", help="Only chunks that define this name; also symbol:NAME in QUERY.")
@click.option(
    "--kind", metavar="KIND", help="Only chunks that define one of this kind: function, class ...; also kind:KIND."
)
@click.option("--like", metavar="PATH:LINE", help="In place of QUERY: code like that at this line of an indexed file.")
@click.option("--limit", type=click.IntRange(1, 100), default=5, show_default=True, help="Maximum number of results.")
@click.option("--explain", is_flag=True, help="Show what the score of each result is made of.")
@prints
def search(
    query: tuple[str, ...],
    repository: str | None,
    path_glob: str | None,
    language: str | None,
    symbol: str | None,
    kind: str | None,
    like: str | None,
    limit: int,
    explain: bool,
) -> Result:
    """Search the indexed code for QUERY: words that describe the code, or identifiers in it."""
    from reposync.search.query import read_query

    text = " ".join(query)
    asked = read_query(text, symbol=symbol, kind=kind, like=like)
    filters: dict[str, Any] = {"repository": repository, "language": language, "limit": limit}
    filters |= {"symbol": asked.symbol, "kind": asked.kind, "like": str(asked.like) if asked.like else None}
    words, hits = asked.words, None
    # A daemon answers with hits alone: which of their lines are like the place is not known without its code.
    if asked.like is None:
        hits = (ask_daemon(settings(), "/api/v1/search", {"q": words, "path": path_glob, **filters}) or {}).get("items")
    if hits is None:

        async def find(app: Application) -> tuple[list[SearchHit], str]:
            found = await app.searching.search(words, path_glob=path_glob, **filters)
            return found, await app.searching.words(words, repository=repository, like=filters["like"])

        found, words = run_with_app(find, with_engine=True)
        hits = [asdict(hit) for hit in found]
    return Result([{key: hit[key] for key in JSON_KEYS} for hit in hits], _hit_lines(words, hits, explain=explain))


def _hit_lines(text: str, hits: list[dict[str, Any]], *, explain: bool) -> Iterator[str]:
    """Each hit with the lines that match best. Coloured on a terminal only."""
    from reposync.search.snippets import best_snippet

    if not hits:
        yield "Nothing found."
    for number, hit in enumerate(hits):
        symbols = read_symbols(hit.get("symbols"))
        snippet = best_snippet(hit["text"], hit["start_line"], text, symbols=symbols)
        place = click.style(f"{escape_unprintable(hit['path'])}:{snippet.best_line}", fg="cyan", bold=True)
        about = click.style(f"  {escape_unprintable(hit['repository'])}  {hit['score']:.3f}", dim=True)
        notes = f"  {OUTDATED}" if hit["outdated"] else ""
        if hit["meaning_indexed"] is not None:
            notes += f"  by words, {hit['meaning_indexed']:.0%} of meaning indexed"
        if number:
            yield ""
        yield f"{place}{about}{click.style(notes, fg='yellow') if notes else ''}"
        if explain:
            yield click.style(f"  {_explained(hit)}", dim=True)
        width = len(str(snippet.lines[-1].number)) if snippet.lines else 1
        for line in snippet.lines:
            shown = f"  {line.number:>{width}} {'>' if line.matches else ' '} {line.text}"
            yield shown if line.matches else click.style(shown, dim=True)


def _explained(hit: dict[str, Any]) -> str:
    """`0.91 = words 0.58 + meaning 0.21 + definition 0.28 + path 0.23, times prior 0.70`."""
    parts = dict(hit["parts"])
    prior = parts.pop("prior", 1.0)
    total = " + ".join(f"{name} {value:.2f}" for name, value in parts.items())
    return f"{hit['score']:.2f} = {total}" + (f", times prior {prior:.2f}" if prior != 1.0 else "")


@click.command("eval")
@click.argument("file", metavar="QUESTIONS.yaml", type=click.Path(path_type=Path))
@click.option("--misses", is_flag=True, help="List the questions whose answer is not the first result.")
@prints
def evaluate(file: Path, misses: bool) -> Result:
    """Measure how well search finds the known answers of QUESTIONS.yaml: recall, MRR and NDCG of the first 10 results.

    Compares the live index with the version under construction, if there is one.
    """
    from reposync.search.evaluation import load_questions, scores

    questions = load_questions(file)
    ranks = run_with_app(lambda app: _ranks(app, questions), with_engine=True)
    missed = [
        (question, {version: each[number] for version, each in ranks.items()})
        for number, question in enumerate(questions)
        if any(each[number] != 1 for each in ranks.values())
    ]
    found = {version: scores(each) for version, each in ranks.items()}
    document = {
        "questions": len(questions),
        **{version: asdict(found[version]) if version in found else None for version in ("live", "building")},
        "misses": [{**question.model_dump(), "ranks": its_ranks} for question, its_ranks in missed],
    }
    lines = (_miss_lines(question, its_ranks) for question, its_ranks in missed if misses)
    return Result(document, [_scores(found, len(questions)), *lines])


async def _ranks(app: Application, questions: Sequence[Question]) -> dict[str, list[int | None]]:
    """The rank of each answer by version of the index; None: not in the first 10."""
    from reposync.search.evaluation import DEPTH, ranks_of
    from reposync.store.tables import VersionState

    def ask(**which: Any) -> Ask:
        return lambda each: app.searching.search(each.question, repository=each.repository, limit=DEPTH, **which)

    names = {question.repository for question in questions}
    rows = [await app.repositories.get(name) for name in sorted(names)]
    versions = await app.versions.all()
    building = {
        row.name for row in rows if any(each.state is VersionState.BUILDING for each in versions.get(row.id, ()))
    }
    live = await ranks_of(questions, ask())
    if not building:
        return {"live": live}
    # Repositories without a new version keep their live ranks, so that both scores are about the same questions.
    at = [number for number, question in enumerate(questions) if question.repository in building]
    new = dict(zip(at, await ranks_of([questions[number] for number in at], ask(version="building")), strict=True))
    return {"live": live, "building": [new.get(number, rank) for number, rank in enumerate(live)]}


def _scores(found: dict[str, Any], count: int) -> Table:
    from reposync.search.evaluation import CUTOFFS, DEPTH

    title = "1 question" if count == 1 else f"{count:,} questions"
    rows = [{title: f"recall@{at}", **{key: each.recall[at] for key, each in found.items()}} for at in CUTOFFS]
    rows.append({title: f"MRR@{DEPTH}", **{key: each.mrr for key, each in found.items()}})
    rows.append({title: f"NDCG@{DEPTH}", **{key: each.ndcg for key, each in found.items()}})
    return table(rows)


def _miss_lines(question: Question, ranks: dict[str, int | None]) -> str:
    lines = "" if question.lines is None else f":{question.lines[0]}-{question.lines[1]}"
    found = ", ".join(
        f"{version} {f'rank {rank}' if rank else 'not in the first 10'}" for version, rank in ranks.items()
    )
    place = f"{escape_unprintable(question.repository)} {escape_unprintable(question.path)}{lines}"
    return f"\n{escape_unprintable(question.question)}\n  {place}: {found}"

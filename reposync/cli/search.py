"""`reposync search`, `grep` and `cat`, and `eval`: how well search finds known answers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import prints, run_with_app, settings
from reposync.cli.output import Result, table
from reposync.cli.running_daemon import ask_daemon
from reposync.symbol import read_symbols
from reposync.words import escape_unprintable, file_address, visible

if TYPE_CHECKING:
    from rich.table import Table

    from reposync.app.application import Application
    from reposync.search.evaluation import Question, Scores
    from reposync.vectors.port import SearchHit

GREP_KEYS = ("items", "is_complete", "stopped", "files_searched")
_LINES = re.compile(r"([1-9]\d{0,8})(-([1-9]\d{0,8})?)?")
OUTDATED = "older than the commit: could not be read"

path_option = click.option(
    "--path", "path_glob", metavar="GLOB", help="Only files that match this gitignore pattern: 'src/**/*.py'."
)
language_option = click.option("--language", metavar="NAME", help="Only in this language: python, go, markdown ...")


@click.command()
@click.argument("query", nargs=-1)
@click.option("--repository", metavar="NAME", help="Only in this repository.")
@path_option
@language_option
@click.option("--symbol", metavar="NAME", help="Only chunks that define this name; also symbol:NAME in QUERY.")
@click.option(
    "--kind", metavar="KIND", help="Only chunks that define one of this kind: function, class ...; also kind:KIND."
)
@click.option("--like", metavar="PATH:LINE", help="In place of QUERY: code like that at this line of an indexed file.")
@click.option("--limit", type=click.IntRange(1, 100), default=5, show_default=True, help="Maximum number of results.")
@click.option("--explain", is_flag=True, help="Show what the score of each result is made of.")
@prints
def search(query: tuple[str, ...], path_glob: str | None, explain: bool, **filters: Any) -> Result:
    """Search the indexed code for QUERY: words that describe the code, or identifiers in it."""
    from reposync.search.query import read_query

    asked = read_query(" ".join(query), symbol=filters["symbol"], kind=filters["kind"], like=filters["like"])
    filters |= {"symbol": asked.symbol, "kind": asked.kind, "like": str(asked.like) if asked.like else None}
    words, hits = asked.words, None
    # A daemon answers with hits alone: which of their lines are like the place is not known without its code.
    if asked.like is None:
        hits = (ask_daemon(settings(), "/api/v1/search", {"q": words, "path": path_glob, **filters}) or {}).get("items")
    if hits is None:

        async def find(app: Application) -> tuple[list[SearchHit], str]:
            found = await app.searching.search(words, path_glob=path_glob, **filters)
            return found, await app.searching.words(words, repository=filters["repository"], like=filters["like"])

        found, words = run_with_app(find, with_engine=True)
        hits = [asdict(hit) for hit in found]
    documents = [{key: value for key, value in hit.items() if key not in ("commit", "version")} for hit in hits]
    return Result(documents, _hit_lines(words, hits, explain=explain))


def _hit_lines(text: str, hits: list[dict[str, Any]], *, explain: bool) -> Iterator[str]:
    """Each hit with the lines that match best. Coloured on a terminal only."""
    from reposync.search.snippets import best_snippet

    if not hits:
        yield "Nothing found."
    for number, hit in enumerate(hits):
        symbols = read_symbols(hit.get("symbols"))
        definitions = read_symbols(hit.get("definitions"))
        snippet = best_snippet(hit["text"], hit["start_line"], text, symbols=symbols, definitions=definitions)
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


@click.command()
@click.argument("pattern")
@click.option(
    "--repository",
    "repositories",
    metavar="NAME",
    multiple=True,
    help="Only in this repository; repeat it for several.",
)
@path_option
@language_option
@click.option("-F", "--fixed-strings", "fixed", is_flag=True, help="PATTERN is a text, not a regular expression.")
@click.option("-i", "--ignore-case", is_flag=True, help="Upper and lower case match each other.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Maximum number of lines.")
@prints
def grep(
    pattern: str, repositories: tuple[str, ...], path_glob: str | None, fixed: bool, ignore_case: bool, **filters: Any
) -> Result:
    """Print the lines of indexed files that match PATTERN, a regular expression in RE2's syntax.

    Every line is printed with its repository, path and number. The exit code is 0 also if nothing matches.
    """
    flags = {"fixed": fixed, "ignore_case": ignore_case}
    query = {"pattern": pattern, "repository": repositories, "path": path_glob, **filters}
    found = ask_daemon(settings(), "/api/v1/grep", query | {name: "true" for name in flags if flags[name]})
    if found is None:
        from reposync.search.grep import grep as search

        given: dict[str, Any] = {"repositories": repositories, "path_glob": path_glob, **filters, **flags}
        done = run_with_app(lambda app: search(app, pattern, **given), with_engine=True)
        found = {**asdict(done), "items": [asdict(each) for each in done.files], "is_complete": done.is_complete}
    hint = found["stopped"] or (None if found["items"] else "Nothing found.")
    return Result({key: found[key] for key in GREP_KEYS}, _matching_lines(found["items"]), hint)


def _matching_lines(files: list[dict[str, Any]]) -> Iterator[str]:
    """As ripgrep prints them. Coloured on a terminal only."""
    for file in files:
        place = f"{escape_unprintable(file['repository'])}:{escape_unprintable(file['path'])}"
        for match in file["matches"]:
            for number, text in enumerate(match["text"].split("\n"), match["line"]):
                shown = "\t".join(map(escape_unprintable, text.split("\t")))
                yield f"{click.style(f'{place}:{number}:', fg='cyan')} {shown}"


class _Lines(click.ParamType[tuple[int, int | None]]):
    name = "lines"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int | None]:
        match = _LINES.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is neither START-END, nor START- for all that follow, nor a line.", param, ctx)
        start = int(match[1])
        return start, int(match[3]) if match[3] else None if match[2] else start


@click.command()
@click.argument("repository")
@click.argument("path")
@click.option("--lines", metavar="START-END", type=_Lines(), help="Only these lines: 10-20, 10- or 10.")
@prints
def cat(repository: str, path: str, lines: tuple[int, int | None] | None) -> Result:
    """Print the file at PATH in REPOSITORY as it is indexed: of the commit that searches answer from.

    The text is exact, in UTF-8. On a terminal control characters are escaped.
    """
    from reposync.search.reading import read_file

    start, end = lines or (None, None)
    file = ask_daemon(settings(), f"/api/v1{file_address(repository, path)}", {"start": start, "end": end})
    if file is None:
        file = asdict(run_with_app(lambda app: read_file(app, repository, path, start, end), with_engine=True))
    text: str = file["text"]
    if sys.stdout.isatty():
        text = visible(text)
    hint = "These are the cells of the notebook." if file["is_notebook"] else None
    if file["outdated"]:
        hint = "This text is older than the commit: the newer version of the file could not be read."
    return Result(file, [text.encode()], hint)


@click.command("eval")
@click.argument("file", metavar="QUESTIONS.yaml", type=click.Path(path_type=Path))
@click.option("--misses", is_flag=True, help="List the questions whose answer is not the first result.")
@prints
def evaluate(file: Path, misses: bool) -> Result:
    """Measure how well search finds the known answers of QUESTIONS.yaml.

    Prints recall, MRR and NDCG of the first 10 results.
    """
    from reposync.search.evaluation import load_questions, scores

    questions = load_questions(file)
    ranks = run_with_app(lambda app: _ranks(app, questions), with_engine=True)
    missed = [(question, rank) for question, rank in zip(questions, ranks, strict=True) if rank != 1]
    live = scores(ranks)
    document = {
        "questions": len(questions),
        "live": asdict(live),
        "misses": [{**question.model_dump(), "ranks": {"live": rank}} for question, rank in missed],
    }
    return Result(document, [_scores(live), *(_miss_lines(*miss) for miss in missed if misses)])


async def _ranks(app: Application, questions: Sequence[Question]) -> list[int | None]:
    """The rank of each answer; None: not in the first 10."""
    from reposync.search.evaluation import DEPTH, ranks_of

    for name in sorted({question.repository for question in questions}):
        await app.repositories.get(name)  # before anything is searched: a wrong name is reported at once
    return await ranks_of(
        questions, lambda each: app.searching.search(each.question, repository=each.repository, limit=DEPTH)
    )


def _scores(live: Scores) -> Table:
    from reposync.search.evaluation import CUTOFFS, DEPTH

    title = "1 question" if live.questions == 1 else f"{live.questions:,} questions"
    figures = {f"recall@{at}": live.recall[at] for at in CUTOFFS}
    figures |= {f"MRR@{DEPTH}": live.mrr, f"NDCG@{DEPTH}": live.ndcg}
    return table([{title: name, "live": value} for name, value in figures.items()])


def _miss_lines(question: Question, rank: int | None) -> str:
    lines = "" if question.lines is None else f":{question.lines[0]}-{question.lines[1]}"
    place = f"{escape_unprintable(question.repository)} {escape_unprintable(question.path)}{lines}"
    found = f"rank {rank}" if rank else "not in the first 10"
    return f"\n{escape_unprintable(question.question)}\n  {place}: live {found}"

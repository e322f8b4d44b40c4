"""`reposync search`, `grep` and `cat`, and `eval`: how well search finds known answers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from reposync import operations
from reposync.cli.output import Line, Result, table
from reposync.cli.performing import Performer, performs
from reposync.cli.remote import server_option
from reposync.finding import masks_words
from reposync.words import escape_unprintable, visible

_LINES = re.compile(r"([1-9]\d{0,8})(-([1-9]\d{0,8})?)?")
OUTDATED = "older than the commit: could not be read"

repository_option = click.option(
    "--repository", metavar="NAME", multiple=True, help="Only in this repository; repeat it for several."
)
path_option = click.option(
    "--path", metavar="GLOB", help="Only files that match this gitignore pattern: 'src/**/*.py'."
)
language_option = click.option("--language", metavar="NAME", help="Only in this language: python, go, markdown ...")


@click.command()
@click.argument("query", nargs=-1)
@repository_option
@path_option
@language_option
@click.option("--symbol", metavar="NAME", help="Only chunks that define this name; also symbol:NAME in QUERY.")
@click.option(
    "--kind", metavar="KIND", help="Only chunks that define one of this kind: function, class ...; also kind:KIND."
)
@click.option("--like", metavar="PATH:LINE", help="In place of QUERY: code like that at this line of an indexed file.")
@click.option("--limit", type=click.IntRange(1, 100), default=5, show_default=True, help="Maximum number of results.")
@click.option("--explain", is_flag=True, help="Show what the score of each result is made of.")
@server_option
@performs
def search(perform: Performer, /, query: tuple[str, ...], explain: bool, **filters: Any) -> Result:
    """Search the indexed code for QUERY: words that describe the code, or identifiers in it."""
    found = perform(operations.search.search, {"q": " ".join(query), **filters})
    return Result(found, _hit_lines(found, explain=explain))


def _hit_lines(found: operations.search.Hits, *, explain: bool) -> Iterator[str]:
    """Each hit with the lines that match best. Coloured on a terminal only."""
    from reposync.search.snippets import best_snippet

    if not found.items:
        yield "Nothing found."
    for number, hit in enumerate(found.items):
        snippet = best_snippet(hit.text, hit.start_line, found.words, symbols=hit.symbols, definitions=hit.definitions)
        place = click.style(f"{escape_unprintable(hit.path)}:{snippet.best_line}", fg="cyan", bold=True)
        about = click.style(f"  {escape_unprintable(hit.repository)}  {hit.score:.3f}", dim=True)
        notes = f"  {OUTDATED}" if hit.outdated else ""
        notes += f"  masked: {masks_words(hit.masked)}" if hit.masked else ""
        if hit.meaning_indexed is not None:
            notes += f"  by words, {hit.meaning_indexed:.0%} of meaning indexed"
        if number:
            yield ""
        yield f"{place}{about}{click.style(notes, fg='yellow') if notes else ''}"
        if explain:
            yield click.style(f"  {_explained(hit)}", dim=True)
        width = len(str(snippet.lines[-1].number)) if snippet.lines else 1
        for line in snippet.lines:
            shown = f"  {line.number:>{width}} {'>' if line.matches else ' '} {line.text}"
            yield shown if line.matches else click.style(shown, dim=True)


def _explained(hit: operations.search.Hit) -> str:
    """`0.91 = words 0.58 + meaning 0.21 + definition 0.28 + path 0.23, times prior 0.70`."""
    parts = dict(hit.parts)
    prior = parts.pop("prior", 1.0)
    total = " + ".join(f"{name} {value:.2f}" for name, value in parts.items())
    return f"{hit.score:.2f} = {total}" + (f", times prior {prior:.2f}" if prior != 1.0 else "")


@click.command()
@click.argument("pattern")
@repository_option
@path_option
@language_option
@click.option("-F", "--fixed-strings", "fixed", is_flag=True, help="PATTERN is a text, not a regular expression.")
@click.option("-i", "--ignore-case", is_flag=True, help="Upper and lower case match each other.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Maximum number of lines.")
@server_option
@performs
def grep(perform: Performer, /, pattern: str, **filters: Any) -> Result:
    """Print the lines of indexed files that match PATTERN, a regular expression in RE2's syntax.

    Every line is printed with its repository, path and number. The exit code is 0 also if nothing matches.
    """
    found = perform(operations.search.grep, {"q": pattern, **filters})
    hint = found.stopped or (None if found.items else "Nothing found.")
    return Result(found, _matching_lines(found.items), hint)


def _matching_lines(files: list[operations.search.MatchingFile]) -> Iterator[str]:
    """As ripgrep prints them. Coloured on a terminal only."""
    for file in files:
        place = f"{escape_unprintable(file.repository)}:{escape_unprintable(file.path)}"
        for match in file.matches:
            for number, text in enumerate(match.text.split("\n"), match.line):
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
@server_option
@performs
def cat(perform: Performer, repository: str, path: str, lines: tuple[int, int | None] | None) -> Result:
    """Print the file at PATH in REPOSITORY as it is indexed: of the commit that searches answer from.

    The text is exact, in UTF-8. On a terminal control characters are escaped.
    """
    start, end = lines or (None, None)
    file = perform(operations.search.read, {"start": start, "end": end}, name=repository, path=path)
    text = visible(file.text) if sys.stdout.isatty() else file.text
    hint = "These are the cells of the notebook." if file.is_notebook else None
    if file.outdated:
        hint = "This text is older than the commit: the newer version of the file could not be read."
    return Result(file, [text.encode()], hint)


@click.command("eval")
@click.argument("file", metavar="QUESTIONS.yaml", type=click.Path(path_type=Path))
@click.option("--misses", is_flag=True, help="List the questions whose answer is not the first result.")
@performs
def evaluate(perform: Performer, file: Path, misses: bool) -> Result:
    """Measure how well search finds the known answers of QUESTIONS.yaml.

    Prints recall, MRR and NDCG of the first 10 results.
    """
    from reposync.search.evaluation import load_questions

    questions = [question.model_dump() for question in load_questions(file)]
    evaluation = perform(operations.search.evaluate, {"questions": questions})
    return Result(evaluation, [_scores(evaluation.live), *(_miss_lines(miss) for miss in evaluation.misses if misses)])


def _scores(live: operations.search.Scores) -> Line:
    from reposync.search.evaluation import CUTOFFS, DEPTH

    title = "1 question" if live.questions == 1 else f"{live.questions:,} questions"
    figures = {f"recall@{at}": live.recall[at] for at in CUTOFFS}
    figures |= {f"MRR@{DEPTH}": live.mrr, f"NDCG@{DEPTH}": live.ndcg}
    return table([{title: name, "live": value} for name, value in figures.items()])


def _miss_lines(miss: operations.search.Miss) -> str:
    lines = "" if miss.lines is None else f":{miss.lines[0]}-{miss.lines[1]}"
    place = f"{escape_unprintable(miss.repository)} {escape_unprintable(miss.path)}{lines}"
    rank = miss.ranks["live"]
    return f"\n{escape_unprintable(miss.question)}\n  {place}: live {f'rank {rank}' if rank else 'not in the first 10'}"

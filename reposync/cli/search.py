"""`reposync search`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from reposync.cli.completion import repository_names
from reposync.cli.output import json_option, print_json, visible
from reposync.cli.startup import run_async, settings

if TYPE_CHECKING:
    from reposync.config.settings import Settings
    from reposync.vectors.port import SearchHit

JSON_KEYS = ("repository", "path", "start_line", "end_line", "language", "score", "text", "url", "outdated")

OUTDATED = "older than the commit: could not be read"


@click.command()
@click.argument("query", nargs=-1, required=True)
@click.option("--repository", metavar="NAME", help="Only in this repository.", shell_complete=repository_names)
@click.option(
    "--path", "path_glob", metavar="GLOB", help="Only files that this gitignore pattern matches: 'src/**/*.py'."
)
@click.option("--language", metavar="NAME", help="Only in this language: python, go, markdown ...")
@click.option("--limit", type=click.IntRange(1, 100), default=5, show_default=True, help="At most so many results.")
@json_option
def search(
    query: tuple[str, ...],
    repository: str | None,
    path_glob: str | None,
    language: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Search the indexed code for QUERY, in words of what it does or by its identifiers."""
    told = settings()
    text = " ".join(query)
    hits = run_async(_search(told, text, repository, path_glob, language, limit))
    if as_json:
        print_json([{key: value for key, value in asdict(hit).items() if key in JSON_KEYS} for hit in hits])
    elif not hits:
        click.echo("Nothing found.")
    else:
        _print_hits(text, hits)


async def _search(
    told: Settings, text: str, repository: str | None, path_glob: str | None, language: str | None, limit: int
) -> list[SearchHit]:
    from reposync.app.application import open_application

    async with open_application(told, with_engine=True) as app:
        return await app.searching.search(
            text, repository=repository, path_glob=path_glob, language=language, limit=limit
        )


def _print_hits(text: str, hits: list[SearchHit]) -> None:
    """Each hit with the lines that match best. Plain text to a pipe; colours only on a terminal."""
    from rich.console import Console
    from rich.text import Text

    from reposync.embedding.sparse import query_terms
    from reposync.search.snippets import best_snippet

    console = Console(highlight=False, soft_wrap=True)
    for number, hit in enumerate(hits):
        snippet = best_snippet(hit.text, hit.start_line, query_terms, text)
        if number:
            console.print()
        heading = Text(f"{visible(hit.path)}:{snippet.best_line}", style="bold cyan")
        heading.append(f"  {visible(hit.repository)}  {hit.score:.3f}", style="dim")
        if hit.outdated:
            heading.append(f"  {OUTDATED}", style="yellow")
        console.print(heading)
        width = len(str(snippet.lines[-1].number)) if snippet.lines else 1
        for line in snippet.lines:
            mark, style = (">", "") if line.matches else (" ", "dim")
            console.print(Text(f"  {line.number:>{width}} {mark} {line.text}", style=style))

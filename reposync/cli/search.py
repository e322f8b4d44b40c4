"""`reposync search`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from reposync.cli.commands import json_option, repository_names
from reposync.cli.output import print_json
from reposync.cli.running_daemon import search_in_daemon
from reposync.cli.startup import run_with_app, settings
from reposync.words import escape_unprintable

JSON_KEYS = ("repository", "path", "start_line", "end_line", "language", "score", "text", "url", "outdated")

OUTDATED = "older than the commit: could not be read"


@click.command()
@click.argument("query", nargs=-1, required=True)
@click.option("--repository", metavar="NAME", help="Only in this repository.", shell_complete=repository_names)
@click.option(
    "--path", "path_glob", metavar="GLOB", help="Only files that match this gitignore pattern: 'src/**/*.py'."
)
@click.option("--language", metavar="NAME", help="Only in this language: python, go, markdown ...")
@click.option("--limit", type=click.IntRange(1, 100), default=5, show_default=True, help="Maximum number of results.")
@json_option
def search(
    query: tuple[str, ...],
    repository: str | None,
    path_glob: str | None,
    language: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Search the indexed code for QUERY: words that describe the code, or identifiers in it."""
    text = " ".join(query)
    filters = {"q": text, "repository": repository, "path": path_glob, "language": language, "limit": limit}
    hits = search_in_daemon(settings(), filters)
    if hits is None:
        found = run_with_app(
            lambda app: app.searching.search(
                text, repository=repository, path_glob=path_glob, language=language, limit=limit
            ),
            with_engine=True,
        )
        hits = [asdict(hit) for hit in found]
    if as_json:
        print_json([{key: hit[key] for key in JSON_KEYS} for hit in hits])
    elif not hits:
        click.echo("Nothing found.")
    else:
        _print_hits(text, hits)


def _print_hits(text: str, hits: list[dict[str, Any]]) -> None:
    """Each hit with the lines that match best. Coloured on a terminal only."""
    from reposync.embedding.sparse import query_terms
    from reposync.search.snippets import best_snippet

    for number, hit in enumerate(hits):
        snippet = best_snippet(hit["text"], hit["start_line"], query_terms, text)
        if number:
            click.echo()
        place = click.style(f"{escape_unprintable(hit['path'])}:{snippet.best_line}", fg="cyan", bold=True)
        outdated = click.style(f"  {OUTDATED}", fg="yellow") if hit["outdated"] else ""
        rank = click.style(f"  {escape_unprintable(hit['repository'])}  {hit['score']:.3f}", dim=True)
        click.echo(f"{place}{rank}{outdated}")
        width = len(str(snippet.lines[-1].number)) if snippet.lines else 1
        for line in snippet.lines:
            shown = f"  {line.number:>{width}} {'>' if line.matches else ' '} {line.text}"
            click.echo(shown if line.matches else click.style(shown, dim=True))

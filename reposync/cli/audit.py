"""`reposync audit`: who searched and read what."""

from __future__ import annotations

from datetime import datetime

import click

from reposync import operations
from reposync.cli.completion import repository_names
from reposync.cli.moments import Since
from reposync.cli.output import Code, Result
from reposync.cli.performing import Performer, performs
from reposync.cli.tables import table, wide_option
from reposync.words import ago


@click.command()
@click.option("--actor", metavar="NAME", help="Only what this one did, such as @ann.")
@click.option(
    "--repository", metavar="NAME", shell_complete=repository_names, help="Only what touched this repository."
)
@click.option("--operation", metavar="NAME", help="Only this operation, such as search, grep or read.")
@click.option("--since", type=Since(), metavar="AGE|TIME", help="Then or later: 24h, 7d, 2026-11-01 (UTC).")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="Maximum of entries.")
@click.option("--lines", is_flag=True, help="Print one JSON object a line, for other programs.")
@wide_option
@performs
def audit(
    perform: Performer,
    actor: str | None,
    repository: str | None,
    operation: str | None,
    since: datetime | None,
    limit: int,
    lines: bool,
) -> Result:
    """Who searched and read what, newest first. Empty unless the registry file has `audit: {enabled: true}`."""
    begin = None if since is None else since.isoformat()
    filters = {"actor": actor, "repository": repository, "operation": operation, "since": begin}
    page = perform.all_pages(operations.audit.audit, filters, limit=limit)
    if lines:
        return Result(page, [Code(each.model_dump_json()) for each in page.items])
    rows = [
        {
            **{"when": ago(each.at), "who": each.actor, "via": each.via, "from": each.address},
            **{"what": each.operation, "repositories": ", ".join(each.repositories[:3]), "hits": each.hits},
            **{"outcome": each.outcome},
        }
        for each in page.items
    ]
    if not rows:
        return Result(page, ["Nothing was recorded."])
    return Result(page, [table(rows, "when", "who", "what", "repositories", "hits", "outcome")])

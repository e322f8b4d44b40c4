"""`reposync access`: what somebody sees, and why."""

from __future__ import annotations

import click

from reposync import operations
from reposync.cli.output import Result
from reposync.cli.performing import Performer, performs
from reposync.cli.remote import server_option
from reposync.cli.tables import table
from reposync.words import escape_unprintable


@click.command()
@click.option("--name", metavar="TEXT", help="Only repositories with this in their name.")
@server_option
@performs
def access(perform: Performer, name: str | None) -> Result:
    """The repositories that you see, and why. With --server, what the owner of the token in the environment sees."""
    page = perform.all_pages(operations.access.access, {"name": name})
    total = "" if page.total is None else f" of {page.total:,}"
    noun = "repository is" if (page.visible if page.total is None else page.total) == 1 else "repositories are"
    as_of = f"{page.as_of:%H:%M:%S} UTC"
    who = escape_unprintable(page.actor)
    lines = [f"{who}: {page.visible:,}{total} {noun} yours to see, as of {as_of}."]
    if not page.is_explained:
        lines.append(f"{page.gitlab} did not say now why it shows you these projects. Try again in a moment.")
    rows = [
        {
            "repository": escape_unprintable(each.name),
            "maintained": "yes" if each.maintained else "",
            "because": escape_unprintable(each.reason or "-").replace("`", ""),
        }
        for each in page.items
    ]
    return Result(page, [*lines, *([table(rows, "repository", "because", "maintained")] if rows else [])])

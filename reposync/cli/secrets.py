"""`reposync secrets`: secrets that were found in indexed code."""

from __future__ import annotations

import click

from reposync import operations
from reposync.cli.output import Line, Result, short, table
from reposync.cli.performing import Performer, performs
from reposync.errors import FAILED
from reposync.words import ago


@click.command()
@click.argument("name", required=False)
@click.option("--fail", is_flag=True, help="Exit with 1 if there are any.")
@click.option("--purge", is_flag=True, help="First apply the present rules to all that is indexed.")
@performs
def secrets(perform: Performer, name: str | None, fail: bool, purge: bool) -> Result:
    """Secrets in the indexed files (of the repository NAME): where, of which kind, first seen in which commit. Never
    their values. What was in git has to be rotated: a mask does not make it secret again.
    """
    if purge:
        names = [name] if name is not None else perform(operations.syncs.targets).items
        for each in names:
            run = perform.follow(perform(operations.secrets.purge, name=each)).summary
            if run.error_message:
                click.echo(f"{each}: {run.error_message}", err=True)
    if name is None:
        page = perform.all_pages(operations.secrets.found_secrets)
    else:
        page = perform.all_pages(operations.secrets.repository_secrets, name=name)
    rows = [
        {
            **{"repository": found.repository, "path": found.path, "line": found.line, "rule": found.rule},
            **{"action": found.action, "fingerprint": found.fingerprint},
            **{"first seen in": short(found.first_commit), "since": ago(found.first_seen_at)},
        }
        for found in page.items
    ]
    lines: list[Line] = [table(rows, fold=("repository", "path", "rule"))] if rows else ["No secrets were found."]
    return Result(page, lines, exit_code=FAILED if fail and rows else 0)

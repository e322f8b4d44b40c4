"""`reposync secrets`: secrets that were found in indexed code."""

from __future__ import annotations

import click

from reposync import operations
from reposync.cli.completion import repository_names
from reposync.cli.output import Result, short, warn
from reposync.cli.performing import Performer, performs
from reposync.cli.tables import table, wide_option
from reposync.errors import FAILED
from reposync.words import ago


@click.command()
@click.argument("name", required=False, shell_complete=repository_names)
@click.option("--fail", is_flag=True, help="Exit with 1 if there are any.")
@click.option("--purge", is_flag=True, help="First apply the present rules to all that is indexed.")
@wide_option
@performs
def secrets(perform: Performer, name: str | None, fail: bool, purge: bool) -> Result:
    """Secrets in the indexed files (of the repository NAME): where, of which kind, first seen in which commit. Never
    their values. What was in git has to be rotated: a mask does not make it secret again.
    """
    if purge:
        names = [name] if name is not None else perform(operations.syncs.targets).items
        for each in names:
            run = perform.follow(perform.request(operations.secrets.purge, name=each)).summary
            if run.error_message:
                warn(each, run.error_message)
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
    if not rows:
        return Result(page, ["No secrets were found."])
    shown = table(rows, "repository", "path", "line", "rule", "action", "since")
    return Result(page, [shown], exit_code=FAILED if fail else 0)

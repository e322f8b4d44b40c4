"""`reposync sync --plan`: what a sync would change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from reposync.cli.output import print_json, short, visible

if TYPE_CHECKING:
    from reposync.config.settings import Settings
    from reposync.sync.preview import Preview


async def show_plans(told: Settings, words: tuple[str, ...], *, full: bool, as_json: bool) -> None:
    """Print one plan a target. Nothing is written, not even that the repository was looked at."""
    from reposync.app.application import open_application
    from reposync.cli.progress_display import open_display
    from reposync.cli.sync import targets_of
    from reposync.sync.progress import RunProgress

    async with open_application(told, with_engine=True) as app:
        plans = []
        for target in await targets_of(app, words):
            with open_display(target.name) as watch:
                plans.append(await app.preview(target, full=full, progress=RunProgress(), watch=watch))
    if as_json:
        print_json([plan.as_json() for plan in plans])
        return
    for plan in plans:
        click.echo(_told(plan))


def _told(plan: Preview) -> str:
    lines = [f"{visible(plan.repository)}: {short(plan.commit_before)} -> {short(plan.commit)}"]
    if not (plan.files_to_read or plan.files_to_delete or plan.files_to_skip):
        lines.append("  nothing to do")
    else:
        lines += [
            f"  files   {plan.files_to_store:,} to store, {plan.files_to_delete:,} to delete, "
            f"{plan.files_to_skip:,} to skip, {plan.files_renamed:,} renamed, {plan.files_unchanged:,} unchanged",
            f"  chunks  {plan.chunks:,}, of which {plan.chunks_to_embed:,} to embed "
            f"({plan.characters_to_embed:,} characters)",
        ]
    lines += [f"  {text}" for text in (plan.index_notice, plan.blocked) if text]
    return "\n".join(lines)

"""Groups of commands that name the one that was most likely meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click


class Group(click.Group):
    """`elsewhere`: what people look for in this group under such a name, and the whole command that does it."""

    def __init__(self, *args: Any, elsewhere: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._elsewhere = elsewhere or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        unknown = self.get_command(ctx, word) is None and not word.startswith("-")
        if unknown and not ctx.resilient_parsing:
            ctx.fail(f"No such command: `{ctx.command_path} {word}`.{self._meant(ctx, word)}")
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: click.Context, word: str) -> str:
        from reposync.config.problems import nearest

        commands = self.list_commands(ctx)
        if meant := self._elsewhere.get(word):
            return f" Did you mean `reposync {meant}`?"
        if near := nearest(word, commands):
            return f" Did you mean `{ctx.command_path} {near}`?"
        return f" There are: {', '.join(commands)}."

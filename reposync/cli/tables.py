"""Tables for people. A terminal that is too narrow shows the most important columns; a pipe gets all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from reposync.cli.terminal import cells, cut, padded, width_of
from reposync.words import ago, escape_unprintable, until

F = TypeVar("F", bound=Callable[..., Any])

_WIDE = "reposync.wide"
_GAP = "  "
_LEAST_CELLS = 24
"""To so many columns of the terminal a longer cell is shortened before a column is left out."""

STYLES = {
    **dict.fromkeys(("completed", "live", "held"), "green"),
    **dict.fromkeys(("failed", "foreign"), "red"),
    **dict.fromkeys(("blocked", "cancelled", "stale"), "yellow"),
    **dict.fromkeys(("running", "building", "database"), "cyan"),
    "retired": "bright_black",
}
"""Colors of cells with these texts."""


@dataclass(frozen=True)
class Table:
    """`order`: titles of the columns, the most important one first; those that are not named follow in their order."""

    titles: tuple[str, ...]
    rows: list[tuple[str, ...]]
    right: frozenset[str]
    order: tuple[str, ...]

    def lines(self, width: int | None) -> Iterator[str]:
        """For a terminal of so many columns, styled; None: all there is."""
        table = [self.titles, *self.rows]
        natural = {title: max(map(cells, column)) for title, *column in zip(self.titles, *table, strict=True)}
        widths = natural if width is None else self._fitting(natural, width)
        for number, row in enumerate(table):
            shown = []
            for title, cell in zip(self.titles, row, strict=True):
                if title in widths:
                    text = cut(cell, widths[title])
                    text = styled(text) if number else click.style(text, bold=True)
                    shown.append(padded(text, widths[title], right=title in self.right))
            yield _GAP.join(shown).rstrip()
        if (left_out := len(natural) - len(widths)) > 0:
            yield click.style(f"{left_out} more column{'s' * (left_out > 1)}: --wide", dim=True)
        elif widths != natural:
            yield click.style("Whole texts: --wide", dim=True)

    def _fitting(self, natural: Mapping[str, int], width: int) -> dict[str, int]:
        """The widths of the columns that fit, in the order of the table."""
        ranked = [*self.order, *(title for title in self.titles if title not in self.order)]
        kept: dict[str, int] = {}
        room = width + len(_GAP)
        for title in ranked:
            if title not in natural:
                continue
            least = min(natural[title], _LEAST_CELLS)
            if kept and least + len(_GAP) > room:
                break
            kept[title] = least
            room -= least + len(_GAP)
        for title in ranked:
            if title in kept and room > 0:
                more = min(room, natural[title] - kept[title])
                kept[title] += more
                room -= more
        return {title: kept[title] for title in self.titles if title in kept}


def styled(text: str) -> str:
    """In the color of a state."""
    return click.style(text, fg=STYLES[text]) if text in STYLES else text


def table(rows: Sequence[Mapping[str, Any]], *order: str) -> Table:
    """The keys of the first row are the titles; `failed` is left out if it is zero everywhere. `order`: the most
    important columns first. Control characters are escaped."""
    if not any(row.get("failed") for row in rows):
        rows = [{key: value for key, value in row.items() if key != "failed"} for row in rows]
    titles = tuple(rows[0])
    right = frozenset(title for title, value in rows[0].items() if isinstance(value, int | float))
    return Table(titles, [tuple(brief(row.get(title)) for title in titles) for row in rows], right, order)


def wide_option(command: F) -> F:
    """`--wide`, for a command that prints tables."""

    def remember(ctx: click.Context, option: click.Parameter, value: bool) -> None:
        ctx.meta[_WIDE] = value

    option = click.option(
        "--wide", is_flag=True, expose_value=False, callback=remember, help="Every column, also if lines get too long."
    )
    return option(command)


def table_width() -> int | None:
    """The width of tables on stdout; None for all there is."""
    return None if click.get_current_context().meta.get(_WIDE) else width_of(sys.stdout)


def brief(value: Any) -> str:
    """A value in few words."""
    match value:
        case None:
            return "-"
        case datetime():
            return ago(value) if value <= datetime.now(UTC) else until(value)
        case int() | float():
            return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
        case _:
            return escape_unprintable(str(value))

"""Templates, and how values look in them. Everything from a repository is escaped for HTML and for the eye."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from pygments import highlight  # type: ignore[import-untyped]
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexers import TextLexer, get_lexer_by_name  # type: ignore[import-untyped]
from pygments.util import ClassNotFound  # type: ignore[import-untyped]

from reposync.words import ago, duration, escape_unprintable, until

# A highlighter of a language may take long for what is not quite in that language.
LONGEST_HIGHLIGHTED_CHARS = 12_000


def make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("reposync.api.web"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    filters: dict[str, Callable[..., object]] = {
        "iso": lambda when: when.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "utc": lambda when: f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "utc_short": lambda when: f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
        "relative": relative,
        "duration": duration,
        "rounded_duration": lambda seconds: duration(max(10.0, seconds)) if seconds >= 9.5 else f"{seconds:.0f} s",
        "size": size,
        "visible": lambda text: escape_unprintable(str(text)),
        "prose": prose,
    }
    environment.filters.update(filters)
    return environment


def relative(when: datetime) -> str:
    return ago(when) if when <= datetime.now(UTC) else until(when)


def size(count: float) -> str:
    """Of bytes: `840 B`, `2.4 MB`."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= least:
            return f"{count / least:.1f} {unit}"
    return f"{count:.0f} B"


def highlighted(text: str, language: str | None, first_line: int) -> Markup:
    """`text` as HTML with classes (static/code.css) and the numbers that its lines have in the file."""
    lines = "\n".join(visible_code(line) for line in text.split("\n"))
    lexer = _lexer(language if len(lines) <= LONGEST_HIGHLIGHTED_CHARS else None)
    formatter = HtmlFormatter(linenos="inline", linenostart=first_line, wrapcode=True)
    return Markup(highlight(lines, lexer, formatter))  # noqa: S704 - Pygments escapes


def visible_code(line: str) -> str:
    """Tabs stay; what would move the cursor or turn the writing around is shown."""
    return "\t".join(escape_unprintable(part) for part in line.rstrip("\r").split("\t"))


@lru_cache(maxsize=64)
def _lexer(language: str | None) -> object:
    if language is not None:
        try:
            return get_lexer_by_name(language.lower().replace(" ", ""), stripnl=False)
        except ClassNotFound:
            pass
    return TextLexer(stripnl=False)


def prose(text: str) -> Markup:
    """A sentence whose words between backticks are code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    shown = [
        Markup("<code>{}</code>").format(each) if number % 2 else escape(each) for number, each in enumerate(pieces)
    ]
    return Markup().join(shown)

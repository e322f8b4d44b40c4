"""`${VAR}` and `${VAR:-default}` in the text values of the registry; `$$` is a dollar sign.

Variables are put in after the YAML is parsed, so that no value can change the structure of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_REFERENCE = re.compile(
    r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}|(?P<open>\{))"
)


class InterpolationError(ValueError):
    """A reference that cannot be read, or a variable that is not set. The message holds no value of a variable."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a text: literal where `variable` is None. `defaulted`: the text is the default in the file."""

    text: str
    variable: str | None = None
    defaulted: bool = False


class Interpolated(str):
    """A text that holds the values of variables. `raw` is what stands in the file, `parts` what it was made of."""

    raw: str
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, raw: str, parts: tuple[Part, ...]) -> Interpolated:
        text = cls("".join(part.text for part in parts))
        text.raw, text.parts = raw, parts
        return text

    @property
    def from_environment(self) -> tuple[Part, ...]:
        """The parts that are values of variables, not defaults that stand in the file."""
        return tuple(part for part in self.parts if part.variable and not part.defaulted)


def interpolate(raw: str, environ: Mapping[str, str]) -> str:
    """`raw` with its references replaced: an `Interpolated` where a variable stands in it, else a plain text.

    As in a shell, `${VAR:-default}` gives the default where the variable is not set or empty. A dollar sign before
    anything but `{` and `$` is itself. Raises InterpolationError.
    """
    parts: list[Part] = []
    at = 0
    for match in _REFERENCE.finditer(raw):
        if match.start() > at:
            parts.append(Part(raw[at : match.start()]))
        parts.append(_part(match, environ))
        at = match.end()
    if at < len(raw):
        parts.append(Part(raw[at:]))
    if all(part.variable is None for part in parts):
        return "".join(part.text for part in parts)
    return Interpolated.of(raw, tuple(parts))


def _part(match: re.Match[str], environ: Mapping[str, str]) -> Part:
    if match["dollar"]:
        return Part("$")
    if match["open"]:
        raise InterpolationError(
            "`${` starts a reference that cannot be read: write ${NAME} or ${NAME:-default} (letters, digits and _; "
            "no braces in the default), or $${ for the characters themselves"
        )
    name, default = match["name"], match["default"]
    value = environ.get(name)
    if value is None and default is None:
        raise InterpolationError(f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
    if default is not None and not value:
        return Part(default, name, defaulted=True)
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise InterpolationError(f"the environment variable {name} is not valid UTF-8") from None
    return Part(value or "", name)

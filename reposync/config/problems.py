"""What is wrong with a YAML file: the place, the sentence for a person, and the name they probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from reposync.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel

Loc = tuple[str | int, ...]
"""The path from the top of a file to a value: keys and list indices from 0."""

LISTED_NAMES = 30
_SCHEDULE = "write `schedule`, which takes a crontab, `@every 10m`, `every 6 hours` or `never`"
_REPOSITORIES = "write `repositories`: a list of entries, each with a `name` and a source"
_KEYS_OF_OTHER_PROGRAMS = {
    **{(section, key): _SCHEDULE for section in ("defaults", "repositories", "groups") for key in ("cron", "interval")},
    **{("", key): _REPOSITORIES for key in ("repos", "projects")},
    ("repositories", "url"): "write `git` for the https:// address of a repository, or `gitlab` and `project` for a "
    "project of a listed server",
}
"""What to write instead, by section ("" is the top of the file) and key."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file; line and column count from 1, columns in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding in a file, an error or a warning. The message never holds a secret or the value of a variable."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class RegistryErrors(ConfigError):
    """All problems of a registry file, or of a file that it names, in the order of the file. Nothing was started."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        ordered = sorted(set(problems), key=lambda problem: (problem.line, problem.column, problem.message))
        super().__init__("\n".join(map(str, ordered)))
        self.problems = tuple(ordered)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that `word` was most likely meant to be, ignoring case. None if no name is near."""
    by_folded = {name.casefold(): name for name in known}
    # difflib compares every character with every other, so a value of megabytes is cut first.
    found = difflib.get_close_matches(word[:200].casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """A clause to append to an error: the nearest known name, or the known names if none is near."""
    names = sorted(set(known))
    if near := nearest(word, names):
        return f"; did you mean `{near}`?"
    if not names:
        return "; there is none"
    more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
    return f"; known here: {', '.join(names[:LISTED_NAMES])}{more}"


def dotted(loc: Loc) -> str:
    """`repositories[2].chunk.size`"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")


def known_keys(loc: Loc, model: type[BaseModel]) -> tuple[str, ...]:
    """The keys that a mapping at this place of a `model` may have."""
    for part in loc:
        if isinstance(part, str):
            model = next(_models(model.model_fields[part].annotation))
    return tuple(field.alias or name for name, field in model.model_fields.items())


def unknown_key(loc: Loc, within: Loc, model: type[BaseModel]) -> str:
    """The sentence about it. `within`: where in a `model` the checked value belongs."""
    key, around, whole = str(loc[-1]), dotted(loc[:-1]), (*within, *loc)
    # A whole line pasted in the wrong place may be the key: it is cut, because a secret may follow a space.
    shown = key if re.fullmatch(r"[\w.-]{1,40}", key) else f"{key.split()[0][:20] if key.split() else ''}…"
    if key == "<<":
        help_text = "; a quoted << is not a merge key: write <<: *name"
    elif key.startswith("x-"):
        help_text = "; keys that start with x- are ignored at the top of the file only"
    elif instead := _KEYS_OF_OTHER_PROGRAMS.get((str(whole[0]) if len(whole) > 1 else "", key)):
        help_text = f"; {instead}"
    else:
        help_text = suggestion(key, known_keys(whole[:-1], model))
    return f"unknown key `{shown}`{f' in {around}' if around else ''}{help_text}"


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in an annotation such as `tuple[Repository, ...]` or `Chunk | None`."""
    if hasattr(annotation, "model_fields"):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)

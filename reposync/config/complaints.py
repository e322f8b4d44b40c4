"""What pydantic found, as a sentence for a person."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from reposync.config.document import EXTENSION, Document, Loc
from reposync.config.problems import Problem
from reposync.config.registry import Registry
from reposync.config.schedule import ScheduleError
from reposync.config.spelling import hint, nearest

REPOSITORY: Loc = ("repositories", 0)
"""Where a repository that stands alone belongs."""

_SCHEDULE = "write `schedule`, which takes a crontab, `@every 10m`, `every 6 hours` or `never`"
_REPOSITORIES = "write `repositories`: a list of entries with a `name` and a place each"
_MEANT = {
    **{(section, key): _SCHEDULE for section in ("defaults", "repositories", "groups") for key in ("cron", "interval")},
    **{("", key): _REPOSITORIES for key in ("repos", "projects")},
}
"""What to write instead of keys of other programs, by section ("" is the top of the file) and key."""

_KINDS = {
    "tuple_type": "must be a list, such as [one, two]",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
}


def complaints(error: ValidationError, document: Document, *, model: type[BaseModel] = Registry) -> list[Problem]:
    """What is wrong with the values of `document`, except for those that are known to be wrong already."""
    found = error.errors(include_url=False, include_input=False)
    extra = {details["loc"] for details in found if details["type"] == "extra_forbidden"}
    # What to write in place of a `url` says where the entry is, too.
    said = {(*loc[:-1], "path") for loc in extra if loc[-1] == "url"}
    return [
        problem(document, details["loc"], complaint(details, document, model=model))
        for details in found
        if details["loc"] in extra or not (details["loc"] in said or document.is_unusable(details["loc"]))
    ]


def problem(document: Document, loc: Loc, message: str) -> Problem:
    """`message` about the value at `loc`, with its place and without values of variables."""
    place = document.keys.get(loc) if message.startswith("unknown key") else None
    return document.problem(place or document.place_of(loc), document.without_values(message))


def complaint(details: ErrorDetails, document: Document, *, within: Loc = (), model: type[BaseModel] = Registry) -> str:
    """One sentence that names the key and, where a name is unknown, the nearest known one.

    `within` is where in a `model`, or a list of them, the checked value belongs. No secret is in the sentence; values
    of variables may be, for `Document.without_values` to take out.
    """
    loc, kind, context = details["loc"], details["type"], details.get("ctx", {})
    key = dotted(loc)
    if kind == "extra_forbidden":
        return _unknown_key(loc, known_keys((*within, *loc[:-1]), model), _meant((*within, *loc), document))
    if kind == "missing":
        return f"{_around(loc)}`{loc[-1]}` is missing"
    if kind == "contradiction":
        other = context.get("other")
        where = f", in line {document.place_of(other).line}" if other else ""
        return f"{key}: {context['message']}{where}"
    if kind == "value_error":
        error = context["error"]
        text = document.interpolated.get(loc)
        if isinstance(error, ScheduleError) and text and text.from_environment:
            # A ScheduleError shows pieces of the text, and a variable's value may be a secret in the wrong place.
            return f"{key}: the value of {text.raw} cannot be read"
        own_words = isinstance(error, ScheduleError) or getattr(error, "own_words", False)
        return f"{_around(loc)}{error}" if own_words else f"{key} {error}"
    if kind == "literal_error":
        return f"{key} must be {context['expected']}{_nearest_word(loc, str(context['expected']), document)}"
    if kind in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        bound = next(iter(context.values()))
        bound = int(bound) if float(bound).is_integer() else bound
        words = {"greater_than_equal": "at least", "greater_than": "more than", "less_than_equal": "at most"}
        return f"{key} must be {words.get(kind, 'less than')} {bound:,}"
    if kind in _KINDS:
        return f"{key} {_KINDS[kind]}" if loc else f"the file {_KINDS[kind]}, such as `repositories:`"
    return f"{key}: {details['msg']}"


def dotted(loc: Loc) -> str:
    """`repositories[2].chunk.size`"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")


def _around(loc: Loc) -> str:
    return f"{dotted(loc[:-1])}: " if loc[:-1] else ""


def _unknown_key(loc: Loc, known: tuple[str, ...], meant: str | None) -> str:
    key, around = str(loc[-1]), dotted(loc[:-1])
    where = f" in {around}" if around else ""
    # A whole line pasted in the wrong place may be the key: it is cut, and it may hold a secret after a space.
    shown = key if re.fullmatch(r"[\w.-]{1,40}", key) else f"{key.split()[0][:20] if key.split() else ''}…"
    return f"unknown key `{shown}`{where}{f'; {meant}' if meant else hint(key, known)}"


def _meant(loc: Loc, document: Document) -> str | None:
    """What to write instead of a key that other programs have."""
    section, key = (str(loc[0]) if len(loc) > 1 else "", str(loc[-1]))
    if key == "<<":
        return "in quotes it is no merge key: write <<: *name"
    if key.startswith(EXTENSION):
        return "a key that starts with x- is left alone at the top of the file only"
    if (section, key) == ("repositories", "url"):
        return _place_of_url(document.texts.get(loc, ""), document)
    return _MEANT.get((section, key))


def _place_of_url(url: str, document: Document) -> str:
    """`git`, or `gitlab` and `project` if the address is one of a server that the file lists."""
    servers = document.data.get("gitlab") if isinstance(document.data, Mapping) else None
    for server in servers if isinstance(servers, list) else []:
        base, name = (server.get("url"), server.get("name")) if isinstance(server, Mapping) else (None, None)
        if not isinstance(base, str) or not isinstance(name, str) or not base.strip("/"):
            continue
        project = url.removeprefix(base.rstrip("/") + "/").removesuffix("/").removesuffix(".git")
        # Only a plain path is repeated: an address may hold a secret.
        if project != url and re.fullmatch(r"[\w.-]+(?:/[\w.-]+)+", project):
            return f"write `gitlab: {name}` and `project: {project}`"
    return "write `git` for the https:// address of a repository, or `gitlab` and `project` for one of a listed server"


def known_keys(loc: Loc, model: type[BaseModel] = Registry) -> tuple[str, ...]:
    """The keys that a mapping at this place of a `model` may have."""
    for part in loc:
        if isinstance(part, str):
            model = next(_models(model.model_fields[part].annotation))
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in an annotation such as `tuple[Repository, ...]` or `Chunk | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _nearest_word(loc: Loc, expected: str, document: Document) -> str:
    near = nearest(document.texts.get(loc, ""), re.findall(r"'([^']*)'", expected))
    return f"; did you mean `{near}`?" if near else ""

"""A YAML text as plain values, with the place of every key and value, and with bounds on hostile input."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from reposync.config.references import Interpolated, InterpolationError, interpolate
from reposync.errors import ConfigError

Loc = tuple[str | int, ...]
"""The path from the top of a file to a value: keys and list indices from 0."""

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
# Aliases let a small file expand to an enormous one ("billion laughs"): the expanded size counts.
MAX_VALUES = 100_000

EXTENSION = "x-"
"""Keys at the top of the file with this prefix are ignored: a place for anchors, as in Compose files."""

_UNUSABLE = object()
"""Replaces a value that cannot be read: no field accepts it."""

_TAG = "tag:yaml.org,2002:"
_TAG_MESSAGE = "a value that starts with ! is a tag in YAML, and tags are not used here: write it in quotes"


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
        self.details = {"problems": list(map(asdict, ordered))}


@dataclass
class Document:
    """`data` holds dict, list, str (`Interpolated` if it holds a variable), int, float, bool and None.

    `problems` are findings that do not stop the reading; `unusable` are the values that they are about.
    """

    file: str
    data: Any = None
    values: dict[Loc, Place] = field(default_factory=dict)
    keys: dict[Loc, Place] = field(default_factory=dict)
    texts: dict[Loc, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unusable: set[Loc] = field(default_factory=set)

    def problem(self, place: Place, message: str) -> Problem:
        return Problem(self.file, place.line, place.column, message)

    def error(self, place: Place, message: str) -> RegistryErrors:
        """The error for a file that cannot be read as a whole."""
        return RegistryErrors([self.problem(place, message)])

    def problem_at(self, loc: Loc, message: str) -> Problem:
        """`message` about the value at `loc`, with its place and without values of variables."""
        place = self.keys.get(loc) if message.startswith("unknown key") else None
        return self.problem(place or self.place_of(loc), self.without_values(message))

    def place_of(self, loc: Loc) -> Place:
        """The place of the value at `loc` or, if it is missing, of the nearest value around it."""
        while loc and loc not in self.values:
            loc = loc[:-1]
        return self.values.get(loc, Place(1, 1))

    def without_values(self, message: str) -> str:
        """`message` with every value of a variable, which may be a secret, replaced by its reference."""
        interpolated = [text for text in self.texts.values() if isinstance(text, Interpolated)]
        used = {pair for text in interpolated for pair in text.values.items()}
        # Values as short as these are no secrets, and replacing them would garble the message.
        shown = {(form, name) for name, value in used if len(value) > 3 for form in (value, repr(value)[1:-1])}
        for value, variable in sorted(shown, key=lambda pair: -len(pair[0])):
            message = message.replace(value, f"${{{variable}}}")
        return message

    def is_unusable(self, loc: Loc) -> bool:
        """Whether this value, or one around it, has a problem already."""
        return any(loc[:length] in self.unusable for length in range(len(loc) + 1))


def read_document(
    content: bytes, file: str, environ: Mapping[str, str] | None, *, max_bytes: int = MAX_BYTES
) -> Document:
    """Parse YAML 1.2 and resolve the variables; without `environ` every text stays as it is written.

    Raises RegistryErrors if the text as a whole cannot be read.
    """
    document = Document(file)
    if len(content) > max_bytes:
        raise document.error(Place(1, 1), f"the file is larger than {max_bytes:,} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _end_of(content[: error.start].decode("utf-8-sig", "replace"))
        raise document.error(place, "not UTF-8 text: save the file as UTF-8") from None
    root = _composed(text, document)
    document.data = None if root is None else _Reader(document, environ).read(root, ())
    return document


def _end_of(text: str) -> Place:
    return Place(text.count("\n") + 1, len(text) - text.rfind("\n"))


def _composed(text: str, document: Document) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = MAX_DEPTH
    yaml.composer.warn_double_anchors = False
    try:
        return yaml.compose(text)
    except MarkedYAMLError as error:
        # A bracket or quote that is never closed is noticed at the end of the file: show where it opens.
        opened = error.context_mark if re.search("unexpected end|<stream end>", str(error.problem)) else None
        mark = opened or error.problem_mark or error.context_mark
        place = Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)
        is_deep = type(error).__name__ == "MaxDepthExceededError"
        found = document.error(place, f"values are nested more than {MAX_DEPTH} deep" if is_deep else _NOT_YAML)
    except (YAMLError, RecursionError, ValueError) as error:
        found = document.error(_end_of(text[: getattr(error, "position", 0)]), _NOT_YAML)
    raise found


# Not the parser's own message: it quotes the file, which may hold a secret.
_NOT_YAML = (
    "not YAML: wrong indentation, a tab, or a missing quote, bracket, colon or dash; a text that starts with a special "
    "character or holds `: ` needs quotes, and so does ${VARIABLE} inside { } and [ ]"
)


class _Reader:
    """Walks the parser's nodes once and fills the document."""

    def __init__(self, document: Document, environ: Mapping[str, str] | None) -> None:
        from ruamel.yaml import YAML

        self.document = document
        self.environ = environ
        self.constructor = YAML(typ="safe", pure=True).constructor
        self.count = 0
        self.open: set[int] = set()

    def read(self, node: Any, loc: Loc) -> Any:
        place = self.document.values[loc] = _start(node)
        self.count_one(place)
        if id(node) in self.open:
            return self.refuse(place, loc, "an alias to something that contains it")
        self.open.add(id(node))
        try:
            match (node.id, str(node.tag).removeprefix(_TAG)):
                case ("mapping", "map"):
                    return self.mapping(node, loc)
                case ("sequence", "seq"):
                    return [self.read(item, (*loc, index)) for index, item in enumerate(node.value)]
                case ("scalar", kind):
                    return self.scalar(node, kind, loc)
            return self.refuse(place, loc, _TAG_MESSAGE)
        except InterpolationError as error:
            return self.refuse(place, loc, str(error))
        except ValueError:
            return self.refuse(place, loc, "a number that cannot be read")
        finally:
            self.open.discard(id(node))

    def count_one(self, place: Place) -> None:
        self.count += 1
        if self.count > MAX_VALUES:
            raise self.document.error(place, f"more than {MAX_VALUES:,} values, aliases expanded")

    def refuse(self, place: Place, loc: Loc, message: str) -> Any:
        """Record the problem and return the replacement of the value."""
        self.report(place, message)
        self.document.unusable.add(loc)
        return _UNUSABLE

    def report(self, place: Place, message: str) -> None:
        self.document.problems.append(self.document.problem(place, message))

    def mapping(self, node: Any, loc: Loc) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, place, value, own in self.pairs(node):
            if not loc and key.startswith(EXTENSION):
                continue
            if (*loc, key) not in self.document.keys:
                self.document.keys[(*loc, key)] = place
                found[key] = self.read(value, (*loc, key))
                if found[key] == "" and isinstance(found[key], Interpolated):
                    del found[key]  # `url: ${REPOSYNC_QDRANT_URL:-}` without the variable: as if it was left out
            elif own:
                self.report(place, f"`{key}` is there already, in line {self.document.keys[(*loc, key)].line}")
        return found

    def pairs(self, node: Any, *, own: bool = True) -> Iterator[tuple[str, Place, Any, bool]]:
        """Keys and values, and whether they are the mapping's own: these come first, and win over those of merge keys
        (`<<`); then the first mapping of a list wins."""
        merges = []
        for key, value in node.value:
            if not isinstance(key.value, str):
                self.report(_start(key), "a key must be plain text")
            elif str(key.tag) == f"{_TAG}merge":
                merges += [(_start(key), each) for each in (value.value if value.id == "sequence" else [value])]
            else:
                yield key.value, _start(key), value, own
        for place, each in merges:
            self.count_one(place)
            if each.id != "mapping" or id(each) in self.open:
                self.report(place, "`<<` takes an alias of a different mapping (`<<: *name`), or a list of them")
                continue
            self.open.add(id(each))
            yield from self.pairs(each, own=False)
            self.open.discard(id(each))

    def scalar(self, node: Any, kind: str, loc: Loc) -> Any:
        if kind in ("null", "bool", "int", "float"):
            return self.constructor.construct_object(node)
        if kind in ("str", "timestamp", "value", "merge"):
            return self.text(node.value, loc)
        return self.refuse(self.document.values[loc], loc, _TAG_MESSAGE)

    def text(self, raw: str, loc: Loc) -> str:
        self.document.texts[loc] = text = raw if self.environ is None else interpolate(raw, self.environ)
        return text


def _start(node: Any) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)

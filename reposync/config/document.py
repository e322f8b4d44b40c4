"""A YAML text as plain values, with the place of every key and value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from reposync.config.interpolation import Interpolated, InterpolationError, interpolate
from reposync.config.problems import Place, Problem, RegistryErrors

Loc = tuple[str | int, ...]
"""The way from the top of the file to a value: keys and list indices from 0."""

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
# Aliases let a small file stand for an enormous one ("billion laughs"): what counts is the expanded size.
MAX_VALUES = 100_000
MAX_NODES = 2 * MAX_VALUES  # keys are nodes of the parser's, too

EXTENSION = "x-"
"""Keys at the top of the file that start like this are not read: a place for anchors, as in Compose files."""

UNUSABLE = object()
"""Stands in for a value that cannot be had: nothing accepts it, and it is not mistaken for one that is left out."""

_TAG = "tag:yaml.org,2002:"
_OLD_YAML = re.compile(r"^%YAML[ \t]+(?!1\.2[ \t]*(?:#|$))", re.MULTILINE)
_BARE_REFERENCE = re.compile(r"\$\{")


@dataclass
class Document:
    """`data` holds dict, list, str (`Interpolated` where a variable stands in it), int, float, bool and None.

    `problems` are findings that do not stop the reading, by the way to their value; what stands at such a way in
    `data` is a stand-in. `texts` are the text values as they stand in the file.
    """

    file: str
    data: Any = None
    values: dict[Loc, Place] = field(default_factory=dict)
    keys: dict[Loc, Place] = field(default_factory=dict)
    texts: dict[Loc, str] = field(default_factory=dict)
    interpolated: dict[Loc, Interpolated] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unusable: set[Loc] = field(default_factory=set)

    def problem(self, place: Place, message: str) -> Problem:
        return Problem(self.file, place.line, place.column, message)

    def place_of(self, loc: Loc) -> Place:
        """Where the value at `loc` stands; where it is missing, the nearest value around it."""
        while loc and loc not in self.values:
            loc = loc[:-1]
        return self.values.get(loc, Place(1, 1))

    def without_values(self, message: str) -> str:
        """`message` with every value of a variable in it replaced by the reference: it may be a secret."""
        for value, variable in sorted(self._values_shown(), key=lambda pair: -len(pair[0])):
            message = message.replace(value, f"${{{variable}}}")
        return message

    def _values_shown(self) -> set[tuple[str, str]]:
        parts = {part for text in self.interpolated.values() for part in text.from_environment}
        # Values as short as these are no secrets, and replacing them would make nonsense of a message.
        long = [(part.text, part.variable or "") for part in parts if len(part.text) > 3]
        return {(form, variable) for value, variable in long for form in (value, repr(value)[1:-1])}

    def is_unusable(self, loc: Loc) -> bool:
        """Whether this value or one around it is known to be wrong already."""
        return any(loc[:length] in self.unusable for length in range(len(loc) + 1))


def read_document(
    content: bytes, file: str, environ: Mapping[str, str] | None, *, max_bytes: int = MAX_BYTES
) -> Document:
    """Parse YAML 1.2 and put the variables in; without `environ` every text stays as it is in the file.

    Raises RegistryErrors if the text as a whole cannot be read.
    """
    document = Document(file)
    text = _decoded(content, document, max_bytes)
    if match := _OLD_YAML.search(text):
        place = _place_at(text, match.start())
        raise RegistryErrors([document.problem(place, "only YAML 1.2 is read: remove the %YAML line")])
    root = _composed(text, document)
    _Reader(document, environ).read_root(root)
    return document


def _decoded(content: bytes, document: Document, max_bytes: int) -> str:
    if len(content) > max_bytes:
        raise RegistryErrors([document.problem(Place(1, 1), f"the file is larger than {max_bytes:,} bytes")])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _place_at(content[: error.start].decode("utf-8-sig", "replace"), None)
        raise RegistryErrors([document.problem(place, "not UTF-8 text: save the file as UTF-8")]) from None


def _place_at(text: str, offset: int | None) -> Place:
    before = text[:offset]
    return Place(before.count("\n") + 1, len(before) - before.rfind("\n"))


def _composed(text: str, document: Document) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = MAX_DEPTH
    yaml.composer.warn_double_anchors = False
    _bound(yaml.composer, document)
    try:
        return yaml.compose(text)
    except MarkedYAMLError as error:
        # What is never closed is found at the end of the file: the place to look at is where it opens.
        opened = error.context_mark if re.search("unexpected end|<stream end>", str(error.problem)) else None
        mark = opened or error.problem_mark or error.context_mark
        place = Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)
        problem = document.problem(place, _syntax_message(error, text, place))
    except ReaderError as error:
        place = _place_at(text, error.position)
        problem = document.problem(place, "not YAML: a control character that YAML does not allow")
    except (YAMLError, RecursionError, ValueError):
        problem = document.problem(Place(1, 1), "not YAML that can be read")
    raise RegistryErrors([problem])


def _bound(composer: Any, document: Document) -> None:
    """Stop the parser at its first node too many: it is slow, and would go on to the end of the file first."""
    compose, left = composer.compose_node, MAX_NODES

    def counted(parent: Any, index: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            mark = composer.parser.peek_event().start_mark
            raise _too_many(document, Place(mark.line + 1, mark.column + 1))
        return compose(parent, index)

    composer.compose_node = counted


def _too_many(document: Document, place: Place) -> RegistryErrors:
    return RegistryErrors([document.problem(place, f"more than {MAX_VALUES:,} values, aliases expanded")])


def _syntax_message(error: Any, text: str, place: Place) -> str:
    """The parser's finding in words. Its own snippet of the file stays out: it may show a secret."""
    name = type(error).__name__
    finding = str(error.problem or "")
    line = text.split("\n")[place.line - 1] if place.line <= text.count("\n") + 1 else ""
    if name == "MaxDepthExceededError":
        return f"values are nested more than {MAX_DEPTH} deep"
    if "another document" in finding:
        return "a second document (`---`): a file holds one"
    if "undefined alias" in finding:
        # The alias's name may be a password that starts with a star.
        return "a value that starts with * is an alias in YAML: write it in quotes"
    if "'\\t'" in finding:
        return "not YAML: a tab; indent with spaces"
    if "found character" in finding and "cannot start" in finding:
        return "not YAML: a value must not start with this character: write it in quotes"
    if _BARE_REFERENCE.search(line) and "flow" in f"{error.context} {finding}":
        return "not YAML: inside { } and [ ] write a ${VARIABLE} in quotes"
    if "<stream end>" in finding and "flow node" not in str(error.context):
        tag = "; a value in it that starts with ! needs quotes" if re.search(r"[\[{,:]\s*!", line) else ""
        return f"not YAML: a bracket is opened here and never closed{tag}"
    if "mapping values are not allowed" in finding:
        return "not YAML: a second `: ` in one line, or wrong indentation; a text that holds `: ` needs quotes"
    if "quoted scalar" in str(error.context):
        return "not YAML: a quote is opened and never closed, or a \\ sequence in it is unknown"
    # The parser's other findings quote pieces of the file: they stay out.
    return "not YAML: wrong indentation, or a missing quote, bracket, colon or dash"


class _Reader:
    """Walks the parser's nodes once and fills the document."""

    def __init__(self, document: Document, environ: Mapping[str, str] | None) -> None:
        self.document = document
        self.environ = environ
        self.count = 0
        self.open: set[int] = set()

    def read_root(self, root: Any) -> None:
        self.document.data = None if root is None else self.read(root, ())

    def read(self, node: Any, loc: Loc) -> Any:
        from ruamel.yaml.nodes import MappingNode, SequenceNode

        place = _start(node)
        self.document.values[loc] = place
        self.count_one(place)
        if id(node) in self.open:
            return self.refuse(place, loc, "an alias to something that contains it")
        self.open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self.mapping(node, loc)
            if isinstance(node, SequenceNode):
                return self.sequence(node, loc)
            return self.scalar(node, loc)
        finally:
            self.open.discard(id(node))

    def count_one(self, place: Place) -> None:
        self.count += 1
        if self.count > MAX_VALUES:
            raise _too_many(self.document, place)

    def refuse(self, place: Place, loc: Loc, message: str) -> Any:
        """Record the problem; what is returned stands in for the value."""
        self.document.problems.append(self.document.problem(place, message))
        self.document.unusable.add(loc)
        return UNUSABLE

    def mapping(self, node: Any, loc: Loc) -> Any:
        if str(node.tag) != f"{_TAG}map":
            return self.refuse(_start(node), loc, _TAG_MESSAGE)
        found: dict[str, Any] = {}
        for key, place, value in self.pairs(node):
            if not loc and key.startswith(EXTENSION):
                continue
            if key in found:
                first = self.document.keys[(*loc, key)]
                message = f"`{key}` is there already, in line {first.line}"
                self.document.problems.append(self.document.problem(place, message))
                continue
            self.document.keys[(*loc, key)] = place
            found[key] = self.read(value, (*loc, key))
        for key, place, value in self.merged(node):
            if key not in found:
                self.document.keys[(*loc, key)] = place
                found[key] = self.read(value, (*loc, key))
        return found

    def pairs(self, node: Any) -> Iterator[tuple[str, Place, Any]]:
        """Keys and values that stand in the mapping itself."""
        for key, value in node.value:
            place = _start(key)
            if not isinstance(key.value, str):
                self.document.problems.append(self.document.problem(place, "a key must be plain text"))
            elif not _is_merge(key):
                yield key.value, place, value

    def merged(self, node: Any) -> Iterator[tuple[str, Place, Any]]:
        """What its `<<` bring along: the mapping's own keys win over them, and the first of a list over the next."""
        from ruamel.yaml.nodes import MappingNode, SequenceNode

        for key, value in node.value:
            if not _is_merge(key):
                continue
            for each in value.value if isinstance(value, SequenceNode) else [value]:
                self.count_one(_start(key))
                if not isinstance(each, MappingNode) or id(each) in self.open:
                    message = "`<<` takes an alias of another mapping (`<<: *name`), or a list of them"
                    self.document.problems.append(self.document.problem(_start(key), message))
                    continue
                self.open.add(id(each))
                yield from self.pairs(each)
                yield from self.merged(each)
                self.open.discard(id(each))

    def sequence(self, node: Any, loc: Loc) -> Any:
        if str(node.tag) != f"{_TAG}seq":
            return self.refuse(_start(node), loc, _TAG_MESSAGE)
        return [self.read(item, (*loc, index)) for index, item in enumerate(node.value)]

    def scalar(self, node: Any, loc: Loc) -> Any:
        place, text, tag = _start(node), node.value, str(node.tag)
        try:
            match tag.removeprefix(_TAG):
                case "null":
                    return None
                case "bool":
                    return text.lower() == "true"
                case "int":
                    return _whole_number(text)
                case "float":
                    return _decimal_number(text)
                case "str" | "timestamp" | "value" | "merge":
                    return self.text(text, loc)
                case _:
                    return self.refuse(place, loc, _TAG_MESSAGE)
        except InterpolationError as error:
            return self.refuse(place, loc, str(error))
        except ValueError:
            return self.refuse(place, loc, "a number that cannot be read")

    def text(self, raw: str, loc: Loc) -> str:
        self.document.texts[loc] = raw
        if self.environ is None:
            return raw
        text = interpolate(raw, self.environ)
        if isinstance(text, Interpolated):
            self.document.interpolated[loc] = text
        return text


_TAG_MESSAGE = "a value that starts with ! is a tag in YAML, and tags are not used here: write it in quotes"


def _is_merge(key: Any) -> bool:
    return str(key.tag) == f"{_TAG}merge"


def _start(node: Any) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


def _whole_number(text: str) -> int:
    digits = text.replace("_", "").lower()
    if digits.lstrip("+-").startswith(("0x", "0o", "0b")):
        return int(digits, 0)
    return int(digits)


def _decimal_number(text: str) -> float:
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))

"""Contradictions between the parts of a registry.

They are looked for in the values as they come, valid or not: a misspelt key in one entry must not hide that two others
have the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from reposync.config.document import Loc
from reposync.config.interpolation import Interpolated
from reposync.config.spelling import hint

DEFAULT_CHUNK_SIZE, DEFAULT_CHUNK_OVERLAP = 7000, 1500  # characters
SMALLEST_CHUNK = 100  # characters


def overlap_of(size: int, usual_size: int = DEFAULT_CHUNK_SIZE, usual_overlap: int = DEFAULT_CHUNK_OVERLAP) -> int:
    """The overlap of chunks for which none is given: the usual one at the usual size, else a fifth of the size. An
    overlap that does not shrink with the chunks has most of a text embedded several times."""
    return usual_overlap if size == usual_size else size // 5


@dataclass(frozen=True, slots=True)
class Contradiction:
    """`other` is the way to what the value at `loc` contradicts, where that helps a person to find it."""

    loc: Loc
    message: str
    other: Loc | None = None


def contradictions(registry: Any) -> Iterator[Contradiction]:
    """What does not fit together in a registry as read, or made of models."""
    yield from _repeated(registry, "gitlab", "name", lambda server: _get(server, "name"))
    yield from _repeated(registry, "repositories", "name", lambda repository: _get(repository, "name"))
    yield from _repeated(registry, "groups", "group", lambda group: _place_of_group(registry, group))
    yield from _unknown_servers(registry)
    yield from _overlaps(registry)


def _repeated(registry: Any, section: str, key: str, identity: Callable[[Any], Hashable]) -> Iterator[Contradiction]:
    seen: dict[Hashable, int] = {}
    for index, entry in _entries(registry, section):
        same = identity(entry)
        if not all(isinstance(part, str) and part for part in (same if isinstance(same, tuple) else (same,))):
            continue
        first = seen.setdefault(same, index)
        if first != index:
            message = f"{str(_get(entry, key))!r} is there already: {section}[{first}]"
            yield Contradiction((section, index, key), message, (section, first, key))


def _place_of_group(registry: Any, group: Any) -> tuple[Any, Any]:
    """Where the group is: one server may be listed under two names, and GitLab's paths know no case."""
    server, path = _get(group, "gitlab"), _get(group, "group")
    for _, each in _entries(registry, "gitlab"):
        url = _get(each, "url")
        if isinstance(url, str) and isinstance(server, str) and _get(each, "name") == server:
            server = str(url).rstrip("/")
            break
    return server, path.lower() if isinstance(path, str) else path


def _unknown_servers(registry: Any) -> Iterator[Contradiction]:
    names = [_get(server, "name") for _, server in _entries(registry, "gitlab")]
    known = {name for name in names if isinstance(name, str)}
    for section in ("repositories", "groups"):
        for index, entry in _entries(registry, section):
            name = _get(entry, "gitlab")
            if isinstance(name, str) and name and name not in known:
                message = f"no server in the top-level `gitlab` has the name {str(name)!r}{hint(name, known)}"
                yield Contradiction((section, index, "gitlab"), message)


def _overlaps(registry: Any) -> Iterator[Contradiction]:
    defaults = _get(_get(registry, "defaults"), "chunk")
    entries = [(section, *each) for section in ("repositories", "groups") for each in _entries(registry, section)]
    for section, index, entry in entries:
        chunk = _get(entry, "chunk")
        size = _number(chunk, "size", _number(defaults, "size", DEFAULT_CHUNK_SIZE))
        overlap = _number(chunk, "overlap", None)
        if size is not None and overlap is not None and overlap >= size:
            message = f"overlap must be below size: {overlap} is not below {size}"
            message += " (which comes from the defaults)" if _get(chunk, "size") is None else ""
            yield Contradiction((section, index, "chunk", "overlap"), message)


def _entries(registry: Any, section: str) -> Iterator[tuple[int, Any]]:
    entries = _get(registry, section)
    if isinstance(entries, list | tuple):
        yield from enumerate(entries)


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)


def _number(section: Any, key: str, default: int | None) -> int | None:
    """None for what is no number, or one that no chunk may have: that is another's complaint."""
    value = _get(section, key)
    if value is None or value == "":
        return default
    if isinstance(value, Interpolated) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if key == "overlap" or value >= SMALLEST_CHUNK else None

"""Checks of what a request may hold. A field that the engine would ignore is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

Json = Any
"""A value as orjson reads it. Requests are not trusted: every shape is checked before it is used."""


class Refusal(Exception):
    """A request that is not carried out. `status` is the HTTP status; the message goes to the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def bad(message: str) -> Refusal:
    return Refusal(400, f"Wrong input: {message}")


def not_found(message: str) -> Refusal:
    return Refusal(404, f"Not found: {message}")


def unsupported(what: str) -> Refusal:
    """A Qdrant server would carry the request out."""
    return Refusal(501, f"Not supported by the embedded engine: {what}. A Qdrant server can do this.")


def fields(value: Json, where: str, known: Collection[str]) -> dict[str, Json]:
    """`value` as an object without its null fields. Raises Refusal for a field that is not `known`."""
    if not isinstance(value, Mapping):
        raise bad(f"{where} must be an object")
    present = {key: each for key, each in value.items() if each is not None}
    if unknown := set(present).difference(known):
        raise bad(f"the embedded engine does not know the field `{min(unknown)}` in {where}")
    return present


def need(present: Mapping[str, Json], key: str, where: str) -> Json:
    if key not in present:
        raise bad(f"missing field `{key}` in {where}")
    return present[key]


def text(value: Json, where: str) -> str:
    if not isinstance(value, str):
        raise bad(f"{where} must be a string")
    return value


def flag(value: Json, where: str) -> bool:
    if not isinstance(value, bool):
        raise bad(f"{where} must be true or false")
    return value


def whole(value: Json, where: str, *, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise bad(f"{where} must be an integer of at least {least}")
    return value


def items(value: Json, where: str, each: Callable[[Json], T]) -> list[T]:
    if not isinstance(value, list):
        raise bad(f"{where} must be an array")
    return [each(item) for item in value]


def texts(value: Json, where: str) -> list[str]:
    return items(value, where, lambda item: text(item, f"each of {where}"))


def point_id(value: Json) -> int | str:
    """An unsigned integer or a UUID. The engine itself refuses text that is not a UUID."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise bad(f"{value!r} is not a point id: it must be an unsigned integer or a UUID")
    return value


def edge_call(call: Callable[..., T], *arguments: object, **named: object) -> T:
    """Build an object of the engine, which raises TypeError, ValueError and OverflowError for wrong values."""
    try:
        return call(*arguments, **named)
    except (TypeError, ValueError, OverflowError) as error:
        raise bad(str(error).splitlines()[0]) from error

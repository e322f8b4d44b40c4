"""The name of a collection, and the collections behind it.

`collection: code` is an alias; what has the points is a physical collection, one for each embedding model. So a model
changes without a moment in which `code` cannot be read: the next physical collection grows beside the one that the name
leads to, and when every repository is there, the name moves in one request. A collection that a program before 0.2 made
is called by the name itself, until its model changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict

from reposync.embedding.port import EmbeddingSpec
from reposync.vectors.definition import SCHEMA_REVISION
from reposync.vectors.port import Index


async def physical_collection(open_index: Callable[[str], Index], name: str, spec: EmbeddingSpec) -> str:
    """The collection behind `name` for this model, whether it is there yet or not. Writes nothing. Raises IndexMismatch
    where something is called so that reposync did not make."""
    behind = await open_index(name).behind()
    if behind is not None and behind.fits(spec):
        return behind.physical
    return f"{name}--{_digest(spec)}"


async def give_name(open_index: Callable[[str], Index], name: str, physical: str) -> None:
    """`name` leads to `physical` from now on, if nothing else has that name. Two processes may do so at once."""
    if physical != name and await open_index(name).behind() is None:
        await open_index(physical).take_name(name)


async def move_name(open_index: Callable[[str], Index], name: str, physical: str) -> bool:
    """`name` leads to `physical` from now on; whether it does. In one request, if it is an alias. A collection that
    itself has the name goes first, once it is empty: then nothing has the name between two requests."""
    behind = await open_index(name).behind()
    if behind is None or behind.physical == physical:
        await give_name(open_index, name, physical)
        return True
    if behind.physical == name:
        if await open_index(name).count():
            return False
        await open_index(name).drop()
    await open_index(physical).take_name(name)
    return True


async def drop_if_empty(open_index: Callable[[str], Index], physical: str) -> None:
    """A collection that another installation uses as well is not empty."""
    index = open_index(physical)
    if await index.spec() is not None and not await index.count():
        await index.drop()


def _digest(spec: EmbeddingSpec) -> str:
    made = json.dumps([asdict(spec), SCHEMA_REVISION], sort_keys=True)
    return hashlib.sha256(made.encode()).hexdigest()[:10]

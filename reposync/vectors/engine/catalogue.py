"""The file that says which collections and aliases there are, and where their points lie."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from reposync.vectors.engine.quarantine import cure
from reposync.vectors.engine.refusal import Json

CATALOGUE = "catalogue.json"
_REVISION = 1


class CatalogueUnreadable(Exception):
    """No collection can be opened. The text is for a person."""


class CatalogueDamaged(CatalogueUnreadable):
    """The file is not as it was written."""


@dataclass(slots=True)
class CollectionEntry:
    """`folder` is made up: a collection's name may hold anything, and differ from another by case alone. `lost`: what
    became of the collection of this name before it."""

    folder: str
    request: dict[str, Json]
    lost: str | None = None


@dataclass(slots=True)
class Catalogue:
    """`lost`: what became of collections that were damaged, by name; "" is for all that are not here."""

    collections: dict[str, CollectionEntry] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Catalogue:
        """Raises CatalogueDamaged, and CatalogueUnreadable where a later version wrote the file."""
        path = folder / CATALOGUE
        try:
            stored = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            return cls()
        except orjson.JSONDecodeError as error:
            raise CatalogueDamaged(f"{path}: {error}") from error
        if not isinstance(stored, dict) or stored.pop("digest", None) not in (None, _digest(stored)):
            raise CatalogueDamaged(f"{path}: its digest is another one")
        if stored.get("revision") != _REVISION:
            raise CatalogueUnreadable(f"{path} was not written by this version of the engine. {cure(folder)}")
        try:
            collections = {
                name: CollectionEntry(each["folder"], each["request"], each.get("lost"))
                for name, each in stored["collections"].items()
            }
            return cls(collections, stored["aliases"], stored.get("lost", {}))
        except (KeyError, TypeError, AttributeError) as error:  # without a digest: of a version before 0.2
            raise CatalogueDamaged(f"{path}: {type(error).__name__}: {error}") from error

    def save(self, folder: Path) -> None:
        """All or nothing, and durable on return: a crash at any moment leaves the old file or the new one."""
        written = {"revision": _REVISION, "collections": self.collections, "aliases": self.aliases, "lost": self.lost}
        stored = orjson.loads(orjson.dumps(written))  # as it is read again: the order of fields is another one
        content = orjson.dumps(stored | {"digest": _digest(stored)}, option=orjson.OPT_INDENT_2)
        draft = folder / f"{CATALOGUE}.new"
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / CATALOGUE)
        sync_folder(folder)


def _digest(stored: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(stored, option=orjson.OPT_SORT_KEYS)).hexdigest()


def sync_folder(folder: Path) -> None:
    """Make renames and new names in it durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

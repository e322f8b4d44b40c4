"""The file that says which collections and aliases there are, and where their points lie."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from reposync.vectors.engine.refusal import Json

_FILE = "catalogue.json"
_REVISION = 1


@dataclass(slots=True)
class CollectionEntry:
    """`folder` is made up: a collection's name may hold anything, and differ from another by case alone."""

    folder: str
    request: dict[str, Json]


@dataclass(slots=True)
class Catalogue:
    collections: dict[str, CollectionEntry] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Catalogue:
        """Raises ValueError where the file is not ours or was made by a later version."""
        try:
            stored = orjson.loads((folder / _FILE).read_bytes())
        except FileNotFoundError:
            return cls()
        if not isinstance(stored, dict) or stored.get("revision") != _REVISION:
            raise ValueError(f"{folder / _FILE} was not written by this version of the engine")
        collections = stored["collections"].items()
        return cls(
            {name: CollectionEntry(each["folder"], each["request"]) for name, each in collections}, stored["aliases"]
        )

    def save(self, folder: Path) -> None:
        """All or nothing, and durable on return: a crash at any moment leaves the old file or the new one."""
        content = orjson.dumps(
            {"revision": _REVISION, "collections": self.collections, "aliases": self.aliases},
            option=orjson.OPT_INDENT_2,
        )
        draft = folder / f"{_FILE}.new"
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / _FILE)
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in it durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

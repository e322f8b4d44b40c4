"""Collections on disk: one shard of the engine each, listed in one file. Damaged ones are set aside, so that the next
syncs rebuild them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import shutil
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import qdrant_edge as edge

from reposync.vectors.engine.requests import Collection, Json, Schema

log = logging.getLogger(__name__)

CATALOGUE = "catalogue.json"
_REVISION = 1
MAX_TIDIED_POINTS = 100_000
_DOUBT = "doubt"
_READ_SECONDS = 20.0
_READ_POINTS = 1_000
DAMAGED = "damaged"
# What is damaged again so soon has a cause that a rebuild does not remove: a disk, another program.
AGAIN_SECONDS = 86_400.0
KEPT_SECONDS = 7 * 86_400.0
_MAX_REASON_CHARS = 200

_OS_ERROR = re.compile(r"os error (\d+)")
_OUT_OF_MEMORY = re.compile(r"(?:out of|not enough|cannot allocate) memory", re.IGNORECASE)
# Files that are missing, shorter than recorded or changed give no error of the system, or one of these.
_CONTENT_ERRORS = (errno.ENOENT, errno.EINVAL, errno.ENOTDIR, errno.EISDIR)


class RequestRefused(Exception):
    """A request that is not carried out. `status` is the HTTP status; the message goes to the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class CatalogueUnreadable(Exception):
    """No collection can be opened. The message is for a person."""


class CatalogueDamaged(Exception):
    """The file was changed or cut."""


@dataclass(slots=True)
class CollectionEntry:
    """`folder` is generated: names may hold any character, and differ by case only."""

    folder: str
    request: dict[str, Json]


@dataclass(slots=True)
class Catalogue:
    """`lost`: what happened to damaged collections, by name; "" is for all that are not listed."""

    collections: dict[str, CollectionEntry] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Catalogue:
        """Raises CatalogueDamaged, and CatalogueUnreadable if a later version wrote the file."""
        path = folder / CATALOGUE
        try:
            stored = orjson.loads(path.read_bytes())
            if stored.pop("digest", None) not in (None, _digest(stored)):
                raise ValueError("its digest is wrong")
            if stored.get("revision") != _REVISION:
                raise CatalogueUnreadable(f"{path} was not written by this version of the engine. {remedy(folder)}")
            collections = {
                name: CollectionEntry(each["folder"], each["request"]) for name, each in stored["collections"].items()
            }
            return cls(collections, stored["aliases"], stored.get("lost", {}))
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CatalogueDamaged(f"{path}: {error}") from error

    def save(self, folder: Path) -> None:
        """All or nothing, and durable on return: a crash at any moment leaves the old file or the new one."""
        stored = {"revision": _REVISION, **orjson.loads(orjson.dumps(self))}
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
    """Make new and renamed files in it durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Collections:
    """All collections of one folder. The caller holds the folder's lock. Not safe for threads."""

    def __init__(self, folder: Path) -> None:
        """Open what is there. Damaged collections are set aside, and the next syncs make them again; the others open.

        Raises OSError, CatalogueUnreadable, and errors of the engine for lack of memory or open files.
        """
        self._folder = folder
        self._quarantine = Quarantine(folder)
        self._catalogue = self._load_catalogue()
        self._open: dict[str, Collection] = {}
        self._broken: dict[str, str] = {}
        # Folders of collections that were being made or deleted when the process died.
        known = {entry.folder for entry in self._catalogue.collections.values()}
        for left_over in self._folder.glob("collection-*"):
            if left_over.name not in known:
                shutil.rmtree(left_over, ignore_errors=True)
        for name, entry in list(self._catalogue.collections.items()):
            self._load(name, entry)

    def _load_catalogue(self) -> Catalogue:
        try:
            return Catalogue.load(self._folder)
        except CatalogueDamaged as error:
            if self._quarantine.is_closed:
                reason = self._quarantine.refusal_reason(str(error))
                raise CatalogueUnreadable(f"The catalogue cannot be read: {reason}. {remedy(self._folder)}") from error
            log.error("The catalogue is set aside with all collections: %s", error)
            self._quarantine.take(*self._folder.glob("collection-*"), self._folder / CATALOGUE)
            catalogue = Catalogue(lost={"": self._quarantine.lost_reason(str(error))})
            catalogue.save(self._folder)
            return catalogue

    def _load(self, name: str, entry: CollectionEntry) -> None:
        path = self._folder / entry.folder
        # Left by a killed optimization; no other process uses this folder.
        shutil.rmtree(path / "temp_segments", ignore_errors=True)
        try:
            shard = edge.EdgeShard.load(str(path))
            if (path / _DOUBT).exists():
                _read_all(shard)
                (path / _DOUBT).unlink()
            self._open[name] = Collection(name, Schema(**entry.request), shard)
        except BaseException as error:  # the engine raises bare Exception, and panics
            if is_out_of_memory(error) or not (isinstance(error, Exception) or is_panic(error)):
                raise
            log.error("Collection %s cannot be opened: %s", name, error)
            # A request with unknown fields may be of a later version: the catalogue's digest would show damage.
            if isinstance(error, TypeError) or not is_damage(error):
                self._broken[name] = str(error)
            elif self._quarantine.is_closed:
                self._broken[name] = self._quarantine.refusal_reason(str(error))
            else:
                self._set_aside(name, entry, str(error))

    def _set_aside(self, name: str, entry: CollectionEntry, reason: str) -> None:
        self._catalogue.lost[name] = self._quarantine.lost_reason(reason)
        del self._catalogue.collections[name]
        # Saved first: if it is killed in between, this process leaves an unknown folder, and not a second damage.
        self._catalogue.save(self._folder)
        if (path := self._folder / entry.folder).exists():
            self._quarantine.take(path)

    def doubt(self, name: str) -> None:
        """A request met what looks like damage: the next engine reads the whole collection when it opens it."""
        if entry := self._catalogue.collections.get(self._behind(name)):
            with contextlib.suppress(OSError):
                (self._folder / entry.folder / _DOUBT).touch()

    def names(self) -> list[str]:
        return list(self._catalogue.collections)

    def exists(self, name: str) -> bool:
        return self._behind(name) in self._catalogue.collections

    def get(self, name: str) -> Collection:
        """By name or alias. Raises RequestRefused: 404, or 500 if the collection is damaged."""
        real = self._behind(name)
        if real in self._broken:
            reason = f"collection `{real}` cannot be opened: {self._broken[real]}. {remedy(self._folder)}"
            raise RequestRefused(500, f"Service internal error: {reason}")
        if real not in self._open:
            raise _no_collection(name, self._lost(real))
        return self._open[real]

    def _behind(self, name: str) -> str:
        return self._catalogue.aliases.get(name, name)

    def _lost(self, name: str) -> str | None:
        lost = self._catalogue.lost
        return lost.get(name, lost.get(""))

    def create(self, name: str, request: dict[str, Json]) -> bool:
        """`optimizers_config` is for servers: nothing here is ever hidden."""
        if self.exists(name):
            raise _already_exists(name)
        made_of = {key: value for key, value in request.items() if key != "optimizers_config"}
        schema = Schema(**made_of)
        config = schema.to_edge()
        entry = CollectionEntry(f"collection-{uuid.uuid4().hex}", made_of)
        path = self._folder / entry.folder
        path.mkdir(mode=0o700)
        shard = edge.EdgeShard.create(str(path), config)
        shard.flush()
        sync_folder(self._folder)
        self._catalogue.collections[name] = entry
        self._catalogue.save(self._folder)
        self._open[name] = Collection(name, schema, shard)
        return True

    def delete(self, name: str) -> bool:
        """False if there was none. By name, never by alias, as on a server."""
        entry = self._catalogue.collections.pop(name, None)
        if entry is None:
            return False
        self._catalogue.aliases = {alias: to for alias, to in self._catalogue.aliases.items() if to != name}
        self._catalogue.save(self._folder)
        self._broken.pop(name, None)
        if collection := self._open.pop(name, None):
            collection.shard.close()
        shutil.rmtree(self._folder / entry.folder, ignore_errors=True)
        return True

    def change_aliases(self, *, actions: list[dict[str, dict[str, str]]]) -> bool:
        """Carry out all actions or none."""
        aliases = dict(self._catalogue.aliases)
        for action in actions:
            ((kind, names),) = action.items()
            if kind not in ("create_alias", "delete_alias"):
                raise ValueError(f"unknown action {kind}")
            aliases.pop(names["alias_name"], None)
            if kind == "create_alias":
                if names["collection_name"] not in self._catalogue.collections:
                    raise _no_collection(names["collection_name"])
                if names["alias_name"] in self._catalogue.collections:
                    raise _already_exists(names["alias_name"])
                aliases[names["alias_name"]] = names["collection_name"]
        self._catalogue.aliases = aliases
        self._catalogue.save(self._folder)
        return True

    def describe(self, name: str) -> Json:
        collection = self.get(name)
        lost = self._lost(collection.name)
        return collection.schema.describe(collection.shard) | {"warnings": [{"message": lost}] if lost else []}

    def tidy(self) -> None:
        """Free the space of deleted points. Blocks for 0.25 ms per remaining point: for an idle engine, and only up to
        MAX_TIDIED_POINTS (25 s)."""
        for collection in self._open.values():
            if collection.shard.info().points_count > MAX_TIDIED_POINTS:
                continue
            try:
                if collection.shard.optimize():
                    collection.shard.flush()
            except Exception:  # the engine raises bare Exception; the points are unchanged
                log.exception("Collection %s could not be tidied", collection.name)

    def close(self) -> None:
        """Durable on return."""
        for collection in self._open.values():
            collection.shard.flush()
            collection.shard.close()
        self._open.clear()


def _read_all(shard: edge.EdgeShard) -> None:
    """Read all points, or as many as the time allows. Raises errors of the engine."""
    deadline = time.monotonic() + _READ_SECONDS
    offset = None
    while time.monotonic() < deadline:
        request = edge.ScrollRequest(offset=offset, limit=_READ_POINTS, with_payload=True, with_vector=True)
        _, offset = shard.scroll(request)
        if offset is None:
            return


def _no_collection(name: str, lost: str | None = None) -> RequestRefused:
    return RequestRefused(404, f"Not found: Collection `{name}` doesn't exist! {lost or ''}".strip())


def _already_exists(name: str) -> RequestRefused:
    return RequestRefused(409, f"Wrong input: Collection `{name}` already exists!")


# Damage --------------------------------------------------------------------------------------------------------------
# Errors of the engine are bare exceptions and panics: their text alone says what they are about.


def is_panic(error: BaseException) -> bool:
    """Whether a defect of the engine, or of the files that it read, ended a call. A panic is not an Exception and has
    no public type."""
    return type(error).__name__ == "PanicException"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this process may have no more memory, threads or open files."""
    lacking = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
    return isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(str(error))) or _os_error(error) in lacking


def is_damage(error: BaseException) -> bool:
    """Whether it is about the content of the files, and not about permission to read them."""
    return not is_out_of_memory(error) and _os_error(error) in (None, *_CONTENT_ERRORS)


def _os_error(error: BaseException) -> int | None:
    found = _OS_ERROR.search(str(error))
    return int(found[1]) if found else None


class Quarantine:
    """`damaged/` in the folder of the index. The files of the last time are kept for a week, for diagnosis."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / DAMAGED
        self._is_new = True
        try:
            age_seconds = time.time() - self._folder.stat().st_mtime
        except OSError:
            age_seconds = KEPT_SECONDS
        # A clock that was set back leaves a date in the future: that counts as damage of today.
        self.is_closed = age_seconds < AGAIN_SECONDS
        if age_seconds > KEPT_SECONDS:
            shutil.rmtree(self._folder, ignore_errors=True)

    def take(self, *paths: Path) -> None:
        """Move these files or folders here. Raises OSError."""
        if self._is_new:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._is_new = False
        for path in paths:
            path.rename(self._folder / path.name)

    def lost_reason(self, reason: str) -> str:
        """Why something is not there any more, in a sentence."""
        return f"Its files were damaged ({_short(reason)}) and are set aside in {self._folder}."

    def refusal_reason(self, reason: str) -> str:
        """Why nothing is set aside."""
        return f"it was damaged again within a day ({_short(reason)}): look at the disk"


def remedy(folder: Path) -> str:
    """What a person can do about an index that cannot be opened."""
    return f"Remove the folder {folder} and sync: everything in it is made again from the repositories."


def _short(reason: str) -> str:
    line, half = " ".join(reason.split()), _MAX_REASON_CHARS // 2
    return line if len(line) <= _MAX_REASON_CHARS else f"{line[:half]} ... {line[-half:]}"

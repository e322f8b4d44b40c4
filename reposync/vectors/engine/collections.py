"""Collections on disk: one shard of the engine each, under the catalogue."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
import uuid
from pathlib import Path

import qdrant_edge as edge

from reposync.vectors.engine.catalogue import (
    CATALOGUE,
    Catalogue,
    CatalogueDamaged,
    CatalogueUnreadable,
    CollectionEntry,
    sync_folder,
)
from reposync.vectors.engine.failures import is_damage, is_out_of_memory, is_panic
from reposync.vectors.engine.operations import Change
from reposync.vectors.engine.quarantine import Quarantine, cure
from reposync.vectors.engine.refusal import Json, Refusal, bad, fields, items, need, not_found, text
from reposync.vectors.engine.schema import Schema, describe, edge_config, read_index, read_schema

log = logging.getLogger(__name__)

MAX_TIDIED_POINTS = 100_000
_DOUBT = "doubt"
_LOOK_SECONDS = 20.0
_LOOK_POINTS = 1_000

_ALIAS_ACTIONS = {
    "create_alias": ("collection_name", "alias_name"),
    "delete_alias": ("alias_name",),
    "rename_alias": ("old_alias_name", "new_alias_name"),
}


class Collection:
    """An open collection. The engine's own errors come out as Refusal: they are about the request as a rule."""

    def __init__(self, name: str, schema: Schema, shard: edge.EdgeShard) -> None:
        self.name = name
        self.schema = schema
        self.shard = shard
        self.operations = 0

    def apply(self, change: Change) -> None:
        """Applied and safe against the death of this process; safe against a power cut after `flush`."""
        if change.points:
            self._must_exist(change)
        self.shard.update(change.operation)
        self.operations += 1

    def _must_exist(self, change: Change) -> None:
        found = {str(each.id) for each in self.shard.retrieve(list(change.points), False, False)}
        for point in change.points:
            if str(point) not in found and str(uuid.UUID(str(point)) if isinstance(point, str) else point) not in found:
                raise not_found(f"No point with id {point} found")

    def flush(self) -> None:
        self.shard.flush()


class Collections:
    """All collections of one folder. The caller holds the folder's lock; nothing here is safe for threads."""

    def __init__(self, folder: Path) -> None:
        """Opens what is there. One collection that cannot be opened does not keep the others closed: what is damaged
        is set aside, and the next syncs make it again.

        Raises OSError, CatalogueUnreadable, and what says that memory or open files are lacking: that is about this
        process.
        """
        self._folder = folder
        self._quarantine = Quarantine(folder)
        self._catalogue = self._load_catalogue()
        self._open: dict[str, Collection] = {}
        self._broken: dict[str, str] = {}
        self._remove_left_over()
        for name, entry in list(self._catalogue.collections.items()):
            self._load(name, entry)

    def _load_catalogue(self) -> Catalogue:
        try:
            return Catalogue.load(self._folder)
        except CatalogueDamaged as error:
            if self._quarantine.is_closed:
                reason = self._quarantine.refused(str(error))
                raise CatalogueUnreadable(f"The catalogue cannot be read: {reason}. {cure(self._folder)}") from error
            log.error("The catalogue is set aside with all collections: %s", error)
            self._quarantine.take(*self._folder.glob("collection-*"), self._folder / CATALOGUE)
            catalogue = Catalogue(lost={"": self._quarantine.told(str(error))})
            catalogue.save(self._folder)
            return catalogue

    def _remove_left_over(self) -> None:
        """Folders of collections that were being made or deleted when the process died."""
        known = {entry.folder for entry in self._catalogue.collections.values()}
        for folder in self._folder.glob("collection-*"):
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)

    def _load(self, name: str, entry: CollectionEntry) -> None:
        path = self._folder / entry.folder
        # What a killed optimization leaves; nobody else is in this folder.
        shutil.rmtree(path / "temp_segments", ignore_errors=True)
        try:
            shard = edge.EdgeShard.load(str(path))
            if (path / _DOUBT).exists():
                _look_through(shard)
                (path / _DOUBT).unlink()
            self._open[name] = Collection(name, read_schema(entry.request), shard)
        except BaseException as error:  # the engine raises bare Exception, and panics
            if is_out_of_memory(error) or not (isinstance(error, Exception) or is_panic(error)):
                raise
            log.error("Collection %s cannot be opened: %s", name, error)
            # A request that is not understood may be one of a later version: the catalogue says if it is damaged.
            if isinstance(error, Refusal) or not is_damage(error):
                self._broken[name] = str(error)
            elif self._quarantine.is_closed:
                self._broken[name] = self._quarantine.refused(str(error))
            else:
                self._set_aside(name, entry, str(error))

    def _set_aside(self, name: str, entry: CollectionEntry, reason: str) -> None:
        self._catalogue.lost[name] = self._quarantine.told(reason)
        del self._catalogue.collections[name]
        # First: killed in between, this process leaves a folder that nobody knows, and not a second damage.
        self._catalogue.save(self._folder)
        if (path := self._folder / entry.folder).exists():
            self._quarantine.take(path)

    def doubt(self, name: str) -> None:
        """A request met what looks like damage: whoever opens the collection next looks through it first."""
        real = self._catalogue.aliases.get(name, name)
        if entry := self._catalogue.collections.get(real):
            with contextlib.suppress(OSError):
                (self._folder / entry.folder / _DOUBT).touch()

    def names(self) -> list[str]:
        return list(self._catalogue.collections)

    def aliases(self, of: str | None = None) -> list[Json]:
        return [
            {"alias_name": alias, "collection_name": name}
            for alias, name in self._catalogue.aliases.items()
            if of is None or name == of
        ]

    def exists(self, name: str) -> bool:
        return self._catalogue.aliases.get(name, name) in self._catalogue.collections

    def get(self, name: str) -> Collection:
        """By name or alias. Raises Refusal: 404, or 500 where the collection is damaged."""
        real = self._catalogue.aliases.get(name, name)
        if real in self._broken:
            reason = f"collection `{real}` cannot be opened: {self._broken[real]}. {cure(self._folder)}"
            raise Refusal(500, f"Service internal error: {reason}")
        if real not in self._open:
            raise not_found(f"Collection `{name}` doesn't exist! {self._lost(real) or ''}".strip())
        return self._open[real]

    def _lost(self, name: str) -> str | None:
        lost = self._catalogue.lost
        return lost.get(name, lost.get(""))

    def create(self, name: str, request: Json) -> None:
        if self.exists(name):
            raise Refusal(409, f"Wrong input: Collection `{name}` already exists!")
        if not name or len(name) > 255 or any(each in '<>:"/\\|?*\0' or ord(each) < 32 for each in name):
            raise bad(f"collection name {name!r} holds a character that is not allowed, or is too long")
        schema = read_schema(request)
        config = edge_config(schema)
        entry = CollectionEntry(f"collection-{uuid.uuid4().hex}", schema.request, self._lost(name))
        path = self._folder / entry.folder
        path.mkdir(mode=0o700)
        shard = edge.EdgeShard.create(str(path), config)
        shard.flush()
        sync_folder(self._folder)
        self._catalogue.collections[name] = entry
        self._catalogue.save(self._folder)
        self._open[name] = Collection(name, schema, shard)

    def delete(self, name: str) -> bool:
        """False where there was none. Goes by name, never by alias, as on a server."""
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

    def update(self, name: str, request: Json) -> None:
        """Merge into the collection's metadata; nothing else of a collection can be changed here."""
        collection = self.get(name)
        beyond = ("vectors", "optimizers_config", "params", "hnsw_config", "quantization_config", "sparse_vectors")
        present = fields(request, "collection update", ("metadata",), beyond=(*beyond, "strict_mode_config"))
        changes = present.get("metadata", {})
        if not isinstance(changes, dict):
            raise bad("metadata must be an object")
        collection.schema = collection.schema.with_metadata(changes)
        self._catalogue.collections[collection.name].request = collection.schema.request
        self._catalogue.save(self._folder)

    def change_aliases(self, request: Json) -> None:
        """All actions or none."""
        aliases = dict(self._catalogue.aliases)
        for action in items(
            need(fields(request, "aliases", ("actions",)), "actions", "aliases"), "actions", _alias_action
        ):
            self._change_alias(aliases, *action)
        self._catalogue.aliases = aliases
        self._catalogue.save(self._folder)

    def _change_alias(self, aliases: dict[str, str], kind: str, names: dict[str, str]) -> None:
        if kind == "create_alias":
            if names["collection_name"] not in self._catalogue.collections:
                raise not_found(f"Collection `{names['collection_name']}` doesn't exist!")
            if names["alias_name"] in self._catalogue.collections:
                raise Refusal(409, f"Wrong input: Collection `{names['alias_name']}` already exists!")
            aliases[names["alias_name"]] = names["collection_name"]
        elif kind == "delete_alias":
            aliases.pop(names["alias_name"], None)
        elif names["old_alias_name"] not in aliases:
            raise not_found(f"Alias {names['old_alias_name']} does not exists!")
        else:
            aliases[names["new_alias_name"]] = aliases.pop(names["old_alias_name"])

    def create_index(self, name: str, request: Json) -> None:
        """Not flushed: an index that a power cut takes away is missing in the collection's description, and made anew
        by whoever needs it; a flush for each would take most of the time that a new collection takes."""
        field_name, params = read_index(request)
        self.get(name).apply(Change(edge.UpdateOperation.create_field_index(field_name, params)))

    def delete_index(self, name: str, field_name: str) -> None:
        self.get(name).apply(Change(edge.UpdateOperation.delete_field_index(field_name)))

    def describe(self, name: str) -> Json:
        collection = self.get(name)
        lost = self._catalogue.collections[collection.name].lost
        warnings = [{"message": lost}] if lost else []
        return describe(collection.schema, collection.shard) | {"warnings": warnings}

    def tidy(self) -> None:
        """Give back what deleted points still take. Nobody is answered meanwhile: 0.25 ms a point that stays.

        For the moment when nobody uses the engine, and not above MAX_TIDIED_POINTS (some 25 s).
        """
        for collection in self._open.values():
            if collection.shard.info().points_count > MAX_TIDIED_POINTS:
                continue
            try:
                if collection.shard.optimize():
                    collection.shard.flush()
            except Exception:  # the engine raises bare Exception; the points are as they were
                log.exception("Collection %s could not be tidied", collection.name)

    def close(self) -> None:
        """Durable on return."""
        for collection in self._open.values():
            collection.shard.flush()
            collection.shard.close()
        self._open.clear()


def _look_through(shard: edge.EdgeShard) -> None:
    """Read all points, or as many as time allows. Raises what the engine raises."""
    deadline = time.monotonic() + _LOOK_SECONDS
    offset = None
    while time.monotonic() < deadline:
        request = edge.ScrollRequest(offset=offset, limit=_LOOK_POINTS, with_payload=True, with_vector=True)
        _, offset = shard.scroll(request)
        if offset is None:
            return


def _alias_action(value: Json) -> tuple[str, dict[str, str]]:
    kind = next(iter(value), "") if isinstance(value, dict) and len(value) == 1 else ""
    if kind not in _ALIAS_ACTIONS:
        raise bad(f"each alias action must be an object with one of {', '.join(_ALIAS_ACTIONS)}")
    present = fields(value[kind], kind, _ALIAS_ACTIONS[kind])
    return kind, {name: text(need(present, name, kind), name) for name in _ALIAS_ACTIONS[kind]}

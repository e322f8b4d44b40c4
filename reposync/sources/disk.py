"""Objects of a repository on this machine: loose files and packs, in its own folder and in its alternates."""

from __future__ import annotations

import os
import stat
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dulwich.object_format import ObjectFormat
from dulwich.object_store import DiskObjectStore
from dulwich.objects import RawObjectID
from dulwich.pack import PackIndex, load_pack_index

from reposync.errors import SourceCorrupt, SourceUnavailable
from reposync.sources.deltas import BaseCache
from reposync.sources.objects import BLOB, KIND_NAMES, MAX_TREE_BYTES, object_hash, object_sha
from reposync.sources.packs import PackDamaged, PackFile
from reposync.sources.port import Blob

LOOSE = -1
MISSING = -2
MAX_ALTERNATES = 64
# Each takes three file descriptors (the index, its mapping, the pack), of which a process often has 1,024.
MAX_OPEN_PACKS = 64
READ_STEP_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an object is: `pack` is the number of a pack, LOOSE or MISSING."""

    pack: int
    offset: int
    sha: str


class _OpenPack:
    """A pack with its index, and the file descriptor that keeps it readable when a repack removes it."""

    def __init__(self, index_path: Path, object_format: ObjectFormat, cache: BaseCache) -> None:
        self.index: PackIndex = load_pack_index(index_path, object_format)
        try:
            self.fd = os.open(index_path.with_suffix(".pack"), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.index.close()
            raise
        self.file = PackFile(self.fd, oid_bytes=object_format.oid_length, cache=cache, find=self.find)
        try:
            self.file.object_count()  # is it a pack at all
        except PackDamaged:
            self.close()
            raise

    def find(self, sha: bytes) -> int | None:
        try:
            return self.index.object_offset(RawObjectID(sha))
        except KeyError:
            return None

    def close(self) -> None:
        self.index.close()
        os.close(self.fd)


class ObjectDirectories:
    """Reads objects by name. Not thread-safe. `where` is the repository's path for messages."""

    def __init__(self, objects: Path, object_format: ObjectFormat, *, where: str) -> None:
        self._format = object_format
        self._where = where
        self._folders = _with_alternates(objects)
        self._cache = BaseCache()
        # By number: the indexes of all packs, and the open packs, the last used one at the end.
        self._indexes: list[Path] = []
        self._open: OrderedDict[int, _OpenPack] = OrderedDict()
        # The search order of packs: those that had objects come first.
        self._order: list[int] = []
        try:
            self._find_packs()
        except BaseException:
            self.close()
            raise

    def content(self, sha: str, kind: int) -> bytes:
        """A commit or tree, verified. Raises SourceCorrupt."""
        return self.contents([sha], kind)[sha]

    def contents(self, shas: Sequence[str], kind: int) -> dict[str, bytes]:
        """Commits or trees by name, verified. Raises SourceCorrupt."""
        found: dict[str, bytes] = {}
        name = KIND_NAMES[kind].decode()
        for place in self.locate(shas):
            try:
                _, content = self._object(place, kind, MAX_TREE_BYTES)
            except (PackDamaged, OSError) as error:
                raise self._corrupt(f"{name} {place.sha}", str(error)) from error
            if content is None:
                raise self._corrupt(f"{name} {place.sha}", "it is unreasonably large")
            found[place.sha] = content
        return found

    def locate(self, shas: Sequence[str]) -> list[_Place]:
        """Where the objects are, in the order in which they are read fastest."""
        places = self._located(shas)
        missing = [place.sha for place in places if place.pack == MISSING]
        if missing and self._find_packs():
            # Written or repacked since the packs were listed.
            places = [place for place in places if place.pack != MISSING] + self._located(missing)
        places.sort(key=lambda place: (place.pack, place.offset))
        return places

    def read(self, shas: Sequence[str], *, max_bytes: int, unreadable: dict[str, str]) -> Iterator[Blob]:
        """The blobs, in the order of the disk; those that cannot be read go to `unreadable` (sha -> reason)."""
        for place in self.locate(shas):
            try:
                size_bytes, content = self._object(place, BLOB, max_bytes)
            except PackDamaged as error:
                unreadable[place.sha] = f"is damaged ({error})" if place.pack != MISSING else "is missing"
            except OSError as error:
                unreadable[place.sha] = f"cannot be read ({error.strerror})"
            else:
                yield Blob(place.sha, size_bytes, content)

    def close(self) -> None:
        for pack in self._open.values():
            pack.close()
        self._open.clear()
        self._indexes.clear()
        self._order.clear()
        self._cache.close()

    def _located(self, shas: Sequence[str]) -> list[_Place]:
        # Pack by pack: there may be more of them than are open at a time.
        places: list[_Place] = []
        left = {sha: bytes.fromhex(sha) for sha in shas}
        for number in list(self._order):
            if not left or (pack := self._opened(number)) is None:
                continue
            here = [_Place(number, at, sha) for sha, raw in left.items() if (at := pack.find(raw)) is not None]
            if here:
                self._order.remove(number)
                self._order.insert(0, number)
            for place in here:
                del left[place.sha]
            places += here
        for sha in left:
            loose = any((folder / sha[:2] / sha[2:]).is_file() for folder in self._folders)
            places.append(_Place(LOOSE if loose else MISSING, 0, sha))
        return places

    def _opened(self, number: int) -> _OpenPack | None:
        """The pack; None if it no longer exists. Raises SourceCorrupt."""
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        while len(self._open) >= MAX_OPEN_PACKS:
            self._open.popitem(last=False)[1].close()
        path = self._indexes[number]
        try:
            self._open[number] = _OpenPack(path, self._format, self._cache)
        except FileNotFoundError:
            return None  # repacked: its objects are in a different pack
        except OSError as error:
            raise SourceUnavailable(f"Pack {path} of {self._where} cannot be opened: {error.strerror}.") from error
        except (PackDamaged, ValueError, AssertionError) as error:
            raise self._corrupt(f"Pack {path}", str(error)) from error
        return self._open[number]

    def _object(self, place: _Place, kind: int, max_bytes: int) -> tuple[int, bytes | None]:
        """Size and verified content (None over `max_bytes`). Raises PackDamaged, OSError."""
        if place.pack == MISSING:
            raise PackDamaged("it is missing")
        if place.pack == LOOSE:
            try:
                return self._loose(place.sha, kind, max_bytes)
            except FileNotFoundError:
                place = self._relocated(place)  # packed since it was located
        pack = self._opened(place.pack)
        if pack is None:
            place = self._relocated(place)  # repacked since it was located, and closed meanwhile
            pack = self._opened(place.pack)
        if pack is None:
            raise PackDamaged("it is missing")
        found = pack.file.read(place.offset, max_bytes=max_bytes)
        if found.kind != kind:
            raise PackDamaged(f"it is a {KIND_NAMES[found.kind].decode()}")
        if found.content is not None and object_sha(kind, found.content, self._format.name) != place.sha:
            raise PackDamaged("its content does not hash to its name")
        return found.size_bytes, found.content

    def _relocated(self, place: _Place) -> _Place:
        [place] = self.locate([place.sha])
        if place.pack < 0:
            raise PackDamaged("it is missing")
        return place

    def _loose(self, sha: str, kind: int, max_bytes: int) -> tuple[int, bytes | None]:
        path = next(
            (path for folder in self._folders if (path := folder / sha[:2] / sha[2:]).is_file()), self._folders[0] / sha
        )
        inflater = zlib.decompressobj()
        try:
            with path.open("rb") as file:
                head = inflater.decompress(file.read(READ_STEP_BYTES), 64)
                header, nul, rest = head.partition(b"\0")
                name, _, size = header.partition(b" ")
                if not nul or name != KIND_NAMES[kind] or not size.isdigit():
                    raise PackDamaged(f"its file {path} does not start as a {KIND_NAMES[kind].decode()} does")
                size_bytes = int(size)
                if size_bytes > max_bytes:
                    return size_bytes, None
                running = object_hash(kind, size_bytes, self._format.name)
                pieces = [rest]
                got = len(rest)
                while not inflater.eof and got <= size_bytes:
                    pending = inflater.unconsumed_tail or file.read(READ_STEP_BYTES)
                    if not pending:
                        break
                    pieces.append(inflater.decompress(pending, size_bytes - got + 1))
                    got += len(pieces[-1])
        except zlib.error as error:
            raise PackDamaged(f"its file {path} does not inflate: {error}") from error
        content = b"".join(pieces)
        running.update(content)
        if not inflater.eof or got != size_bytes or running.hexdigest() != sha:
            raise PackDamaged(f"its file {path} is cut short or changed")
        return size_bytes, content

    def _find_packs(self) -> bool:
        """List the packs; True if there is a new one."""
        known = set(self._indexes)
        for folder in self._folders:
            try:
                indexes = sorted((folder / "pack").glob("*.idx"))
            except OSError:
                continue
            for path in indexes:
                if path not in known:
                    self._order.append(len(self._indexes))
                    self._indexes.append(path)
        return len(self._indexes) > len(known)

    def _corrupt(self, what: str, why: str) -> SourceCorrupt:
        return SourceCorrupt(
            f"{what} of {self._where} cannot be read: {why}.",
            remedy=f"Run `git -C {self._where} fsck`; a fresh clone (a full one, without --filter) brings it back.",
        )


def _with_alternates(objects: Path) -> list[Path]:
    """The object folder and its alternates that exist."""
    folders: list[Path] = []
    todo = [objects]
    while todo and len(folders) < MAX_ALTERNATES:
        folder = todo.pop(0)
        try:
            if folder in folders or not stat.S_ISDIR(folder.stat().st_mode):
                continue
        except OSError:
            continue
        folders.append(folder)
        borrowed = DiskObjectStore(folder).alternates
        todo.extend(Path(str(store.path)) for store in borrowed if isinstance(store, DiskObjectStore))
    return folders

"""Where git's objects are read from: the folders of a repository on this machine, or a pack received from a server."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dulwich.object_format import ObjectFormat
from dulwich.object_store import DiskObjectStore
from dulwich.objects import RawObjectID
from dulwich.pack import PackIndex, load_pack_index

from reposync.errors import SourceCorrupt, SourceUnavailable
from reposync.sources.objects import (
    BLOB,
    COMMIT,
    KIND_NAMES,
    MAX_TREE_BYTES,
    TREE,
    hash_name,
    object_sha,
    parse_commit,
    walk_tree,
)
from reposync.sources.packs import STEP_BYTES, BaseCache, PackDamaged, PackedObject, PackFile
from reposync.sources.port import Blob, Commit, TreeEntry

LOOSE = -1
MISSING = -2
MAX_ALTERNATES = 64
# Each takes three file descriptors (the index, its mapping, the pack), of which a process often has 1,024.
MAX_OPEN_PACKS = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where an object is: `pack` is the number of a pack, LOOSE or MISSING."""

    pack: int
    offset: int
    sha: str


class ObjectStore(ABC):
    """Reads objects by name, each verified. Blocks on the disk; not thread-safe. `where` is for messages."""

    missing = "is missing"
    remedy: str | None = None

    def __init__(self, where: str, hash_name: str) -> None:
        self._where = where
        self._hash_name = hash_name
        self._cache = BaseCache()

    def commit(self, sha: str) -> tuple[Commit, str]:
        """The commit and the sha of its root tree. Raises SourceCorrupt."""
        return parse_commit(sha, self._contents([sha], COMMIT)[sha])

    def tree(self, commit: str) -> list[TreeEntry]:
        """The entries of a commit. Raises SourceCorrupt."""
        return walk_tree(self.commit(commit)[1], lambda shas: self._contents(shas, TREE))

    def blobs(self, shas: Sequence[str], *, max_bytes: int, unreadable: dict[str, str]) -> Iterator[Blob]:
        """The blobs, in the order of the disk; those that cannot be read go to `unreadable` (sha -> reason)."""
        for place in self._locate(shas):
            try:
                found = self._object(place, BLOB, max_bytes)
            except PackDamaged as error:
                unreadable[place.sha] = self.missing if place.pack == MISSING else f"is damaged ({error})"
            except OSError as error:
                unreadable[place.sha] = f"cannot be read ({error.strerror})"
            else:
                yield Blob(place.sha, found.size_bytes, found.content)

    @abstractmethod
    def _locate(self, shas: Sequence[str]) -> list[Place]:
        """Where the objects are, in the order in which they are read fastest."""

    @abstractmethod
    def _read(self, place: Place, max_bytes: int) -> PackedObject:
        """The object at a place. Raises PackDamaged, OSError."""

    def _object(self, place: Place, kind: int, max_bytes: int) -> PackedObject:
        """The verified object; without content over `max_bytes`. Raises PackDamaged, OSError."""
        if place.pack == MISSING:
            raise PackDamaged("it is missing")
        found = self._read(place, max_bytes)
        if found.kind != kind:
            raise PackDamaged(f"it is a {KIND_NAMES[found.kind].decode()}")
        if found.content is not None and object_sha(kind, found.content, self._hash_name) != place.sha:
            raise PackDamaged("its content does not hash to its name")
        return found

    def _contents(self, shas: Sequence[str], kind: int) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for place in self._locate(shas):
            what = f"{KIND_NAMES[kind].decode()} {place.sha}"
            try:
                content = self._object(place, kind, MAX_TREE_BYTES).content
            except (PackDamaged, OSError) as error:
                raise self._corrupt(what, str(error)) from error
            if content is None:
                raise self._corrupt(what, "it is unreasonably large")
            found[place.sha] = content
        return found

    def _corrupt(self, what: str, why: str) -> SourceCorrupt:
        return SourceCorrupt(f"{what} of {self._where} cannot be read: {why}.", remedy=self.remedy)


# A repository on this machine ----------------------------------------------------------------------------------------


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


class ObjectDirectories(ObjectStore):
    """Loose files and packs of a repository, in its own folder and in its alternates."""

    def __init__(self, objects: Path, object_format: ObjectFormat, *, where: str) -> None:
        super().__init__(where, object_format.name)
        self.remedy = f"Run `git -C {where} fsck`; a fresh clone (a full one, without --filter) brings it back."
        self._format = object_format
        self._folders = _with_alternates(objects)
        # By number: the indexes of all packs, and the open packs, the last used one at the end.
        self._indexes: list[Path] = []
        self._open: OrderedDict[int, _OpenPack] = OrderedDict()
        # The search order of packs: those that had objects come first.
        self._order: list[int] = []
        self._find_packs()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _locate(self, shas: Sequence[str]) -> list[Place]:
        places = self._located(shas)
        missing = [place.sha for place in places if place.pack == MISSING]
        if missing and self._find_packs():
            # Written or repacked since the packs were listed.
            places = [place for place in places if place.pack != MISSING] + self._located(missing)
        return sorted(places, key=lambda place: (place.pack, place.offset))

    def _located(self, shas: Sequence[str]) -> list[Place]:
        # Pack by pack: there may be more of them than are open at a time.
        places: list[Place] = []
        left = {sha: bytes.fromhex(sha) for sha in shas}
        for number in list(self._order):
            if not left or (pack := self._opened(number)) is None:
                continue
            here = [Place(number, at, sha) for sha, raw in left.items() if (at := pack.find(raw)) is not None]
            if here:
                self._order.remove(number)
                self._order.insert(0, number)
            for place in here:
                del left[place.sha]
            places += here
        places += (Place(MISSING if self._loose_file(sha) is None else LOOSE, 0, sha) for sha in left)
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

    def _read(self, place: Place, max_bytes: int) -> PackedObject:
        for _ in range(2):
            if place.pack == LOOSE and (path := self._loose_file(place.sha)) is not None:
                with contextlib.suppress(FileNotFoundError):
                    return _loose_object(path, max_bytes)
            if place.pack >= 0 and (pack := self._opened(place.pack)) is not None:
                return pack.file.read(place.offset, max_bytes=max_bytes)
            [place] = self._locate([place.sha])  # packed or repacked since it was located
        raise PackDamaged("it is missing")

    def _loose_file(self, sha: str) -> Path | None:
        paths = (folder / sha[:2] / sha[2:] for folder in self._folders)
        return next((path for path in paths if path.is_file()), None)

    def _find_packs(self) -> bool:
        """List the packs; True if there is a new one."""
        known = set(self._indexes)
        for folder in self._folders:
            with contextlib.suppress(OSError):
                new = [path for path in sorted((folder / "pack").glob("*.idx")) if path not in known]
                self._order += range(len(self._indexes), len(self._indexes) + len(new))
                self._indexes += new
        return len(self._indexes) > len(known)


def _loose_object(path: Path, max_bytes: int) -> PackedObject:
    """Raises PackDamaged, OSError."""
    inflater = zlib.decompressobj()
    try:
        with path.open("rb") as file:
            header, nul, content = inflater.decompress(file.read(STEP_BYTES), 64).partition(b"\0")
            name, _, size = header.partition(b" ")
            kind = next((kind for kind, known in KIND_NAMES.items() if known == name), None)
            if not nul or kind is None or not size.isdigit():
                raise PackDamaged(f"its file {path} does not start as an object does")
            if int(size) > max_bytes:
                return PackedObject(kind, int(size), None)
            pieces, left = [content], int(size) - len(content)
            while left >= 0 and not inflater.eof and (pending := inflater.unconsumed_tail or file.read(STEP_BYTES)):
                pieces.append(inflater.decompress(pending, left + 1))
                left -= len(pieces[-1])
    except zlib.error as error:
        raise PackDamaged(f"its file {path} does not inflate: {error}") from error
    if left or not inflater.eof:
        raise PackDamaged(f"its file {path} is cut short or changed")
    return PackedObject(kind, int(size), b"".join(pieces))


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


# A pack received from a server ---------------------------------------------------------------------------------------


class SpoolFull(Exception):
    """The pack exceeds the disk space granted to it. `only_blob_bytes`: if it consists of one blob, the size in its
    header."""

    def __init__(self, only_blob_bytes: int | None) -> None:
        super().__init__("the pack is too large")
        self.only_blob_bytes = only_blob_bytes


@contextlib.contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceUnavailable(
            f"A pack of the server cannot be written to disk: {error.strerror}.",
            remedy=f"Make room in {tempfile.gettempdir()}, or set TMPDIR to a different folder.",
        ) from error


class ReceivedPack(ObjectStore):
    """A pack in an unnamed temporary file, which disappears with the process: first written, then finished, then read.

    All methods but `close` block on the disk: call them in a thread, one at a time.
    """

    missing = "was not sent by the server"

    def __init__(self, where: str, *, oid_bytes: int, max_bytes: int) -> None:
        """Raises SourceUnavailable if the disk is full, as `write` and `finish` do."""
        super().__init__(where, hash_name("0" * (oid_bytes * 2)))
        with _on_disk():
            self._file: IO[bytes] = tempfile.TemporaryFile(prefix="reposync-pack-")  # noqa: SIM115 - closed by the owner
        self._oid_bytes = oid_bytes
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._pack: PackFile | None = None
        self._offsets: dict[bytes, int] = {}

    def write(self, piece: bytes) -> None:
        """Raises SpoolFull."""
        self._size_bytes += len(piece)
        with _on_disk():
            self._file.write(piece)
        if self._size_bytes > self._max_bytes:
            raise SpoolFull(self._only_blob_bytes())

    def finish(self) -> None:
        """After the last `write`. Raises PackDamaged. The names of objects are computed from their contents, so the
        checksum at the end of the pack proves nothing more."""
        self._pack = self._opened(self._oid_bytes)
        self._offsets = self._pack.index(self._hash_name)

    def close(self) -> None:
        """Also stops a method that runs in a thread."""
        if self._pack is not None:
            self._pack.stop()
        with contextlib.suppress(OSError):  # buffered data, on a full disk
            self._file.close()

    def _locate(self, shas: Sequence[str]) -> list[Place]:
        offsets = ((sha, self._offsets.get(bytes.fromhex(sha))) for sha in shas)
        places = [Place(MISSING, 0, sha) if at is None else Place(0, at, sha) for sha, at in offsets]
        return sorted(places, key=lambda place: place.offset)

    def _read(self, place: Place, max_bytes: int) -> PackedObject:
        if self._pack is None:
            raise RuntimeError("the pack is not finished")
        return self._pack.read(place.offset, max_bytes=max_bytes)

    def _opened(self, oid_bytes: int) -> PackFile:
        with _on_disk():
            self._file.flush()
        return PackFile(self._file.fileno(), oid_bytes=oid_bytes, cache=self._cache)

    def _only_blob_bytes(self) -> int | None:
        pack = self._opened(0)
        try:
            first = pack.read(12, max_bytes=-1)
            return first.size_bytes if first.kind == BLOB and pack.object_count() == 1 else None
        except PackDamaged:
            return None

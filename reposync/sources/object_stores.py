"""Where git's objects are read from: the folders of a repository on this machine, or a pack received from a server."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dulwich.object_format import ObjectFormat
from dulwich.object_store import DiskObjectStore
from dulwich.objects import RawObjectID
from dulwich.pack import PackIndex, load_pack_index

from reposync.errors import SourceCorrupt, SourceUnavailable
from reposync.ordering import in_order
from reposync.sources.objects import (
    BLOB,
    COMMIT,
    KIND_NAMES,
    MAX_TREE_BYTES,
    TREE,
    object_sha,
    parse_commit,
    walk_tree,
)
from reposync.sources.packs import STEP_BYTES, ObjectMissing, PackDamaged, PackedObject, PackFile
from reposync.sources.port import Blob, Commit, TreeEntry

MAX_ALTERNATES = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where an object is: in a pack (its index), or anywhere else."""

    sha: str
    pack: Path | None = None
    offset: int | None = None


class ObjectStore(ABC):
    """Reads objects by name, each verified. Blocks on the disk; not thread-safe. `where` is for messages."""

    remedy: str | None = None

    def __init__(self, where: str, hash_name: str) -> None:
        self._where = where
        self._hash_name = hash_name

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
            except ObjectMissing as error:
                unreadable[place.sha] = str(error)
            except PackDamaged as error:
                unreadable[place.sha] = f"is damaged ({error})"
            except OSError as error:
                unreadable[place.sha] = f"cannot be read ({error.strerror})"
            else:
                yield Blob(place.sha, found.size_bytes, found.content)

    def content(self, sha: str, kind: int) -> bytes | None:
        """The content of a commit or tree; None if it is missing. Raises SourceCorrupt."""
        try:
            return self._contents([sha], kind)[sha]
        except SourceCorrupt as error:
            if isinstance(error.__cause__, ObjectMissing):
                return None
            raise

    @abstractmethod
    def _locate(self, shas: Sequence[str]) -> list[Place]:
        """Where the objects are, in the order in which they are read fastest."""

    @abstractmethod
    def _read(self, place: Place, max_bytes: int) -> PackedObject:
        """The object at a place. Raises ObjectMissing, PackDamaged, OSError."""

    def _object(self, place: Place, kind: int, max_bytes: int) -> PackedObject:
        """The verified object; without content over `max_bytes`. Raises PackDamaged, OSError."""
        found = self._read(place, max_bytes)
        if found.kind != kind:
            raise PackDamaged(f"it is a {KIND_NAMES[found.kind].decode()}")
        if found.content is not None and object_sha(kind, found.content, self._hash_name) != place.sha:
            raise PackDamaged("its content does not hash to its name")
        return found

    def _contents(self, shas: Sequence[str], kind: int) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for place in self._locate(shas):
            try:
                content = self._object(place, kind, MAX_TREE_BYTES).content
                if content is None:
                    raise PackDamaged("it is unreasonably large")
            except (PackDamaged, OSError) as error:
                raise self._corrupt(f"{KIND_NAMES[kind].decode()} {place.sha}", error) from error
            found[place.sha] = content
        return found

    def _corrupt(self, what: str, error: Exception) -> SourceCorrupt:
        return SourceCorrupt(f"{what} of {self._where} cannot be read: {error}.", remedy=self.remedy)


# A repository on this machine ----------------------------------------------------------------------------------------


class _OpenPack:
    """A pack with its index. Raises OSError, PackDamaged, ValueError, AssertionError."""

    def __init__(self, path: Path, object_format: ObjectFormat) -> None:
        self.path = path
        with contextlib.ExitStack() as stack:
            self._index: PackIndex = load_pack_index(path, object_format)
            stack.callback(self._index.close)
            fd = os.open(path.with_suffix(".pack"), os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            self.file = PackFile(fd, oid_bytes=object_format.oid_length, find=self.find)
            self.file.object_count()  # is it a pack at all
            self.close = stack.pop_all().close

    def find(self, sha: bytes) -> int | None:
        try:
            return self._index.object_offset(RawObjectID(sha))
        except KeyError:
            return None


class ObjectDirectories(ObjectStore):
    """Loose files and packs of a repository, in its own folder and in its alternates. One pack is open at a time, since
    some repositories have more of them than a process may open files."""

    def __init__(self, objects: Path, object_format: ObjectFormat, *, where: str) -> None:
        super().__init__(where, object_format.name)
        self.remedy = f"Run `git -C {where} fsck`; a fresh clone (a full one, without --filter) brings it back."
        self._format = object_format
        self._folders = _with_alternates(objects)
        self._pack: _OpenPack | None = None
        self._packs = self._listed()

    def close(self) -> None:
        if self._pack is not None:
            self._pack.close()
            self._pack = None

    def _locate(self, shas: Sequence[str]) -> list[Place]:
        left = {sha: bytes.fromhex(sha) for sha in shas}
        places: list[Place] = []
        for path in self._packs:
            if not left or (pack := self._opened(path)) is None:
                continue
            here = [Place(sha, path, at) for sha, raw in left.items() if (at := pack.find(raw)) is not None]
            for place in here:
                del left[place.sha]
            places += in_order(here, lambda place: place.offset or 0)
        return [*places, *map(Place, left)]

    def _read(self, place: Place, max_bytes: int) -> PackedObject:
        for _ in range(2):
            if place.pack is None:
                for folder in self._folders:
                    with contextlib.suppress(FileNotFoundError):
                        return _loose_object(folder / place.sha[:2] / place.sha[2:], max_bytes)
            elif (pack := self._opened(place.pack)) is not None and place.offset is not None:
                return pack.file.read(place.offset, max_bytes=max_bytes)
            self._packs = self._listed()  # it was packed or repacked since it was located
            [place] = self._locate([place.sha])
        raise ObjectMissing("is missing")

    def _opened(self, path: Path) -> _OpenPack | None:
        """The pack; None if it no longer exists. Raises SourceCorrupt, SourceUnavailable."""
        if self._pack is None or self._pack.path != path:
            self.close()
            try:
                self._pack = _OpenPack(path, self._format)
            except FileNotFoundError:
                return None  # repacked: its objects are in a different pack
            except OSError as error:
                raise SourceUnavailable(f"Pack {path} of {self._where} cannot be opened: {error.strerror}.") from error
            except (PackDamaged, ValueError, AssertionError) as error:
                raise self._corrupt(f"Pack {path}", error) from error
        return self._pack

    def _listed(self) -> list[Path]:
        """The indexes of all packs, the largest first: it has most of the objects."""
        found: list[tuple[int, Path]] = []
        for folder in self._folders:
            for path in (folder / "pack").glob("*.idx"):
                with contextlib.suppress(OSError):
                    found.append((-path.stat().st_size, path))
        return [path for _, path in sorted(found)]


def _loose_object(path: Path, max_bytes: int) -> PackedObject:
    """Not verified. Raises PackDamaged, OSError."""
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
            rest = inflater.unconsumed_tail + file.read(2 * max_bytes)
            return PackedObject(kind, int(size), content + inflater.decompress(rest, int(size) + 1))
    except zlib.error as error:
        raise PackDamaged(f"its file {path} does not inflate: {error}") from error


def _with_alternates(objects: Path) -> list[Path]:
    """The object folder and its alternates that exist."""
    folders: list[Path] = []
    todo = [objects]
    while todo and len(folders) < MAX_ALTERNATES:
        folder = todo.pop(0)
        if folder not in folders and folder.is_dir():
            folders.append(folder)
            borrowed = DiskObjectStore(folder).alternates
            todo.extend(Path(store.path) for store in borrowed if isinstance(store, DiskObjectStore))
    return folders


# A pack received from a server ---------------------------------------------------------------------------------------


class SpoolFull(Exception):
    """The pack exceeds the disk space granted to it."""


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
    All methods but `close` block on the disk: call them in a thread, one at a time."""

    def __init__(self, where: str, *, oid_bytes: int, max_bytes: int) -> None:
        """Raises SourceUnavailable if the disk is full, as `write` and `finish` do."""
        super().__init__(where, "sha1" if oid_bytes == 20 else "sha256")
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
        if self._size_bytes > self._max_bytes:
            raise SpoolFull("the pack is too large")
        with _on_disk():
            self._file.write(piece)

    def finish(self) -> None:
        """After the last `write`. Raises PackDamaged. The names of objects are computed from their contents, so the
        checksum at the end of the pack proves nothing more."""
        with _on_disk():
            self._file.flush()
        self._pack = PackFile(self._file.fileno(), oid_bytes=self._oid_bytes)
        self._offsets = self._pack.index(self._hash_name)

    def close(self) -> None:
        """Also stops a method that runs in a thread."""
        if self._pack is not None:
            self._pack.stop()
        with contextlib.suppress(OSError):  # buffered data, on a full disk
            self._file.close()

    def _locate(self, shas: Sequence[str]) -> list[Place]:
        places = [Place(sha, offset=self._offsets.get(bytes.fromhex(sha))) for sha in shas]
        return in_order(places, lambda place: place.offset or 0)

    def _read(self, place: Place, max_bytes: int) -> PackedObject:
        if self._pack is None or place.offset is None:
            raise ObjectMissing("was not sent by the server")
        return self._pack.read(place.offset, max_bytes=max_bytes)

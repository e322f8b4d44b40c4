"""Whether a call is of a definition that the file imports, by the import lines of its text. Pure functions.

A file imports a name, or the module that defines it. What is called on an imported name or module is imported if a
definition is in that module; what is called on any other value, if the definition is a method and its class or its
file's module is imported. A definition of a different language never counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from reposync.search.call_lines import CallLine, family_of
from reposync.search.documents import Mark
from reposync.search.import_lines import Import, Segments, imports_of


@dataclass(frozen=True, slots=True)
class Definition:
    """Where a name is defined. `version`: of the index of its repository. `holders`: the classes and the like around
    it."""

    version: str
    repository: str
    path: str
    language: str | None
    kind: str
    holders: frozenset[str] = frozenset()


_FOLDER_FILES: Final = frozenset({"__init__", "index", "mod", "lib", "main"})
"""Names of files that stand for their folder."""
_SHARES_FOLDER: Final = frozenset({"go", "java", "csharp", "swift"})
"""Families in which the files of a folder, or of a package, know each other without an import."""
_SOURCE_ROOTS: Final = ("java", "kotlin", "scala", "groovy")


class FileImports:
    """The import lines of one file, for calls of one name. `definitions`: of the name, anywhere; those of other
    languages do not count."""

    def __init__(
        self, text: str, version: str, path: str, language: str | None, name: str, definitions: Iterable[Definition]
    ) -> None:
        self._family = family_of(language)
        self._version, self._path, self._name = version, path, name
        self._imports = imports_of(text, path, self._family)
        self._own = [each for each in definitions if family_of(each.language) == self._family]
        self._is_here = any((each.version, each.path) == (version, path) for each in self._own)
        self._known: dict[str | None, bool] = {}

    def mark(self, call: CallLine) -> Mark:
        if self._is_here:
            return "same file"
        if call.receiver not in self._known:
            self._known[call.receiver] = self._is_imported(call.receiver)
        return "imported" if self._known[call.receiver] else "name only"

    def _is_imported(self, receiver: str | None) -> bool:
        name, own = self._name, self._own
        if receiver is None:
            if any(name in each.names and self._may_be_of(each, own) for each in self._imports):
                return True
            return any(
                self._is_neighbour(definition, name, None)
                or any(each.is_open and self._is_of(each, definition) for each in self._imports)
                for definition in own
            )
        bound = [each for each in self._imports if receiver in each.aliases or receiver in each.names]
        if bound:
            return any(self._is_of(each, d, each.names.get(receiver), inside=True) for each in bound for d in own)
        if any(self._is_neighbour(each, name, receiver) for each in own):
            return True
        methods = [each for each in own if each.kind == "method"]
        return any(
            self._is_of(each, d) or not d.holders.isdisjoint(each.names.values())
            for each in self._imports
            for d in methods
        )

    def _may_be_of(self, imported: Import, own: Sequence[Definition]) -> bool:
        """Whether a name may be imported from a module with a definition. Modules of Python have the folders of their
        files: `from urllib.parse import quote` is of no other `quote`. A folder may import what its files define."""
        if self._family != "python" or imported.is_local or not own:
            return True
        return any(self._is_of(imported, each, inside=True) for each in own)

    def _is_neighbour(self, definition: Definition, name: str, receiver: str | None) -> bool:
        """Whether it is known without an import."""
        if self._family not in _SHARES_FOLDER or definition.version != self._version:
            return False
        if _package(definition.path) != _package(self._path):
            return False
        if receiver is None:
            return definition.kind != "method" or name in definition.holders
        return receiver in definition.holders

    def _is_of(
        self, imported: Import, definition: Definition, part: str | None = None, *, inside: bool = False
    ) -> bool:
        """Whether the definition is in the imported module, or in this part of it. `inside`: also in the files of an
        imported folder."""
        module = imported.module
        if not module:
            return False
        places = _modules_of(definition, self._family)
        wanted = [module] if part is None else [(*module, part), module]
        if imported.is_local:
            if definition.version != self._version:
                return False
            return any(place == each or (inside and place[: len(each)] == each) for place in places for each in wanted)
        repository = _plain(PurePosixPath(definition.repository).name)
        return any(_fits(each, place, repository, inside=inside) for place in places for each in wanted)


def _fits(module: Segments, place: Segments, repository: str, *, inside: bool) -> bool:
    module, place = tuple(map(_plain, module)), tuple(map(_plain, place))
    common = min(len(module), len(place))
    if common and module[-common:] == place[-common:]:
        return common == len(module) or common > 1 or module[-common - 1] == repository
    if not place and module[-1] == repository:
        return True
    return inside and any(place[at : at + len(module)] == module for at in range(len(place) - len(module)))


def _plain(segment: str) -> str:
    return segment.lower().replace("-", "").replace("_", "")


def _modules_of(definition: Definition, family: str) -> list[Segments]:
    """The modules that a file is."""
    path = PurePosixPath(definition.path)
    parts = (*path.parts[:-1], path.name.split(".")[0])
    if family == "go":
        return [parts[:-1]]
    if family in ("csharp", "java", "swift"):  # of a package as well as of a class in it
        return [parts, parts[:-1]]
    return [parts, parts[:-1]] if parts[-1] in _FOLDER_FILES else [parts]


def _package(path: str) -> Segments:
    parts = PurePosixPath(path).parts[:-1]
    roots = [at for at, part in enumerate(parts) if part in _SOURCE_ROOTS]
    return parts[roots[-1] + 1 :] if roots else parts

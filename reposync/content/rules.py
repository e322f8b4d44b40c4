"""Decides which paths of a commit are indexed, before anything is fetched.

In this order: submodules and symlinks never; what the user excludes; if the user includes something, nothing else; then
`.gitattributes` and the skip rules (binary, lock files, minified, generated, vendored). An `include` pattern overrides
a skip rule if it names what the rule leaves out: `vendor/ours/**` brings that folder back, `src/**` does not bring back
`src/node_modules`.

It overrides what a file's content says (generated, minified, data) in the same way: `*.pb.go` or `maps/world.json` name
such files, and `*.csv` every one, since it stands for data; `*.py` does not, since it stands for code.

The skip rules are those of GitHub's linguist, narrowed to what is safe to leave out of a search: a folder named
`external`, `dist` or `cache` may hold the project's own code, so it stays in. Folders compare with their case: `Pods`
holds dependencies, `pods` code about Kubernetes. File names compare in lower case. Paths are bytes decoded as Latin 1.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

from identify import extensions

from reposync.content.attributes import Attributes
from reposync.content.detection import DATA_FORMATS
from reposync.content.languages import language_of, language_of_head
from reposync.content.model import Skip, Skipped
from reposync.wildmatch import PathPatterns

CONTENT_REVISION: Final = 2
"""Raise it if a change of this package changes which files are indexed, or how: the next run checks every file
again."""

_PATTERNS_REVISION: Final = 2
"""Raise it if the same `include` and `exclude` match other paths than before: the next run decides about every path
again."""

_SUBMODULE: Final = 0o160000

_IS_SUBMODULE: Final = Skipped(Skip.SUBMODULE, "a submodule: its files belong to another repository")
_IS_SYMLINK: Final = Skipped(Skip.SYMLINK, "a symbolic link, which is never followed")
_NOT_INCLUDED: Final = Skipped(Skip.NOT_INCLUDED, "matches none of the include patterns")
_VENDORED_FOLDERS: Final = frozenset({
    "3rd-party", "3rd_party", "3rdparty", "_vendor", "ace-builds", "bower_components", "jspm_packages", "node_modules",
    "site-packages", "third-party", "third_party", "thirdparty", "vendored", "web_modules",
})  # fmt: skip
"""At any depth."""

_VENDORED_AT_THE_TOP: Final = frozenset({"Carthage", "Pods", "vendor"})
"""Go, Composer, Bundler, CocoaPods and Carthage write there. Further down, a folder of vendors (of a shop, of hardware)
is as likely the project's own code, and no package manager writes `Vendor` or `vendors`."""

_VENDORED_PAIRS: Final = frozenset({
    (".mvn", "wrapper"), ("gradle", "wrapper"), (".yarn", "cache"), (".yarn", "plugins"), (".yarn", "releases"),
    ("Carthage", "Build"), ("Carthage", "Checkouts"), ("Example", "Pods"), ("Godeps", "_workspace"), ("ios", "Pods"),
    ("macos", "Pods"), ("public", "vendor"), ("vendor", "bundle"),
})  # fmt: skip
"""One folder in the other, at any depth: `public/vendor` is Laravel's, `vendor/bundle` Bundler's."""

_HOST: Final = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,}")
"""In `vendor` at any depth: `vendor/github.com` is Go's."""

_GENERATED_FOLDERS: Final = frozenset({"__generated__", "__pycache__", ".ipynb_checkpoints", "DerivedData"})

_VENDORED_NAMES: Final = frozenset({
    "config.guess", "config.sub", "cpplint.py", "erlang.mk", "gradlew", "gradlew.bat", "libtool.m4", "ltmain.sh",
    "ltoptions.m4", "ltsugar.m4", "ltversion.m4", "lt~obsolete.m4", "mvnw", "mvnw.cmd", "ppport.h",
})  # fmt: skip

_VENDORED_SCRIPTS: Final = re.compile(
    r"(?:jquery(?:[-.](?:\d[\w.]*|ui[\w.-]*|slim|validate[\w.]*|migrate[\w.-]*))?|bootstrap(?:\.bundle|[-.]\d[\w.]*)"
    r"|modernizr(?:[-.](?:custom|\d)[\w.]*)?|angular(?:-\d[\w.]*)|d3\.v\d+|react-dom\.(?:development|production)"
    r"|html5shiv|tiny_mce\w*|ckeditor|mootools[-\w.]*\d|prototype-\d[\w.]*|dojo|font-awesome|normalize)\.(?:js|css|scss|less)"
)

_LOCK_NAMES: Final = frozenset({
    ".pnp.cjs", ".pnp.js", ".pnp.loader.mjs", "bun.lockb", "cartfile.resolved", "go.sum", "go.work.sum",
    "npm-shrinkwrap.json", "package.resolved", "project.assets.json", "shrinkwrap.yaml",
})  # fmt: skip

_LOCK_SUFFIXES: Final = (".lock", ".lockfile", "-lock.json", "-lock.yaml", "-lock.yml", ".lock.json", ".lock.hcl")

_MINIFIED: Final = re.compile(r".*[.-]min\.(?:js|mjs|cjs|css|html)|.*\.bundle\.min\.js")
_SOURCE_MAP: Final = re.compile(r".*\.(?:js|mjs|cjs|css|ts|cts|mts|jsx|tsx)\.map")

_GENERATED: Final = re.compile(
    r".*\.pb(?:\.gw|\.validate)?\.(?:go|cc|cpp|h|c|swift|dart|m|rs|micro\.go)|.*\.pb(?:enum|grpc|json|server)\.dart"
    r"|.*_pb2(?:_grpc)?\.pyi?|.*_(?:grpc_)?pb\.(?:js|d\.ts|ts|rb)|.*_pb_service\.(?:js|d\.ts)|.*_services_pb\.rb"
    r"|.*\.(?:g|freezed|gr|mocks|chopper|reflectable)\.dart|.*\.g\.(?:cs|i\.cs|ts|go)"
    r"|.*\.(?:designer|feature|generated)\.(?:cs|vb)|.*\.generated\.(?:ts|tsx|js|go|java|kt|swift|py|rs|h|cpp)"
    r"|.*[._]gen\.go|.*_generated\.(?:go|rs|h|py|ts)|zz_generated\..*\.go|bindata\.go|.*_string_enumer\.go"
    r"|.*\.zep\.(?:c|h|php)|.*\.xcuserstate|.*\.xcworkspacedata|.*\.nib|.*\.pbxproj|.*_tlb\.pas"
)

_MEDIA: Final = frozenset({
    "3gp", "7z", "a", "aac", "aar", "aif", "aiff", "apk", "avi", "beam", "blend", "br", "cab", "class", "crx", "cur",
    "db3", "dds", "deb", "der", "dex", "dmg", "doc", "docx", "dvi", "dylib", "elc", "elf", "epub", "exr", "fbx",
    "feather", "flac", "flv", "gem", "glb", "h5", "hdf5", "heic", "heif", "img", "iso", "jks", "jp2", "jxl", "keystore",
    "lz", "lz4", "lzma", "m4a", "m4v", "mdb", "mid", "midi", "mkv", "mov", "mp3", "mp4", "mpeg", "mpg", "msi", "npy",
    "npz", "nupkg", "o", "odp", "ods", "odt", "oga", "ogg", "ogv", "onnx", "opus", "parquet", "pcap", "pfx", "pickle",
    "ppt", "pptx", "psd", "pth", "pyc", "pyd", "pyo", "qm", "rar", "rdb", "rlib", "rpm", "safetensors", "sketch", "so",
    "sqlite", "sqlite3", "suo", "tflite", "tga", "tgz", "tif", "wasm", "wav", "webm", "wma", "wmf", "wmv", "woff",
    "xcf", "xls", "xlsm", "xlsx", "xpi", "xz", "z", "zst",
})  # fmt: skip

_ALSO_TEXT: Final = frozenset({
    "ai", "bin", "cer", "db", "egg", "eps", "idx", "ko", "lib", "mat", "mo", "node", "obj", "orc", "pack", "pb", "pdb",
    "pkl", "pt", "snap",
})  # fmt: skip
"""Zope's templates are .pt, Liberty's cells .lib, EPICS' records .db, proteins .pdb, Apple's configuration .pkl. The
content decides; a binary costs one fetch."""

_BINARY_EXTENSIONS: Final = (
    frozenset(extension for extension, tags in extensions.EXTENSIONS.items() if "binary" in tags) | _MEDIA
) - _ALSO_TEXT

# Skip rules ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SkipRule:
    """Leaves a file out by its path, unless an include pattern has the key `overridden_by` (see `_pattern_keys`)."""

    skipped: Skipped
    overridden_by: str


_MARKED_VENDORED: Final = SkipRule(Skipped(Skip.VENDORED, ".gitattributes says linguist-vendored"), "marked vendored")
_MARKED_GENERATED: Final = SkipRule(
    Skipped(Skip.GENERATED, ".gitattributes says linguist-generated"), "marked generated"
)
_LOCK_RULE: Final = SkipRule(Skipped(Skip.LOCK_FILE, "a lock file, by its name"), "lock file")
_MINIFIED_RULE: Final = SkipRule(Skipped(Skip.MINIFIED, "minified code or a source map, by its name"), "minified")
_GENERATED_RULE: Final = SkipRule(Skipped(Skip.GENERATED, "generated, by its name"), "generated")
_VENDORED_RULE: Final = SkipRule(Skipped(Skip.VENDORED, "a third-party file, by its name"), "vendored")
_IN_VENDORED_FOLDER: Final = Skipped(Skip.VENDORED, "in a folder of third-party code")
_IN_GENERATED_FOLDER: Final = Skipped(Skip.GENERATED, "in a folder of generated files")
_GENERATED_KINDS: Final = frozenset({Skip.GENERATED, Skip.LOCK_FILE, Skip.MINIFIED})
_CONTENT_KEYS: Final = frozenset({"generated", "minified", "marked generated"})
_WILD: Final = re.compile(r"[*?\[\\]")


class PathRules:
    """Decides about every path of one commit. Patterns have gitignore semantics and match bytes, as git's do."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str], attributes: Attributes | None = None) -> None:
        self._include = tuple(include)
        self._exclude = tuple(exclude)
        self.attributes = attributes or Attributes()
        self._folders: dict[str, tuple[SkipRule, ...]] = {}
        self._included = _patterns(self._include)
        self._excluded = _patterns(self._exclude)
        self._overrides = [
            (_patterns((pattern,)), keys)
            for pattern in self._include
            if not pattern.startswith("!") and (keys := self._pattern_keys(pattern))
        ]

    def decide(self, path: bytes, mode: int) -> Skipped | None:
        """Why the file at `path` (a raw git path) is not indexed; None if it is. `mode` is git's."""
        if mode == _SUBMODULE:
            return _IS_SUBMODULE
        if stat.S_ISLNK(mode):
            return _IS_SYMLINK
        text = path.decode("latin-1")
        if self._exclude and (number := self._excluded.match(text)) is not None:
            return Skipped(Skip.EXCLUDED, f"matches the exclude pattern {self._exclude[number]!r}")
        if self._include and self._included.match(text) is None:
            return _NOT_INCLUDED
        rules = self._skip_rules(path, text)
        if not rules:
            return None
        overridden = self._overridden(text)
        return next((rule.skipped for rule in rules if rule.overridden_by not in overridden), None)

    def keeps_generated(self, path: bytes) -> bool:
        """Whether the file is to be indexed even if its content says that it is generated, minified or data: the
        repository says so by `-linguist-generated`, or the user by an include pattern that names such files."""
        if self.attributes.generated(path) is False:
            return True
        text = path.decode("latin-1")
        named = _content_keys(text.rpartition("/")[2])
        return not self._overridden(text).isdisjoint(_CONTENT_KEYS | named)

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that change if a decision, or what is made of a file's content, may change."""
        sources = [[folder.decode("latin-1"), lines] for folder, lines in self.attributes.sources]
        parts = [CONTENT_REVISION, list(self._include), list(self._exclude), sources]
        if self._include or self._exclude:
            parts.append(_PATTERNS_REVISION)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def _skip_rules(self, path: bytes, text: str) -> list[SkipRule]:
        folder, _, name = text.rpartition("/")
        inside = self._folders.get(folder)
        if inside is None:
            inside = self._folders[folder] = _folder_rules(folder)
        named = _name_rule(name)
        found = [named, *inside] if named else list(inside)
        if self.attributes.empty:
            return found
        vendored, generated = self.attributes.vendored(path), self.attributes.generated(path)
        if vendored is False:
            found = [rule for rule in found if rule.skipped.reason is not Skip.VENDORED]
        if generated is False:
            found = [rule for rule in found if rule.skipped.reason not in _GENERATED_KINDS]
        if vendored:
            found.append(_MARKED_VENDORED)
        if generated:
            found.append(_MARKED_GENERATED)
        return found

    def _pattern_keys(self, pattern: str) -> frozenset[str]:
        """Keys of the skip rules that an include pattern names: those that would skip a file of its own name."""
        path = pattern.encode().strip(b"/")
        text = path.decode("latin-1")
        keys = {rule.overridden_by for rule in self._skip_rules(path, text)} | _folders_named_by(text)
        if not pattern.endswith("/"):
            keys |= _content_keys(text.rpartition("/")[2])
        return frozenset(keys)

    def _overridden(self, text: str) -> frozenset[str]:
        """Keys of the include patterns that match the path."""
        matching = [keys for patterns, keys in self._overrides if patterns.match(text) is not None]
        return frozenset().union(*matching)


def _patterns(patterns: Sequence[str]) -> PathPatterns:
    return PathPatterns([pattern.encode().decode("latin-1") for pattern in patterns])


def _content_keys(name: str) -> frozenset[str]:
    """Keys that override what a file's content says: its whole name, and its extension if that does not stand for code.
    A pattern gives those that it spells out: `*.csv` gives the extension, `data.*` gives neither."""
    stem, dot, extension = name.rpartition(".")
    if not stem or not dot or _WILD.search(extension):
        return frozenset()
    keys = set() if _WILD.search(stem) else {f"name {name}"}
    if language_of(f"x.{extension}".encode("latin-1")) in DATA_FORMATS:
        keys.add(f".{extension.lower()}")
    return frozenset(keys)


def _folder_rules(folder: str) -> tuple[SkipRule, ...]:
    """The rules against everything in this folder ("" is the root, no slash at either end)."""
    segments = folder.split("/")
    found = [SkipRule(_IN_VENDORED_FOLDER, segment) for segment in segments if segment in _VENDORED_FOLDERS]
    if segments[0] in _VENDORED_AT_THE_TOP:
        found.append(SkipRule(_IN_VENDORED_FOLDER, segments[0]))
    found += [SkipRule(_IN_VENDORED_FOLDER, _pair_key(pair)) for pair in pairwise(segments) if _is_vendored(pair)]
    found += [SkipRule(_IN_GENERATED_FOLDER, segment) for segment in segments if segment in _GENERATED_FOLDERS]
    return tuple(found)


def _is_vendored(pair: tuple[str, str]) -> bool:
    return pair in _VENDORED_PAIRS or (pair[0] == "vendor" and _HOST.fullmatch(pair[1]) is not None)


def _pair_key(pair: tuple[str, str]) -> str:
    return next((each for each in pair if each in _VENDORED_AT_THE_TOP or each == "Godeps"), "/".join(pair))


def _name_rule(name: str) -> SkipRule | None:
    """The rule against a file of this name (the last segment of its path) in any folder."""
    exact, name = name, name.lower()
    if name in _LOCK_NAMES or name.endswith(_LOCK_SUFFIXES):
        return _LOCK_RULE
    extension = name.rpartition(".")[2] if "." in name else ""
    if extension in _BINARY_EXTENSIONS and language_of_head(exact) is None:
        return SkipRule(Skipped(Skip.BINARY, f"a binary file, by its extension .{extension}"), f".{extension}")
    if _MINIFIED.fullmatch(name) or _SOURCE_MAP.fullmatch(name):
        return _MINIFIED_RULE
    if _GENERATED.fullmatch(name):
        return _GENERATED_RULE
    if name in _VENDORED_NAMES or _VENDORED_SCRIPTS.fullmatch(name):
        return _VENDORED_RULE
    return None


def _folders_named_by(pattern: str) -> frozenset[str]:
    """Keys of the rules against folders that a pattern names: `**/vendor/ours/**` names `vendor` at any depth."""
    segments = pattern.split("/")
    folders = _VENDORED_FOLDERS | _VENDORED_AT_THE_TOP | _GENERATED_FOLDERS | {"Godeps"}
    return folders.intersection(segments) | {_pair_key(pair) for pair in pairwise(segments) if pair in _VENDORED_PAIRS}

"""Files that hardly anybody wants to find in a search over source code, recognised by their path alone.

After the idea of GitHub's linguist (what counts as vendored, what as generated), narrowed to what is safe to leave out
of a search: a folder named `external`, `dist` or `cache` may well hold the project's own code, so it stays in. Folders
compare as linguist compares them, case included: `Pods` holds dependencies, `pods` the code about Kubernetes' pods.
Names of files compare in lower case. Paths are bytes decoded as Latin 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from identify import extensions

from reposync.content.languages import starts_with_name_of_text
from reposync.content.model import Skip, Skipped

_VENDORED_FOLDERS: Final = frozenset(
    {
        "3rd-party", "3rd_party", "3rdparty", "_vendor", "ace-builds", "bower_components", "jspm_packages",
        "node_modules", "site-packages", "third-party", "third_party", "thirdparty", "vendored", "web_modules",
    }
)  # fmt: skip
"""At any depth."""

_VENDORED_AT_THE_TOP: Final = frozenset({"Carthage", "Pods", "vendor"})
"""Go, Composer, Bundler, CocoaPods and Carthage write there. Further down, a folder of vendors (of a shop, of hardware)
is as likely the project's own code, and no package manager writes `Vendor` or `vendors`."""

_VENDORED_PAIRS: Final = frozenset(
    {
        (".mvn", "wrapper"), ("gradle", "wrapper"), (".yarn", "cache"), (".yarn", "plugins"), (".yarn", "releases"),
        ("Carthage", "Build"), ("Carthage", "Checkouts"), ("Example", "Pods"), ("Godeps", "_workspace"),
        ("ios", "Pods"), ("macos", "Pods"), ("public", "vendor"), ("vendor", "bundle"),
    }
)  # fmt: skip
"""One folder in the other, at any depth: `public/vendor` is Laravel's, `vendor/bundle` Bundler's."""

_HOST: Final = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,}")
"""In `vendor` at any depth: `vendor/github.com` is Go's."""

_GENERATED_FOLDERS: Final = frozenset({"__generated__", "__pycache__", ".ipynb_checkpoints", "DerivedData"})

_VENDORED_NAMES: Final = frozenset(
    {
        "config.guess", "config.sub", "cpplint.py", "erlang.mk", "gradlew", "gradlew.bat", "libtool.m4", "ltmain.sh",
        "ltoptions.m4", "ltsugar.m4", "ltversion.m4", "lt~obsolete.m4", "mvnw", "mvnw.cmd", "ppport.h",
    }
)  # fmt: skip

_VENDORED_SCRIPTS: Final = re.compile(
    r"(?:jquery(?:[-.](?:\d[\w.]*|ui[\w.-]*|slim|validate[\w.]*|migrate[\w.-]*))?|bootstrap(?:\.bundle|[-.]\d[\w.]*)"
    r"|modernizr(?:[-.](?:custom|\d)[\w.]*)?|angular(?:-\d[\w.]*)|d3\.v\d+|react-dom\.(?:development|production)"
    r"|html5shiv|tiny_mce\w*|ckeditor|mootools[-\w.]*\d|prototype-\d[\w.]*|dojo|font-awesome|normalize)\.(?:js|css|scss|less)"
)

_LOCK_NAMES: Final = frozenset(
    {
        ".pnp.cjs", ".pnp.js", ".pnp.loader.mjs", "bun.lockb", "cartfile.resolved", "go.sum", "go.work.sum",
        "gradle.lockfile", "manifest.toml.lock", "npm-shrinkwrap.json", "package-lock.json", "package.resolved",
        "packages.lock.json", "paket.lock", "pnpm-lock.yaml", "project.assets.json", "rebar.lock", "shrinkwrap.yaml",
        "yarn.lock",
    }
)  # fmt: skip

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

_MEDIA: Final = frozenset(
    {
        "3gp", "7z", "a", "aac", "aar", "aif", "aiff", "apk", "avi", "beam", "blend", "br", "cab", "class", "crx",
        "cur", "db3", "dds", "deb", "der", "dex", "dmg", "doc", "docx", "dvi", "dylib", "elc", "elf", "epub", "exr",
        "fbx", "feather", "flac", "flv", "gem", "glb", "h5", "hdf5", "heic", "heif", "img", "iso", "jks", "jp2", "jxl",
        "keystore", "lz", "lz4", "lzma", "m4a", "m4v", "mdb", "mid", "midi", "mkv", "mov", "mp3", "mp4", "mpeg", "mpg",
        "msi", "npy", "npz", "nupkg", "o", "odp", "ods", "odt", "oga", "ogg", "ogv", "onnx", "opus", "parquet", "pcap",
        "pfx", "pickle", "ppt", "pptx", "psd", "pth", "pyc", "pyd", "pyo", "qm", "rar", "rdb", "rlib", "rpm",
        "safetensors", "sketch", "so", "sqlite", "sqlite3", "suo", "tflite", "tga", "tgz", "tif", "wasm", "wav", "webm",
        "wma", "wmf", "wmv", "woff", "xcf", "xls", "xlsm", "xlsx", "xpi", "xz", "z", "zst",
    }
)  # fmt: skip

_ALSO_TEXT: Final = frozenset(
    {
        "ai", "bin", "cer", "db", "egg", "eps", "idx", "ko", "lib", "mat", "mo", "node", "obj", "orc", "pack", "pb",
        "pdb", "pkl", "pt", "snap",
    }
)  # fmt: skip
"""Zope's templates are .pt, Liberty's cells .lib, EPICS' records .db, proteins .pdb, Apple's configuration .pkl. The
content decides; a binary costs one fetch."""

_BINARY_EXTENSIONS: Final = (
    frozenset(extension for extension, tags in extensions.EXTENSIONS.items() if "binary" in tags) | _MEDIA
) - _ALSO_TEXT


@dataclass(frozen=True, slots=True)
class Default:
    """A default that leaves a file out. `key` says what about the path it goes by: an include pattern with the same key
    asks for such files (see `named_by`)."""

    skipped: Skipped
    key: str


_VENDORED: Final = Skipped(Skip.VENDORED, "in a folder of code from elsewhere")
_GENERATED_INSIDE: Final = Skipped(Skip.GENERATED, "in a folder of generated files")
_LOCK: Final = Default(Skipped(Skip.LOCK_FILE, "a lock file, by its name"), "lock file")
_SMALL: Final = Default(Skipped(Skip.MINIFIED, "minified code or a source map, by its name"), "minified")
_MADE: Final = Default(Skipped(Skip.GENERATED, "generated, by its name"), "generated")
_FOREIGN: Final = Default(Skipped(Skip.VENDORED, "a file from elsewhere, by its name"), "vendored")


def by_folder(folder: str) -> tuple[Default, ...]:
    """The defaults against everything in this folder ("" is the root, no slash at either end)."""
    segments = folder.split("/")
    found = [Default(_VENDORED, segment) for segment in segments if segment in _VENDORED_FOLDERS]
    if segments[0] in _VENDORED_AT_THE_TOP:
        found.append(Default(_VENDORED, segments[0]))
    found += [Default(_VENDORED, _key_of(pair)) for pair in pairwise(segments) if _is_vendored(pair)]
    found += [Default(_GENERATED_INSIDE, segment) for segment in segments if segment in _GENERATED_FOLDERS]
    return tuple(found)


def named_by(pattern: str) -> frozenset[str]:
    """Keys of the defaults against folders that a pattern names: `**/vendor/ours/**` names `vendor` at any depth."""
    segments = pattern.split("/")
    folders = _VENDORED_FOLDERS | _VENDORED_AT_THE_TOP | _GENERATED_FOLDERS | {"Godeps"}
    return folders.intersection(segments) | {_key_of(pair) for pair in pairwise(segments) if pair in _VENDORED_PAIRS}


def _is_vendored(pair: tuple[str, str]) -> bool:
    return pair in _VENDORED_PAIRS or (pair[0] == "vendor" and _HOST.fullmatch(pair[1]) is not None)


def _key_of(pair: tuple[str, str]) -> str:
    return next((each for each in pair if each in _VENDORED_AT_THE_TOP or each == "Godeps"), "/".join(pair))


def by_name(name: str) -> Default | None:
    """The default against a file of this name (the last segment of its path), wherever it stands."""
    exact, name = name, name.lower()
    if name in _LOCK_NAMES or name.endswith(_LOCK_SUFFIXES):
        return _LOCK
    extension = name.rpartition(".")[2] if "." in name else ""
    if extension in _BINARY_EXTENSIONS and not starts_with_name_of_text(exact):
        return Default(Skipped(Skip.BINARY, f"a binary file, by its extension .{extension}"), f".{extension}")
    if _MINIFIED.fullmatch(name) or _SOURCE_MAP.fullmatch(name):
        return _SMALL
    if _GENERATED.fullmatch(name):
        return _MADE
    if name in _VENDORED_NAMES or _VENDORED_SCRIPTS.fullmatch(name):
        return _FOREIGN
    return None

"""Files that hardly anybody wants to find in a search over source code, told by their path alone.

After the idea of GitHub's linguist (what counts as vendored, what as generated), narrowed to what is safe to leave out
of a search: a folder named `external`, `dist` or `cache` may well hold the project's own code, so it stays in.
Everything here compares in lower case; paths are bytes decoded as Latin 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from identify import extensions

from reposync.content.model import Skip, Skipped

_VENDORED_FOLDERS: Final = frozenset(
    {
        "3rd-party", "3rd_party", "3rdparty", "_vendor", "ace-builds", "bower_components", "carthage", "godeps",
        "jspm_packages", "node_modules", "pods", "site-packages", "third-party", "third_party", "thirdparty", "vendor",
        "vendored", "vendors", "web_modules",
    }
)  # fmt: skip

_VENDORED_PAIRS: Final = frozenset(
    {(".mvn", "wrapper"), ("gradle", "wrapper"), (".yarn", "cache"), (".yarn", "plugins"), (".yarn", "releases")}
)

_GENERATED_FOLDERS: Final = frozenset({"__generated__", "__pycache__", ".ipynb_checkpoints", "deriveddata"})

_VENDORED_NAMES: Final = frozenset(
    {
        "config.guess", "config.sub", "cpplint.py", "erlang.mk", "gradlew", "gradlew.bat", "libtool.m4", "ltmain.sh",
        "ltoptions.m4", "ltsugar.m4", "ltversion.m4", "lt~obsolete.m4", "mvnw", "mvnw.cmd", "ppport.h",
    }
)  # fmt: skip

_VENDORED_SCRIPTS: Final = re.compile(
    r"(?:jquery(?:[-.](?:\d[\w.]*|ui[\w.-]*|slim|validate[\w.]*|migrate[\w.-]*))?|bootstrap(?:\.bundle|[-.]\d[\w.]*)?"
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
    r"|.*\.(?:g|freezed|gr|mocks|config|chopper|reflectable)\.dart|.*\.g\.(?:cs|i\.cs|ts|go)"
    r"|.*\.(?:designer|feature|generated)\.(?:cs|vb)|.*\.generated\.(?:ts|tsx|js|go|java|kt|swift|py|rs|h|cpp)"
    r"|.*[._]gen\.go|.*_generated\.(?:go|rs|h|py|ts)|zz_generated\..*\.go|bindata\.go|.*_string_enumer\.go"
    r"|.*\.zep\.(?:c|h|php)|.*\.xcuserstate|.*\.xcworkspacedata|.*\.nib|.*\.pbxproj|.*_tlb\.pas"
)

_BINARY_EXTENSIONS: Final = frozenset(
    extension for extension, tags in extensions.EXTENSIONS.items() if "binary" in tags and extension not in {"eps"}
) | frozenset(
    {
        "3gp", "7z", "a", "aac", "aar", "ai", "aif", "aiff", "apk", "avi", "beam", "blend", "br", "bin", "cab", "cer",
        "class", "crx", "cur", "db", "db3", "dds", "deb", "der", "dex", "dmg", "doc", "docx", "dvi", "dylib", "egg",
        "elf", "elc", "epub", "exr", "fbx", "feather", "flac", "flv", "gem", "glb", "h5", "hdf5", "heic", "heif",
        "idx", "img", "iso", "jks", "jp2", "jxl", "keystore", "ko", "lib", "lz", "lz4", "lzma", "m4a", "m4v", "mat",
        "mdb", "mid", "midi", "mkv", "mo", "mov", "mp3", "mp4", "mpeg", "mpg", "msi", "node", "npy", "npz", "nupkg",
        "o", "obj", "odp", "ods", "odt", "oga", "ogg", "ogv", "onnx", "opus", "orc", "pack", "parquet", "pb", "pcap",
        "pdb", "pfx", "pickle", "pkl", "ppt", "pptx", "psd", "pt", "pth", "pyc", "pyd", "pyo", "qm", "rar", "rdb",
        "rlib", "rpm", "safetensors", "sketch", "snap", "so", "sqlite", "sqlite3", "suo", "tflite", "tga", "tgz",
        "tif", "wasm", "wav", "webm", "wma", "wmf", "wmv", "woff", "xcf", "xls", "xlsm", "xlsx", "xpi", "xz", "z",
        "zst",
    }
) - frozenset({"obj", "pb", "pack", "snap", "mo", "mat", "idx"})  # fmt: skip
"""Without those that are as often text (Wavefront .obj, Modelica .mo, Jest's .snap)."""


@dataclass(frozen=True, slots=True)
class Default:
    """A default that leaves a file out. `key` says what about the path it goes by: an include pattern with the same key
    asks for such files."""

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
    segments = folder.lower().split("/")
    found = [Default(_VENDORED, segment) for segment in segments if segment in _VENDORED_FOLDERS]
    found += [Default(_GENERATED_INSIDE, segment) for segment in segments if segment in _GENERATED_FOLDERS]
    pairs = pairwise(segments)
    return (*found, *(Default(_VENDORED, "/".join(pair)) for pair in pairs if pair in _VENDORED_PAIRS))


def by_name(name: str) -> Default | None:
    """The default against a file of this name (the last segment of its path), wherever it stands."""
    name = name.lower()
    if name in _LOCK_NAMES or name.endswith(_LOCK_SUFFIXES):
        return _LOCK
    extension = name.rpartition(".")[2] if "." in name else ""
    if extension in _BINARY_EXTENSIONS:
        return Default(Skipped(Skip.BINARY, f"a binary file, by its extension .{extension}"), f".{extension}")
    if _MINIFIED.fullmatch(name) or _SOURCE_MAP.fullmatch(name):
        return _SMALL
    if _GENERATED.fullmatch(name):
        return _MADE
    if name in _VENDORED_NAMES or _VENDORED_SCRIPTS.fullmatch(name):
        return _FOREIGN
    return None

"""The language of a file: one canonical lower-case name, by file name, extension and shebang.

Based on the tables of the library `identify`; this module narrows its sets of tags to one name and adds what it lacks.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import cache
from typing import Final

from identify import extensions, identify

_RENAMED: Final = {
    "bash": "shell", "c#": "csharp", "c++": "cpp", "c2hs": "haskell", "coffee": "coffeescript", "edn": "clojure",
    "f#": "fsharp", "jade": "pug", "java-properties": "properties", "jsx": "javascript", "literate-haskell": "haskell",
    "makefile": "make", "mdx": "markdown", "myst": "markdown", "nimble": "nim", "nunjucks": "jinja",
    "objective-c++": "objective-c", "plain-text": "text", "pofile": "gettext", "proto": "protobuf", "pyi": "python",
    "quarto": "markdown", "swiftdeps": "yaml", "system-verilog": "verilog", "tex": "latex",
    "textproto": "protobuf-text", "ts": "typescript", "tsx": "typescript", "vb": "visualbasic", "zpt": "html",
    "zsh": "shell",
}  # fmt: skip
"""Tags of `identify` that have a different name here."""

_NOT_A_LANGUAGE: Final = frozenset(
    {"binary", "def", "header", "image", "inc", "inl", "lazarus", "manifest", "map", "msbuild", "spec", "text"}
)

_FAMILIES: Final = (
    "html", "python", "ruby", "groovy", "objective-c++", "c++", "c#", "f#", "clojure", "scala", "pascal", "shell",
    "json", "yaml", "toml", "ini", "xml", "gitignore", "meson",
)  # fmt: skip
"""The languages that win: of several tags ({xml, csproj, msbuild}), the first of these is the language; the others say
what it is used for."""

_EXTENSIONS: Final = {
    "ada": "ada", "adb": "ada", "ads": "ada", "am": "make", "ac": "m4", "asax": "html", "ascx": "html", "aspx": "html",
    "bas": "visualbasic", "bicep": "bicep", "cbl": "cobol", "cfg": "ini", "cnf": "ini", "cob": "cobol", "cpy": "cobol",
    "containerfile": "dockerfile", "cshtml": "html", "d": "d", "dockerfile": "dockerfile", "el": "lisp", "f": "fortran",
    "f77": "fortran", "for": "fortran", "frm": "visualbasic", "glsl": "glsl", "frag": "glsl", "vert": "glsl",
    "gql": "graphql", "gv": "dot", "dot": "dot", "h": "c", "h++": "cpp", "hx": "haxe", "jsonc": "json", "jsonl": "json",
    "ndjson": "json", "ksh": "shell", "l": "lex", "lex": "lex", "y": "yacc", "yy": "yacc", "lisp": "lisp",
    "lsp": "lisp", "cl": "lisp", "litcoffee": "coffeescript", "mak": "make", "mts": "typescript", "cts": "typescript",
    "pks": "sql", "pkb": "sql", "plsql": "sql", "ddl": "sql", "dml": "sql", "psql": "sql", "prolog": "prolog",
    "pyde": "python", "rkt": "racket", "rmd": "markdown", "ron": "ron", "s": "assembly", "asm": "assembly",
    "nasm": "assembly", "shtml": "html", "st": "smalltalk", "t": "perl", "tcl": "tcl", "tk": "tcl", "tpl": "smarty",
    "mll": "ocaml", "mly": "ocaml", "vbs": "visualbasic", "vba": "visualbasic", "wat": "wasm-text", "wgsl": "wgsl",
    "xsjs": "javascript", "es6": "javascript", "tcc": "cpp", "td": "tablegen", "pod": "perl", "conf": "ini",
    "awk": "awk", "sed": "sed", "gn": "gn", "gni": "gn", "service": "ini", "socket": "ini", "timer": "ini",
    "desktop": "ini", "reg": "ini", "mermaid": "mermaid", "mmd": "mermaid", "nginx": "nginx", "odin": "odin",
    "pony": "pony", "raku": "raku", "rakumod": "raku", "abap": "abap", "apex": "apex", "as": "actionscript",
    "cfm": "coldfusion", "cfc": "coldfusion", "cypher": "cypher", "kql": "kql", "rego": "rego", "rq": "sparql",
    "sparql": "sparql", "ttl": "turtle", "stan": "stan", "do": "stata", "ado": "stata", "mo": "modelica",
    "move": "move", "cairo": "cairo", "cwl": "yaml", "smithy": "smithy", "log": "text",
}  # fmt: skip
"""What `identify` lacks, leaves open or classifies differently (`.h` is C, a notebook is JSON)."""

_NAMES: Final = {
    ".clangd": "yaml", ".dockerignore": "gitignore", ".helmignore": "gitignore",
    ".npmignore": "gitignore", ".npmrc": "ini", ".prettierrc": "json", ".eslintrc": "json", ".swcrc": "json",
    "Appfile": "ruby", "BSDmakefile": "make", "BUCK": "bazel", "Caddyfile": "caddyfile", "Dangerfile": "ruby",
    "Earthfile": "earthfile", "Guardfile": "ruby", "Justfile": "just", "Kbuild": "make", "Kconfig": "kconfig",
    "Podfile": "ruby", "Procfile": "procfile", "Snakefile": "python", "Thorfile": "ruby", "TODO": "text",
    "VERSION": "text", "configure.ac": "m4", "dockerfile": "dockerfile", "gradlew": "shell", "justfile": "just",
    "mvnw": "shell", "nginx.conf": "nginx",
}  # fmt: skip

_INTERPRETERS: Final = {
    "bun": "typescript", "deno": "typescript", "gawk": "awk", "guile": "scheme", "julia": "julia", "lua": "lua",
    "luajit": "lua", "make": "make", "nix-shell": "nix", "osascript": "applescript", "pwsh": "powershell",
    "pypy": "python", "pypy3": "python", "Rscript": "r", "sbcl": "lisp", "sed": "sed", "tclsh": "tcl",
    "ts-node": "typescript", "tsx": "typescript", "wish": "tcl",
}  # fmt: skip

_ALIASES: Final = {"golang": "go", "objc": "objective-c", "ps": "powershell"}

_LONGEST_FIRST_LINE = 512


def language_of(path: bytes, text: str = "") -> str | None:
    """Canonical language of the file at the git path `path`: by its name, then its extension, then the shebang in
    `text` (its beginning is enough). None if unknown."""
    name = path.rpartition(b"/")[2].decode("utf-8", "replace")
    language = _by_name(name)
    if language is None:
        return _by_shebang(text)
    if language == "typescript" and text.startswith(("<?xml", "<!DOCTYPE TS")):
        return "xml"  # Qt's translation files have the same extension
    return language


def canonical_language(name: str) -> str | None:
    """The canonical name of a language as users spell it (`JS`, `c++`, `.py`); None if unknown."""
    wanted = name.strip().lower().removeprefix(".")
    if wanted in known_languages():
        return wanted
    return _ALIASES.get(wanted) or _RENAMED.get(wanted) or _extension_table().get(wanted)


@cache
def known_languages() -> frozenset[str]:
    """Every name that `language_of` can return."""
    interpreters = set(_INTERPRETERS.values()) | {"awk", "expect", "nushell"}
    return frozenset(_extension_table().values()) | frozenset(_name_table().values()) | interpreters


def _by_name(name: str) -> str | None:
    names, by_extension = _name_table(), _extension_table()
    if language := names.get(name):
        return language
    stem, dot, extension = name.rpartition(".")
    if dot and (language := by_extension.get(extension.lower())):
        return language
    if "." in stem and extension.lower() in {"in", "j2", "tmpl", "template", "tpl", "erb", "dist", "example", "sample"}:
        return _by_name(stem)  # config.yaml.in, nginx.conf.example
    return language_of_head(name)


def language_of_head(name: str) -> str | None:
    """By the part of a file name before its first dot, if that is itself the name of a text file, so that what follows
    is no extension: `Makefile.lib`, `Dockerfile.deb`, `README.ko`."""
    head = name.partition(".")[0]
    return _name_table().get(head) if head[:1].isupper() or head.startswith("makefile") else None


def _by_shebang(text: str) -> str | None:
    if not text.startswith("#!"):
        return None
    line = text[:_LONGEST_FIRST_LINE].partition("\n")[0]
    command = identify.parse_shebang(io.BytesIO(line.encode("utf-8", "replace")))
    for word in command:
        # `env -i A=b python3`: options and assignments come before the interpreter.
        if word.startswith("-") or "=" in word or word.rpartition("/")[2] == "env":
            continue
        interpreter = word.rpartition("/")[2]
        plain = interpreter.rstrip("0123456789.") or interpreter
        if known := _INTERPRETERS.get(interpreter) or _INTERPRETERS.get(plain):
            return known
        return _one(identify.tags_from_interpreter(interpreter) or identify.tags_from_interpreter(plain))
    return None


def _one(tags: Iterable[str]) -> str | None:
    left = set(tags) - _NOT_A_LANGUAGE
    for family in _FAMILIES:
        if family in left:
            return _RENAMED.get(family, family)
    if len(left) > 1:
        left -= {"php7", "php8", "python2", "python3", "csh", "tcsh"}
    first = min(left, default=None)
    return _RENAMED.get(first, first) if first else None


@cache
def _extension_table() -> dict[str, str]:
    table = {
        extension: language
        for extension, tags in extensions.EXTENSIONS.items()
        if "binary" not in tags and (language := _one(tags))
    }
    return {**table, **_EXTENSIONS}


@cache
def _name_table() -> dict[str, str]:
    table = {name: language for name, tags in extensions.NAMES.items() if (language := _one(tags))}
    return {**table, **_NAMES}

"""The import lines of a file, by family of languages: regular expressions over the beginning of its text. Pure
functions. A text may be made to be slow to read: no pattern looks at the same character again for each one before it,
and what may be anywhere is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

Segments = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Import:
    """`module`: its name in parts, or the path from the root if it `is_local`, to a file of the same repository.
    `names`: those that it makes known, of parts of the module; `aliases`: of the module itself. `is_open`: it makes
    known whatever the module has."""

    module: Segments
    names: Mapping[str, str] = field(default_factory=dict)
    aliases: frozenset[str] = frozenset()
    is_open: bool = False
    is_local: bool = False


_MOST_CHARS: Final = 100_000
"""Of a text; import lines are at its beginning."""
_DEEPEST: Final = 20
"""Braces within braces in a `use` of Rust."""
_SEPARATORS: Final = re.compile(r"[./\\]|::")


def imports_of(text: str, path: str, family: str) -> Sequence[Import]:
    """Empty for a family without import lines that are known."""
    read = _READERS.get(family)
    return () if read is None else list(read(text[:_MOST_CHARS], path))


def _segments(module: str) -> Segments:
    return tuple(each for each in _SEPARATORS.split(module) if each)


def _local(path: str, relative: str) -> Segments:
    """The path from the root, of one that is relative to the file's folder."""
    parts = list(PurePosixPath(path).parts[:-1])
    for each in relative.split("/"):
        if each == "..":
            parts = parts[:-1]
        elif each not in ("", "."):
            parts.append(each)
    return (*parts[:-1], parts[-1].split(".")[0]) if parts else ()


def _names(listed: str, renames: str = r"\bas\b") -> dict[str, str]:
    """By the name that is known: the name in the module."""
    names = {}
    for each in re.sub(r"(?:#|//)[^\n]*", "", listed).split(","):
        parts = re.split(renames, each.strip().removeprefix("type "))
        original, *renamed = (part.strip() for part in parts)
        if original:
            names[(renamed or [original])[0]] = original
    return names


_PYTHON: Final = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.{0,30}+)([\w.]*)[ \t]+import[ \t]+(?:\(([^)]{0,5000})\)|([^\n;\\]*(?:\\\n[^\n;\\]*)*))"
    r"|import[ \t]+([^\n;#]+))",
    re.MULTILINE,
)


def _python(text: str, path: str) -> Iterator[Import]:
    for match in _PYTHON.finditer(text):
        if match[5] is not None:
            for known, named in _names(match[5]).items():
                yield Import(_segments(named), aliases=frozenset({known.split(".")[0]}))
            continue
        names, module = _names(match[3] or match[4].replace("\\\n", " ")), _segments(match[2])
        if match[1]:
            module = (*PurePosixPath(path).parts[: -len(match[1])], *module)
        yield Import(module, names, is_open="*" in names, is_local=bool(match[1]))


_JAVASCRIPT: Final = re.compile(
    r"^[ \t]*import\s++(?P<clause>[\w$*,\s]{0,200}(?:\{[^{}]{0,5000}\}\s*+)?)\bfrom\s*['\"](?P<from>[^'\"\n]+)['\"]"
    r"|\b(?:const|let|var)\s+(?P<bound>\{[^{}]{0,5000}\}|[\w$]+)\s*=\s*(?:await\s+)?(?:require|import)\(\s*['\"]"
    r"(?P<required>[^'\"\n]+)['\"]\s*\)(?:\.(?P<member>[\w$]+))?",
    re.MULTILINE,
)


def _javascript(text: str, path: str) -> Iterator[Import]:
    for match in _JAVASCRIPT.finditer(text):
        module = match["from"] or match["required"]
        clause = (match["clause"] or match["bound"]).removeprefix("type ")
        names, aliases = dict[str, str](), set[str]()
        if braces := re.search(r"\{([^{}]*)\}", clause):
            names = _names(braces[1], r"\bas\b|:")
            clause = clause.replace(braces[0], "")
        for each in clause.split(","):
            if alias := each.strip().removeprefix("*").strip().removeprefix("as ").strip():
                aliases.add(alias)
        if match["member"]:
            names, aliases = dict.fromkeys(aliases, match["member"]), set()
        # A default export is called by the name that it gets.
        names |= {} if "*" in (match["clause"] or "") else {alias: alias for alias in aliases}
        is_local = module.startswith(".")
        yield Import(
            _local(path, module) if is_local else _segments(module), names, frozenset(aliases), False, is_local
        )


_GO: Final = re.compile(r"^import[ \t]+(?:\(([^()]*)\)|([^\n]+))", re.MULTILINE)
_GO_LINE: Final = re.compile(r"^[ \t]*(?:([\w.]+)[ \t]+)?\"([^\"\n]+)\"", re.MULTILINE)


def _go(text: str, path: str) -> Iterator[Import]:
    for match in _GO.finditer(text):
        for alias, module in _GO_LINE.findall(match[1] or match[2]):
            segments = tuple(module.split("/"))
            versioned = len(segments) > 1 and re.fullmatch(r"v\d+", segments[-1]) is not None
            segments = segments[:-1] if versioned else segments
            known = alias or segments[-1].removeprefix("go-")
            yield Import(segments, aliases=frozenset({known}), is_open=alias == ".")


_JAVA: Final = re.compile(
    r"^[ \t]*import[ \t]+(static[ \t]+)?([\w.]+?)(\.[*_])?(?:\.\{([^}\n]*)\})?(?:[ \t]+as[ \t]+(\w+))?"
    r"[ \t]*+;?[ \t]*+$",
    re.MULTILINE,
)


def _java(text: str, path: str) -> Iterator[Import]:
    for match in _JAVA.finditer(text):
        module = _segments(match[2])
        if match[3]:
            yield Import(module, is_open=True)
        elif match[4]:
            yield Import(module, _names(match[4], r"=>|\bas\b"))
        elif match[1]:
            yield Import(module[:-1], {module[-1]: module[-1]})
        else:
            yield Import(module, {match[5] or module[-1]: module[-1]}, frozenset({match[5] or module[-1]}))


_RUST: Final = re.compile(
    r"^[ \t]*(?:pub(?:\([^)\n]*\))?[ \t]+)?(?:use[ \t]+([^;]{1,5000}+);|mod[ \t]+(\w+)[ \t]*;)", re.MULTILINE
)


def _rust(text: str, path: str) -> Iterator[Import]:
    for match in _RUST.finditer(text):
        if match[2]:
            yield Import((match[2],), aliases=frozenset({match[2]}))
        for module, known in _used(match[1] or "", ()):
            plain = tuple(each for each in module if each not in ("crate", "self", "super"))
            if known == "*":
                yield Import(plain, is_open=True)
            elif plain:
                yield Import(plain[:-1], {known: plain[-1]}, frozenset({known}))


def _used(tree: str, before: Segments, depth: int = 0) -> Iterator[tuple[Segments, str]]:
    """Paths of a `use`, with the names that they make known."""
    head, brace, rest = tree.partition("{")
    path, *renamed = re.split(r"\bas\b", head.strip())
    segments = (*before, *_segments(path.strip()))
    if depth > _DEEPEST:
        return
    if brace:
        for each in _top_level(rest.rpartition("}")[0]):
            yield from _used(each, segments, depth + 1)
    elif segments and segments[-1] == "*":
        yield segments[:-1], "*"
    elif segments:
        segments = segments[:-1] if segments[-1] == "self" and len(segments) > 1 else segments
        yield segments, (renamed or [segments[-1]])[0].strip()


def _top_level(listed: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, char in enumerate(listed):
        depth += (char == "{") - (char == "}")
        if char == "," and not depth:
            yield listed[start:at]
            start = at + 1
    if listed[start:].strip():
        yield listed[start:]


_RUBY: Final = re.compile(
    r"^[ \t]*(require_relative|require|load|autoload[ \t]+:\w+,)[ \t(]+['\"]([^'\"\n]+)['\"]", re.MULTILINE
)
_C: Final = re.compile(r"^[ \t]*#[ \t]*(?:include|import)[ \t]*([\"<])([^\">\n]+)[\">]", re.MULTILINE)
_PHP: Final = re.compile(
    r"^[ \t]*use[ \t]+(?:function[ \t]+|const[ \t]+)?\\?([\w\\]+)(?:\{([^{}]*)\})?(?:[ \t]+as[ \t]+(\w+))?",
    re.MULTILINE,
)
_USING: Final = re.compile(
    r"^[ \t]*(?:global[ \t]+)?(?:using|import)[ \t]+(?:static[ \t]+|qualified[ \t]+)?(?:(\w+)[ \t]*=[ \t]*)?([\w.]+)"
    r"(?:[ \t]+(?:qualified[ \t]+)?as[ \t]+([\w.]+))?",
    re.MULTILINE,
)
_ELIXIR: Final = re.compile(
    r"^[ \t]*(?:alias|import|use|require)[ \t]+([\w.]+?)(?:\.\{([^{}]*)\})?(?:,[ \t]*as:[ \t]*(\w+))?[ \t]*(?:,.*)?$",
    re.MULTILINE,
)
_REQUIRED: Final = re.compile(
    r"(?:(?:const|local)[ \t]+(\w+)[ \t]*=[ \t]*)?(?:require|@import)[ \t(]+['\"]([^'\"\n]+)['\"]"
)
_SOURCED: Final = re.compile(r"^[ \t]*(?:source|\.)[ \t]+[\"']?([^\s\"';&|]+)", re.MULTILINE)


def _ruby(text: str, path: str) -> Iterator[Import]:
    for how, module in _RUBY.findall(text):
        is_local = how == "require_relative"
        yield Import(_local(path, module) if is_local else _path_segments(module), is_open=True, is_local=is_local)


def _path_segments(module: str) -> Segments:
    """Without the extension, and what is before the folders of the repository."""
    parts = [each for each in module.split("/") if each not in ("", ".", "..")]
    return (*parts[:-1], parts[-1].split(".")[0]) if parts else ()


def _c(text: str, path: str) -> Iterator[Import]:
    for _, module in _C.findall(text):
        yield Import(_path_segments(module), is_open=True)


def _php(text: str, path: str) -> Iterator[Import]:
    for module, listed, alias in _PHP.findall(text):
        segments = _segments(module)
        if listed:
            yield Import(segments, _names(listed))
        elif segments:
            yield Import(segments, {alias or segments[-1]: segments[-1]}, frozenset({alias or segments[-1]}))


def _using(text: str, path: str) -> Iterator[Import]:
    for alias, module, later in _USING.findall(text):
        segments = _segments(module)
        known = {each for each in (alias, later, segments[-1] if segments else "") if each}
        yield Import(segments, aliases=frozenset(known), is_open=True)


def _elixir(text: str, path: str) -> Iterator[Import]:
    for module, listed, alias in _ELIXIR.findall(text):
        for each in _names(listed) if listed else [""]:
            segments = (*_segments(module), *_segments(each))
            if segments:
                yield Import(segments, aliases=frozenset({alias or segments[-1]}), is_open=True)


def _requires(text: str, path: str) -> Iterator[Import]:
    for alias, module in _REQUIRED.findall(text):
        segments = _path_segments(module.replace(".", "/") if "/" not in module and ".zig" not in module else module)
        yield Import(segments, aliases=frozenset({alias} if alias else ()), is_open=True)


def _shell(text: str, path: str) -> Iterator[Import]:
    for module in _SOURCED.findall(text):
        yield Import(_path_segments(module.rpartition("$")[2].partition("/")[2] or module), is_open=True)


_READERS: Final[Mapping[str, Callable[[str, str], Iterator[Import]]]] = {
    "c": _c, "csharp": _using, "elixir": _elixir, "go": _go, "haskell": _using, "java": _java,
    "javascript": _javascript, "lua": _requires, "php": _php, "python": _python, "ruby": _ruby, "rust": _rust,
    "shell": _shell, "swift": _using, "zig": _requires,
}  # fmt: skip
"""By family of languages: what reads the import lines."""

"""The lines of a text in which a name is called. The index says which chunks call it, as a parser read them; these
patterns only look for where: outside of comments and strings, as far as one line tells. Pure functions.

A text may be made to be slow to read: what a pattern looks at around a name is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

_FAMILIES: Final = {
    "c": "c cpp objective-c cuda",
    "javascript": "javascript typescript tsx vue svelte coffeescript",
    "java": "java kotlin scala groovy",
}
FAMILY_OF: Final = {language: family for family, all_of in _FAMILIES.items() for language in all_of.split()}
"""Languages that call each other's definitions count as one; a language that is not here is a family of its own."""

_HASH: Final = frozenset({
    "awk", "coffeescript", "crystal", "cython", "elixir", "julia", "nim", "perl", "php", "powershell", "python", "r",
    "raku", "ruby", "shell", "tcl",
})  # fmt: skip
_DASH: Final = frozenset({"haskell", "lua", "sql", "ada"})
_CHARACTERS: Final = frozenset({
    "c", "cpp", "csharp", "cuda", "d", "go", "haskell", "java", "kotlin", "objective-c", "rust", "scala", "swift",
    "zig",
})  # fmt: skip
"""Languages in which single quotes are around one character, and a lifetime or a mark has one, too."""
_INTERPOLATED: Final = re.compile(r"\$\{|#\{|\\\(|\{\$|\$\(|^[rR]?[fF$]")
"""In such a string code may be called."""
_WITHOUT_PARENTHESES: Final = frozenset(["ruby", "elixir", "haskell", "shell", "lua"])
_BLOCKS: Final = frozenset(["kotlin", "swift", "scala", "groovy", "ruby"])
"""Languages in which a block may be the argument."""
_DEFINES: Final = re.compile(
    r"\b(?:def|defp|func|fun|function|fn|sub|proc|class|struct|interface|trait|enum|type|record|object|module|macro)"
    r"[ \t]+(?:\([^()]*\)[ \t]*)?(?:[\w.]+[.:])?$"
)
_STATEMENT: Final = r"(?:return|else|case|new|throw|delete|goto|sizeof|co_await|co_return|not|and|or|do|in)\b"
_PROTOTYPE: Final = re.compile(rf"^[ \t]*(?!{_STATEMENT})(?:[\w:]+(?:<[^<>;()]*>)?[*&]*[ \t][ \t*&]*)+(?:\w+::)*$")
_QUALIFIER: Final = re.compile(
    r"((?:[\w$@]+(?:\?\.|!?\.|::|->|&\.|\\))*?)([\w$@]*|[)\]}>\"'?!])(?:\?\.|!?\.|::|->|&\.|\\)$"
)
_WORD: Final = re.compile(r"[\w$@]+")
_AROUND: Final = 300
"""Characters of a line before and after a name that say what it is."""
_LONGEST_CHAIN: Final = 100


@dataclass(frozen=True, slots=True)
class CallLine:
    """The first call in a line. `line` and `column` count from 0. `receiver`: the first word of what the name is called
    on, `a` of `a.b.name()`; empty if that is not a name, None if it is called on nothing."""

    line: int
    column: int
    receiver: str | None


def family_of(language: str | None) -> str:
    return FAMILY_OF.get(language or "", language or "")


def call_lines(text: str, name: str, language: str | None, defined_in: Iterable[int] = ()) -> Iterator[CallLine]:
    """The lines that call `name`, in their order. `defined_in`: lines in which definitions of it begin, from 0."""
    code = _code(text, language or "")
    lines, language = code.split("\n"), language or ""
    names = re.compile(rf"(?<![\w$]){re.escape(name)}(?![\w$])")
    definitions = _definitions(lines, names, defined_in)
    for number, line in enumerate(lines):
        if name not in line:
            continue
        for match in names.finditer(line):
            start, after = match.start(), line[match.end() : match.end() + _AROUND]
            # What is cut off did not begin the line.
            before = line[:start] if start <= _AROUND else "\0" + line[start - _AROUND : start]
            if (number, match.start()) in definitions or not _is_call(before, after, language):
                continue
            yield CallLine(number, match.start(), _receiver(before))
            break


def _definitions(lines: list[str], names: re.Pattern[str], defined_in: Iterable[int]) -> set[tuple[int, int]]:
    """Where the names of definitions are: below their first lines, which may be annotations."""
    found: set[tuple[int, int]] = set()
    for first in defined_in:
        for number in range(first, min(first + 20, len(lines))):
            matches = [each for each in names.finditer(lines[number]) if (number, each.start()) not in found]
            plain = [each for each in matches if not lines[number][: each.start()].rstrip().endswith("@")]
            if plain:
                found.add((number, plain[0].start()))
                break
    return found


def _is_call(before: str, after: str, language: str) -> bool:
    if _DEFINES.search(before):
        return False
    if FAMILY_OF.get(language) == "c" and _PROTOTYPE.match(before):
        return False
    if _followed(language).match(after):
        return True
    stripped = before.rstrip()
    if re.search(r"\bnew[ \t]+[\w.:\\]*$", before):
        return not after.lstrip().startswith("[")
    if family_of(language) in ("javascript", "python") and re.search(r"@[\w.]*$", before):
        return True
    if family_of(language) == "javascript" and re.search(r"<[\w.]*$", before):
        return not stripped.endswith("</") and not after.startswith(".")
    return language in _WITHOUT_PARENTHESES and _is_command(before, after, language)


def _is_command(before: str, after: str, language: str) -> bool:
    """Whether a name without parentheses is called."""
    if language == "ruby":
        if re.match(r"\s*(?:[-+*/|&%]?=(?![=~])|:(?!:))", after) or re.search(
            r"(?:[@$]|(?<!:):|\bdef\s+[\w.]*)$", before
        ):
            return False
        takes = re.match(r"[ \t]+(?:do\b|[\w:@'\"\[{]|->|\*\w|&\w)", after) and not re.match(
            r"[ \t]+(?:if|unless|and|or|then|while|until|rescue|in)\b", after
        )
        return re.search(r"(?:\.|::)$", before) is not None or bool(takes) or bool(re.match(r"\.new\b", after))
    if language == "shell":
        starts = re.search(
            r"(?:^|[|;&(`{!]|\b(?:then|do|else|if|while|until|exec|time|command|sudo))\s*(?:\w+=\S*\s+)*$", before
        )
        return starts is not None and not re.match(r"=|\s*\(\)|[\w/.-]", after)
    if language == "haskell":
        return not re.match(r"\s*(?:::|,\s*\w+\s*::)", after) and not re.match(r"\s*(?:import|module)\b", before)
    if language == "lua":
        return re.match(r"[ \t]*(?:[\"'{]|\[\[)", after) is not None
    return re.search(r"(?:\.|\|>\s*)$", before) is not None or re.match(r"[ \t]+[\w:@\"'\[{%~&]", after) is not None


@cache
def _followed(language: str) -> re.Pattern[str]:
    """What follows a name that is called."""
    forms = [r"[ \t]*\(", r"(?:::)?<[^;(){}\"']{0,200}>\s*\("]
    if language == "rust":
        forms.append(r"!\s*[(\[{]")
    if language in ("go", "scala"):
        forms += [r"\[[^\]\n]{0,200}\]\(", r"\{"]
    if language in _BLOCKS:
        forms.append(r"(?:<[^;(){}\"']{0,200}>)?[ \t]*\{")
    if family_of(language) == "javascript":
        forms += [r"`", r"\?\.\("]
    return re.compile("|".join(forms))


def _receiver(before: str) -> str | None:
    match = _QUALIFIER.search(before[-_LONGEST_CHAIN:])
    if match is None:
        return None
    first = _WORD.match(match[1] or match[2])
    return first[0].lstrip("@") if first else ""


@cache
def _not_code(language: str) -> re.Pattern[str]:
    comment = r"#[^\n]*" if language in _HASH else r"--[^\n]*" if language in _DASH else r"//[^\n]*|/\*.*?(?:\*/|\Z)"
    if language == "php":
        comment += r"|//[^\n]*|/\*.*?(?:\*/|\Z)"
    if language == "shell":
        comment = r"(?<![^\s;])#[^\n]*"
    # A string that does not end goes to the end of its line: what is in it is not read again.
    single = r"'(?:\\[^\n]{1,8}?|[^'\\\n])'" if language in _CHARACTERS else r"'(?:\\.|[^'\\\n])*+(?:'|$)"
    double = r"[fFrR$@]{0,2}\"(?:\\.|[^\"\\\n])*+(?:\"|$)"
    triple = r"[fFrR$]{0,2}\"\"\".*?(?:\"\"\"|\Z)"
    if language not in _CHARACTERS:
        triple += r"|[fFrR]{0,2}'''.*?(?:'''|\Z)"
        single = rf"[fFrR]{{0,2}}{single}"
    raw = r"|`[^`]*`" if language == "go" else ""
    return re.compile(f"(?P<comment>{comment})|{triple}|{double}|{single}{raw}", re.DOTALL | re.MULTILINE)


_NOT_LINE_BREAKS: Final = re.compile(r"[^\n]")


def _code(text: str, language: str) -> str:
    """With spaces for comments, and for what is in strings, at the same places."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        if match["comment"] is not None:
            return _NOT_LINE_BREAKS.sub(" ", found)
        return found if _INTERPOLATED.search(found) else found[0] + _NOT_LINE_BREAKS.sub(" ", found[1:-1]) + found[-1]

    return _not_code(language).sub(blank, text)

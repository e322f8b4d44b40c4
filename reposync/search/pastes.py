"""What a pasted traceback, compiler output or issue names: frames, names and a sentence. Pure functions.

RE2 never backtracks, each line is cut, and each list is bounded: the time is linear in a text of any kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import re2  # type: ignore[import-untyped]

from reposync.content.languages import language_of
from reposync.vectors.named_places import NamedPlace
from reposync.words import escape_unprintable

MAX_PASTE_CHARS: Final = 20_000
_LONGEST_LINE: Final = 1_000
_MOST_FRAMES: Final = 30
_MOST_NAMES: Final = 12
_LONGEST_NAME: Final = 100
_LONGEST_SENTENCE: Final = 300
_LINES_AT_AN_END: Final = 300
"""Of a text of more lines, the first and the last ones are read."""
_LONG_CHARS: Final = 2_000
"""A longer text of several lines is an issue, whatever it names; a query of words is not longer."""
_ISSUE_LINES: Final = 3
"""A text of fewer lines is no issue, whatever its length."""


@dataclass(frozen=True, slots=True)
class Paste:
    """`frames`: in the order in which they matter, the innermost first. `names`: identifiers and classes of errors.
    `sentence`: the last message of an error, else the first line. `title`: the first line, if it is a sentence beside
    the message."""

    frames: tuple[NamedPlace, ...]
    names: tuple[str, ...]
    sentence: str
    title: str = ""

    def used(self, found: Collection[tuple[str, int, int]]) -> str:
        """What a search used of it, in a sentence. `found`: path, first and last line of what it found."""
        places = sum(any(place.is_in(*each) for each in found) for place in self.frames)
        parts = [
            f"{places} of {_counted(len(self.frames), 'frame')}" if self.frames else "",
            _counted(len(self.names), "name") if self.names else "",
            f"the sentence \u201c{escape_unprintable(self.sentence)}\u201d" if self.sentence else "",
        ]
        *others, last = filter(None, parts)
        return f"Used {', '.join(others)}{' and ' if others else ''}{last}."

    @property
    def phrasings(self) -> tuple[str, ...]:
        """What is searched for beside the frames."""
        said = (" ".join(self.names), self.sentence, self.title)
        return tuple(dict.fromkeys(filter(None, said))) or (" ".join(each.name for each in self.frames),)


_EXTENSION: Final = r"[A-Za-z][A-Za-z0-9+]{0,7}"
_JVM: Final = r"(?:java|kts?|scala|groovy|clj)"
# With the groups path or qualified and file, line, and name. The first that matches a line counts.
_FRAMES: Final = (
    # Python: `File "/app/a.py", line 3, in f`
    r'File "(?P<path>[^"]+)", line (?P<line>\d{1,9})(?:, in (?P<name>[\w<>.]+))?',
    # Java, Kotlin: `at app//com.shop.Pool$Worker.run(Pool.java:12)`
    r"\bat (?:[\w.@-]*/+)?(?P<qualified>[\w$]+(?:\.[\w$]+)*)\.(?P<name>[\w$<>]+)"
    rf"\((?P<file>[\w$-]+\.{_JVM}):(?P<line>\d{{1,9}})\)",
    # C#: `at Shop.Pool.Run(Int32 n) in C:\src\Pool.cs:line 12`
    r"\bat (?P<name>[\w.<>`$]+)\([^)]*\) in (?P<path>.+):line (?P<line>\d{1,9})",
    # JavaScript: `at async Pool.run (/app/pool.js:3:7)`, `at /app/pool.js:3:7`, `run@http://host/pool.js:3:7`
    r"\bat (?:async )?(?:new )?(?:(?P<name>[\w.$<>#]+)(?: \[as [^\]]+\])? )?"
    r"\(?(?P<path>[^\s()]+?):(?P<line>\d{1,9}):\d{1,9}\)?",
    r"(?P<name>[\w.$/<]*)@(?P<path>\w+://[^\s]+?):(?P<line>\d{1,9}):\d{1,9}$",
    # PHP: `#0 /app/Pool.php(12): Shop\Pool->run()`, `in /app/Pool.php on line 12`
    r"#\d+ (?P<path>[^\s(][^(]*)\((?P<line>\d{1,9})\): (?P<name>[\w\\]+(?:(?:->|::)\w+)?)",
    r"\bin (?P<path>\S+\.php)(?::| on line )(?P<line>\d{1,9})",
    # Ruby: `/app/pool.rb:12:in 'Pool#run'`
    r"(?P<path>[^\s:]+\.(?:rb|rake|erb)):(?P<line>\d{1,9}):in [`'](?:block in )?(?P<name>[\w.#:?!]+)'",
    # gdb, lldb: `#3 0x0 in run (n=1) at src/pool.c:12`
    r"#\d+ +(?:0x[0-9a-f]+ in )?(?P<name>[\w:~<>]+) ?\(.*\) at (?P<path>\S+?):(?P<line>\d{1,9})",
    # pytest: `tests/test_pool.py::TestPool::test_run`
    r"(?P<path>[\w./\\@+~-]+\.py)::(?P<name>\w+(?:::\w+)*)",
    # tsc, MSVC, csc: `src/pool.ts(12,5): error TS2345`
    rf"(?P<path>[^\s()'\"]+\.{_EXTENSION})\((?P<line>\d{{1,9}})(?:,\d{{1,9}})?\)\s*: (?:fatal )?(?:error|warning)",
    # Go, Rust, gcc, clang, kotlinc and most others: `src/pool.rs:12:5`
    rf"(?P<path>[^\s()'\"<>|,;=`]+\.{_EXTENSION}):(?P<line>\d{{1,9}})\b",
)  # fmt: skip
# Frames of these list the outermost one first: the innermost is the last.
_INNERMOST_LAST: Final = r"Traceback \(most recent call last\)"
_CAUSE: Final = r"^\s*(?:Caused by: |During handling of |The above exception was )"
_ERROR_CLASS: Final = r"\b(?:[A-Za-z_]\w*(?:\.|::|\\))*[A-Za-z_]\w*(?:Error|Exception|Failure|Panic|Fault)\b"
_MESSAGES: Final = (
    r":in [`'][^']+': (?P<message>.+)",
    # `panicked at src/pool.rs:3:5:`, whose message is the next line
    r"panicked at '(?P<message>[^']+)'",
    r"^\s*(?:E\s+)?(?:Caused by: |Exception in thread \"[^\"]*\" |Uncaught |Unhandled exception\.? "
    r"|PHP Fatal error:  )*"
    r"(?P<message>(?:[A-Za-z_]\w*(?:\.|::|\\))*[A-Za-z_]\w*(?:Error|Exception|Failure|Interrupt|Warning)(?::? .*|:?$))",
    r"^\s*(?:panic|fatal error|fatal|error|FAILED|e)(?:\[\w+\])?: (?P<message>.+)",
    r"(?::|\)) ?(?:fatal )?error(?: \w+)?: (?P<message>.+)",
    r"^\s*E  +(?P<message>.+)",
    r"`?\((?P<message>\w+(?:Error|Exception))\)$",
)
_NAMES: Final = (
    _ERROR_CLASS,
    r"`(?P<name>[A-Za-z_][\w.:#>-]*)(?:\(\))?`",
    r"\b(?P<name>[A-Za-z_]\w*(?:(?:\.|::|->|#)[A-Za-z_]\w*)+)(?:\(\)|\b)",
    r"\b(?P<name>[a-z][a-z0-9]*(?:_[a-z0-9]+)+|[a-z]+[A-Z][A-Za-z0-9]*|[A-Z][a-z0-9]+[A-Z][A-Za-z0-9]*)\b",
)
_URL: Final = r"\b\w+://\S+"
_SAYS_NOTHING: Final = frozenset(
    {"<module>", "<anonymous>", "<init>", "<lambda>", "anonymous", "main", "Object.<anonymous>", "run", "call"}
)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


@cache
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def read_paste(text: str) -> Paste | None:
    """What the text names; None if it is no paste but a query: it names no place in several lines, or in the form of a
    frame, and is not as long as an issue. Every text is accepted."""
    text = text[:MAX_PASTE_CHARS].encode("utf-8", "replace").decode()  # RE2 refuses lone surrogates
    lines = [line[:_LONGEST_LINE].rstrip() for line in text.splitlines() if line.strip()]
    if len(lines) > 2 * _LINES_AT_AN_END:
        lines = [*lines[:_LINES_AT_AN_END], *lines[-_LINES_AT_AN_END:]]
    others = list[str]()
    frames: dict[NamedPlace, None] = {}
    names: dict[str, None] = {}
    are_reversed, is_certain = False, False
    run: list[NamedPlace] = []
    for line in lines:
        is_opening = _compiled(_INNERMOST_LAST).search(line) is not None
        are_reversed |= is_opening
        if found := list(_frames(line)):
            for frame, name, has_form in found:
                run.append(frame)
                is_certain |= has_form
                if name and name not in _SAYS_NOTHING and not frame.is_of_library:
                    names[name[:_LONGEST_NAME]] = None
            continue
        others.append(line)
        if not is_opening and (_compiled(_CAUSE).search(line) or not line.startswith(" ")):
            _add(frames, run, are_reversed)
            run, are_reversed = [], False
    _add(frames, run, are_reversed)
    if not (frames and (len(lines) > 1 or is_certain)) and not _is_issue(text, lines):
        return None
    kept = tuple(frames)[:_MOST_FRAMES]
    sentence, title = _sentences(lines, others)
    return Paste(kept, _names(others, names), sentence, title)


def _is_issue(text: str, lines: list[str]) -> bool:
    return len(text) > _LONG_CHARS and len(lines) >= _ISSUE_LINES


def _add(frames: dict[NamedPlace, None], run: list[NamedPlace], are_reversed: bool) -> None:
    for frame in reversed(run) if are_reversed else run:
        if len(frames) < 4 * _MOST_FRAMES:
            frames.setdefault(frame)


def _frames(line: str) -> Iterator[tuple[NamedPlace, str, bool]]:
    """The frames of a line, each with the name of its function and whether it has the form of a frame."""
    if "::" not in line and not any(map(str.isdigit, line)):
        return
    for number, pattern in enumerate(_FRAMES, 1):
        if (match := _compiled(pattern).search(line)) is None:
            continue
        groups = match.groupdict()
        path = groups.get("path") or _jvm_path(groups["qualified"], groups["file"])
        name = (groups.get("name") or "").strip(".")
        if groups.get("qualified"):
            name = f"{groups['qualified'].rpartition('.')[2].partition('$')[0]}.{name}"
        path = _plain(path)
        if path and (number < len(_FRAMES) or _is_code(path)):
            yield NamedPlace(path, int(groups["line"]) if groups.get("line") else None), name, number < len(_FRAMES)
            return


def _jvm_path(qualified: str, file: str) -> str:
    return "/".join([*qualified.split(".")[:-1], file])


def _plain(path: str) -> str:
    """Without a scheme, a host, a drive and leading dots; with slashes."""
    path = path.strip().replace("\\", "/")
    if "://" in path:
        scheme, _, path = path.partition("://")
        path = path.partition("/")[2] if scheme in ("http", "https") else path
    path = path.partition("?")[0]
    parts = [part for part in path.split("/") if part not in ("", ".", "..") and not part.endswith(":")]
    return ("/" if path.startswith("/") else "") + "/".join(parts)


def _is_code(path: str) -> bool:
    """Not a host with its port, nor a version."""
    name = path.rpartition("/")[2]
    return language_of(f"x.{name.rpartition('.')[2]}".encode()) is not None


def _names(others: list[str], of_frames: dict[str, None]) -> tuple[str, ...]:
    """`others`: the lines that are no frames."""
    found: dict[str, None] = {}
    texts = [_compiled(_URL).sub(" ", line) for line in others]
    for number, pattern in enumerate(_NAMES):
        if number == 1:
            found |= of_frames
        for text in texts:
            for match in _compiled(pattern).finditer(text):
                name = match.groupdict().get("name") or match[0]
                is_file = number > 1 and "." in name and _is_code(name)
                if len(name) <= _LONGEST_NAME and not is_file and not any(each.endswith(name) for each in found):
                    found[name.strip(".:#>-")] = None
            if len(found) >= _MOST_NAMES:
                return tuple(found)[:_MOST_NAMES]
    return tuple(found)[:_MOST_NAMES]


def _sentences(lines: list[str], others: list[str]) -> tuple[str, str]:
    """The last message of an error, or the first line; and the first line, if it is a sentence beside it."""
    message = ""
    for pattern in _MESSAGES:
        matches = [match for line in lines if (match := _compiled(pattern).search(line))]
        if matches:
            message = matches[-1]["message"].strip()
            break
    first = next(iter(others), "").strip(" #*>-")
    if not message:
        return first[:_LONGEST_SENTENCE], ""
    is_title = len(first.split()) > 2 and message not in first and not _compiled(_INNERMOST_LAST).search(first)
    return message[:_LONGEST_SENTENCE], first[:_LONGEST_SENTENCE] if is_title else ""

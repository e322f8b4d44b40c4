"""The kinds of values in the registry: what each accepts, and the sentence for a person where it does not fit.

Texts come from YAML, from variables (`Interpolated`) or from a program. Only a variable may stand as text for a number,
for true or false: `size: ${SIZE}` is fine, `size: "7000"` is a mistake.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
)

from reposync.config.addresses import base_url, git_url, gitlab_url
from reposync.config.consistency import SMALLEST_CHUNK
from reposync.config.interpolation import Interpolated
from reposync.config.references import MissingSecret
from reposync.config.schedule import NEVER, Schedule, is_never, zone
from reposync.wildmatch import check_pattern

T = TypeVar("T")

VARIABLE = r"\$\{"
"""JSON schema: where a pattern, a number or a fixed set of words is asked for, a `${VARIABLE}` may stand instead."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NAME = r"[A-Za-z0-9._/][A-Za-z0-9._/-]{0,199}"
_COLLECTION = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}"
_DURATION = re.compile(r"(?P<count>[0-9]+(?:\.[0-9]+)?)(?P<unit>[smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_OLDER_FLAGS = {"yes": "true", "y": "true", "on": "true", "no": "false", "n": "false", "off": "false"}
_LONGEST_DURATION_SECONDS = 366 * 86_400
MAX_PATTERNS, MAX_PATTERNS_CHARS, MAX_PATTERN_CHARS = 1_000, 50_000, 1_000
"""Of one `include` or `exclude`, each of which is matched with every path of a commit. The slowest that may be written
take 0.5 s for a path of 4 kB, in steps of 50 ms; 200 ordinary ones take 0.06 ms."""

_PROJECT = r"[A-Za-z0-9_.][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.][A-Za-z0-9_.-]*)*"


class Unfit(ValueError):
    """A value that does not fit. The message goes behind the name of its key, but for one in its `own_words`."""

    def __init__(self, message: str, *, own_words: bool = False) -> None:
        super().__init__(message)
        self.own_words = own_words


def _none_for_empty(value: Any) -> Any:
    # `url: ${QDRANT_URL:-}` means: none, where the variable is not set.
    return None if isinstance(value, Interpolated) and not value else value


def _plain_text(value: Any) -> Any:
    if not isinstance(value, str):
        if isinstance(value, bool | int | float):
            raise Unfit("must be text: write it in quotes")
        raise Unfit("must be text")
    if _CONTROL.search(value):
        raise Unfit("must not hold a line break or another control character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit("is not valid Unicode text") from None
    return str(value)


def _some_text(value: str) -> str:
    if not value.strip():
        raise Unfit("must not be empty")
    return value


def _secret(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value
    # A secret that comes from a mounted file brings the file's last line end along.
    text = _plain_text(value.rstrip("\r\n") if isinstance(value, str) else value)
    if not text:
        raise Unfit("must not be empty; leave it out where none is needed")
    return text


def _header_secret(value: SecretStr) -> SecretStr:
    if isinstance(value, MissingSecret):
        return value
    # It goes into an HTTP header: a line break of a mounted file would fail there much later and less clearly.
    if not re.fullmatch(r"[\x21-\x7e]+", value.get_secret_value()):
        raise Unfit("must be printable ASCII without spaces")
    return value


def _number(value: Any, kind: type[int] | type[float], words: str) -> Any:
    if isinstance(value, Interpolated):
        try:
            return kind(value.strip())
        except ValueError:
            raise Unfit(f"must be {words}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unfit(f"must be {words}" + (", without quotes" if isinstance(value, str) else ""))
    if kind is int and isinstance(value, float) and not value.is_integer():
        raise Unfit(f"must be {words}")
    return value


def _whole(value: Any) -> Any:
    return _number(value, int, "a whole number")


def _decimal(value: Any) -> Any:
    return _number(value, float, "a number")


def _duration(value: Any) -> Any:
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match["count"]) * _UNIT_SECONDS[match["unit"]]
    return _number(value, float, "a number of seconds, or a number with s, m, h or d, such as 24h")


def _flag(value: Any) -> Any:
    word = value.strip().lower() if isinstance(value, str) else ""
    if isinstance(value, Interpolated) and word in ("true", "false"):
        return word == "true"
    if word in _OLDER_FLAGS:
        raise Unfit(f"must be true or false: write {_OLDER_FLAGS[word]} (yes, no, on and off are text in YAML 1.2)")
    if not isinstance(value, bool):
        raise Unfit("must be true or false")
    return value


def _list(value: Any) -> Any:
    if value is None:  # a key whose entries are all commented out
        return ()
    return value


def _word(value: Any) -> Any:
    return str(value) if isinstance(value, str) else value


def _section(value: Any) -> Any:
    return {} if value is None else value


def _name(value: str) -> str:
    if not re.fullmatch(_NAME, value) or any(part in ("", ".", "..") for part in value.split("/")):
        raise Unfit(
            "must be 1 to 200 letters (a-z), digits and . _ - /, not start with -, and have no empty, . or .. part "
            "between its slashes"
        )
    return value


def _collection(value: str) -> str:
    if not re.fullmatch(_COLLECTION, value):
        raise Unfit("must be 1 to 255 letters (a-z), digits and . _ -, and not start with . or -")
    return value


def _project(value: str) -> str:
    if "://" in value or value.startswith("git@"):
        raise Unfit("must be the path of the project (group/project), not its address")
    if not re.fullmatch(_PROJECT, value) or "/" not in value:
        raise Unfit("must be the path of a project with its group: group/project, or group/subgroup/project")
    if value.endswith((".git", ".atom")):
        raise Unfit("must not end in .git or .atom: leave that off")
    return value


def _group(value: str) -> str:
    if not re.fullmatch(_PROJECT, value):
        raise Unfit("must be the path of a group: group, or group/subgroup")
    return value


def _branch(value: str) -> str:
    # The rules of git-check-ref-format(1).
    wrong = (
        not value
        or re.search(r"[ ~^:?*\[\\]|\.\.|@\{|//", value)
        or value.startswith(("-", "/"))
        or value.endswith(("/", "."))
        or value == "@"
        or any(part.startswith(".") or part.endswith(".lock") for part in value.split("/"))
    )
    if wrong:
        raise Unfit("is no name that git allows for a branch")
    if value.startswith("refs/"):
        raise Unfit("must be the branch alone, without refs/heads/")
    return value


def _glob(value: str) -> str:
    if len(value) > MAX_PATTERN_CHARS:
        raise Unfit(f"must have at most {MAX_PATTERN_CHARS:,} characters; it has {len(value):,}")
    try:
        check_pattern(value)
    except ValueError as error:
        raise Unfit(f"matches nothing: {error}") from None
    parts = value.removeprefix("!").rstrip().removeprefix("/").removesuffix("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise Unfit("matches nothing: paths start at the repository's top and have no empty, . or .. part")
    return value


def _globs(value: tuple[str, ...]) -> tuple[str, ...]:
    chars = sum(len(pattern) for pattern in value)
    if len(value) > MAX_PATTERNS or chars > MAX_PATTERNS_CHARS:
        raise Unfit(
            f"must be at most {MAX_PATTERNS:,} patterns with {MAX_PATTERNS_CHARS:,} characters in all: it is "
            f"{len(value):,} with {chars:,}"
        )
    return value


def _local_path(value: Any, info: ValidationInfo) -> Path:
    """Absolute; relative ones start at the folder that the validation context names as `base`, or at the current."""
    text = str(value) if isinstance(value, Path) else _plain_text(value)
    if not text:
        raise Unfit("must not be empty; write . for the folder of this file")
    if "://" in text:
        raise Unfit("is an address: write it under `git`")
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise Unfit("the home folder in it is not known") from None
    base = (info.context or {}).get("base") or Path.cwd()
    # Not resolve(): a symlink stays what its owner calls it.
    return Path(os.path.normpath(base / path))


def _schedule(value: str) -> str:
    Schedule.parse(value)
    return value


def _schedule_or_never(value: str) -> str:
    return NEVER if is_never(value) else _schedule(value)


def _never_for_null(value: Any) -> Any:
    # Only a key that is left out goes by the defaults, and one whose variable is not set.
    if isinstance(value, bool):
        raise Unfit(f"must be a schedule; write `{NEVER}` for a repository that is synced on request only")
    return NEVER if value is None else _none_for_empty(value)


def _timezone(value: str) -> str:
    zone(value)
    return value


def _pattern(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern})$|{VARIABLE}"})


_SOME = WithJsonSchema({"type": "string", "minLength": 1})
_SOME_OR_NULL = WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]})
_HTTP = WithJsonSchema({"type": "string", "pattern": f"^https?://|{VARIABLE}"})
_TEXT = BeforeValidator(_plain_text)

Maybe = Annotated[T | None, BeforeValidator(_none_for_empty)]
"""A value that may be null or left out."""
Listing = Annotated[tuple[T, ...], BeforeValidator(_list)]
"""A list; nothing at all is an empty one."""
OrDefaults = Annotated[T, BeforeValidator(_section)]
"""A mapping all of whose keys have defaults; nothing at all is an empty one."""

Words = Annotated[T, BeforeValidator(_word)]
"""One of a fixed set of words."""

Text = Annotated[str, _TEXT, AfterValidator(_some_text), _SOME]
Secret = Annotated[SecretStr, BeforeValidator(_secret)]
HeaderSecret = Annotated[SecretStr, BeforeValidator(_secret), AfterValidator(_header_secret)]
Name = Annotated[str, _TEXT, AfterValidator(_name), _pattern(_NAME)]
Collection = Annotated[str, _TEXT, AfterValidator(_collection), _pattern(_COLLECTION)]
Project = Annotated[str, _TEXT, AfterValidator(_project), _pattern(_PROJECT.removesuffix("*") + "+")]
Group = Annotated[str, _TEXT, AfterValidator(_group), _pattern(_PROJECT)]
Branch = Annotated[str, _TEXT, AfterValidator(_branch), _pattern(r"[^\s~^:?*\[\\-][^\s~^:?*\[\\]*")]
Glob = Annotated[str, _TEXT, AfterValidator(_glob), _pattern(r"(?!#).*[^\s/!].*")]
Globs = Annotated[tuple[Glob, ...], AfterValidator(_globs)]
ListedGlobs = Annotated[Globs, BeforeValidator(_list)]
BaseUrl = Annotated[str, _TEXT, AfterValidator(base_url), _HTTP]
GitLabUrl = Annotated[BaseUrl, AfterValidator(gitlab_url), _HTTP]
GitUrl = Annotated[str, _TEXT, AfterValidator(git_url), _HTTP]
LocalPath = Annotated[Path, BeforeValidator(_local_path), PlainSerializer(str, when_used="json"), _SOME]
ScheduleText = Annotated[str, _TEXT, AfterValidator(_schedule), _SOME]
_ScheduleOrNever = Annotated[str, _TEXT, AfterValidator(_schedule_or_never), _SOME]
ScheduleOrNever = Annotated[_ScheduleOrNever, BeforeValidator(_never_for_null), _SOME_OR_NULL]
"""A schedule, or `never` in whichever spelling; null is `never`."""
MaybeScheduleOrNever = Annotated[_ScheduleOrNever | None, BeforeValidator(_never_for_null)]
"""The same, or None if the key is left out: for a field whose default is not validated."""
Timezone = Annotated[str, _TEXT, AfterValidator(_timezone), _SOME]

WHOLE, DECIMAL = BeforeValidator(_whole), BeforeValidator(_decimal)
ChunkSize = Annotated[int, Field(ge=SMALLEST_CHUNK, le=50_000), WHOLE]
ChunkOverlap = Annotated[int, Field(ge=0, lt=50_000), WHOLE]
FileBytes = Annotated[int, Field(ge=1, le=100_000_000), WHOLE]
Count = Annotated[int, Field(ge=1, le=10_000), WHOLE]
Dimensions = Annotated[int, Field(ge=1, le=65_536), WHOLE]
WindowChars = Annotated[int, Field(ge=100, le=1_000_000), WHOLE]
Attempts = Annotated[int, Field(ge=1, le=100), WHOLE]
Seconds = Annotated[float, Field(gt=0, le=3600), DECIMAL]
Duration = Annotated[
    float,
    Field(ge=0, le=_LONGEST_DURATION_SECONDS),
    BeforeValidator(_duration),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": _LONGEST_DURATION_SECONDS},
                {"type": "string", "pattern": rf"^\s*[0-9]+(?:\.[0-9]+)?[smhd]\s*$|{VARIABLE}"},
            ]
        }
    ),
]
"""Seconds; the file may write `90m`, `24h` or `7d` too."""
Flag = Annotated[bool, BeforeValidator(_flag)]

"""The types of values in the registry: what each accepts, and the message if a value does not fit.

Only a variable (`Interpolated`) may be a text for a number, for true or for false: `size: ${SIZE}` is accepted,
`size: "7000"` is not.
"""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from reposync.config.references import Interpolated
from reposync.config.schedule import NEVER, SCHEDULE_PATTERN, Schedule, is_never, zone
from reposync.wildmatch import check_pattern

T = TypeVar("T")

VARIABLE = r"\$\{"
"""In the JSON schema: the pattern, or the end of the pattern, by which a `${VARIABLE}` is accepted."""

SMALLEST_CHUNK = 100  # characters
MAX_PREFIX_CHARS = 1_000
MAX_PATTERNS, MAX_PATTERNS_CHARS, MAX_PATTERN_CHARS = 1_000, 50_000, 1_000
"""The limits of one `include` or `exclude`; each pattern is matched with every path of a commit. The slowest patterns
within these limits take 0.5 s for a path of 4 kB, in steps of 50 ms; 200 ordinary ones take 0.06 ms."""

# And halves of surrogate pairs, which JSON can hold and no database can.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
CONTROL_WORDS = "must not contain a line break or another control character"
_NAME = r"[A-Za-z0-9._/][A-Za-z0-9._/-]{0,199}"
_EMPTY_OR_DOTS = r"(?:.*/)?\.{0,2}(?:/.*)?"  # as a part of a path
_COLLECTION = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}"
_GROUP = r"[A-Za-z0-9_.][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.][A-Za-z0-9_.-]*)*"
_PROJECT = _GROUP.removesuffix("*") + "+"
# The rules of git-check-ref-format(1), as far as a server would not report the name as missing.
_BRANCH = r"(?!refs/)(?![-/])(?!.*(?:\.\.|@\{|//))[^\x00-\x20\x7f~^:?*\[\\]*[^\x00-\x20\x7f~^:?*\[\\/.]"
_DURATION = re.compile(r"(?P<count>[0-9]+(?:\.[0-9]+)?)(?P<unit>[smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_DURATION_SECONDS = 366 * 86_400


@dataclass(frozen=True, slots=True)
class RegistryFile:
    """The context of a validation: values are from a file in `folder`."""

    folder: Path


@dataclass(frozen=True, slots=True)
class AppliedDocument:
    """The context of a validation: values are from the database, and `environ` resolves references to secrets."""

    environ: Mapping[str, str]


class ConfigModel(BaseModel):
    """A mapping in a YAML file: frozen, without unknown keys; no error repeats a value, which may be a secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)


def key(default: Any, description: str, **more: Any) -> Any:
    """A key of a mapping. The JSON schema and docs/reference.md show the description."""
    return Field(default, description=description, **more)


class InvalidValue(ValueError):
    """A value that is not accepted. The message follows the name of the key, unless it `is_sentence`."""

    def __init__(self, message: str, *, is_sentence: bool = False) -> None:
        super().__init__(message)
        self.is_sentence = is_sentence


# Addresses. No part of an address is in a message: it may hold credentials.


def split_http_url(value: str) -> SplitResult:
    """`urlsplit` of an http(s) URL with a host. Raises InvalidValue."""
    if re.search(r"\s", value):
        raise InvalidValue("must not contain spaces")
    try:
        split = urlsplit(value)
        port_is_wrong = split.port == 0
    except ValueError:
        raise InvalidValue("is not an address: its host or port cannot be read") from None
    if split.scheme not in ("http", "https"):
        raise InvalidValue("must start with https:// (or http://)")
    if not split.hostname or port_is_wrong:
        raise InvalidValue("is not an address: it has no host, or port 0")
    return split


def base_url(value: str) -> str:
    """An http(s) address without credentials, query, fragment and trailing slash. Raises InvalidValue."""
    if "@" in split_http_url(value).netloc:
        raise InvalidValue("must not hold credentials: write them under their own key")
    if re.search(r"[?#]", value):
        raise InvalidValue("must not have a query or fragment")
    return value.rstrip("/")


def base_urls(value: str) -> str:
    """One or more `base_url`, separated by commas: the nodes of a cluster. Raises InvalidValue."""
    return ",".join(base_url(each.strip()) for each in value.split(","))


def _gitlab_url(value: str) -> str:
    if re.search(r"/api(?:/v[0-9]+)?$", value):
        raise InvalidValue("must be the address of GitLab itself, without /api/v4")
    return value


def git_url(value: str) -> str:
    """The address of a git repository over http(s), without credentials. Raises InvalidValue."""
    if not re.match(r"https?://", value):
        raise InvalidValue("must start with https:// (or http://): ssh is not supported, and a folder is a `path`")
    if "@" in split_http_url(value).netloc:
        raise InvalidValue(
            "holds credentials in the clear, or beside `username` or `password`: write "
            "https://user:${GIT_PASSWORD}@..., and set GIT_PASSWORD in the environment"
        )
    if re.search(r"[?#]", value) or not urlsplit(value).path.strip("/"):
        raise InvalidValue("must name a repository on its server, without query or fragment")
    return value


# Texts


def _text(value: str) -> str:
    if CONTROL.search(value):
        raise InvalidValue(CONTROL_WORDS)
    return str(value)  # not `Interpolated`


def _prefix(value: str) -> str:
    """Several models need a line break at its end."""
    _text(value.replace("\n", ""))
    return str(value)


def _not_empty(value: str) -> str:
    if not value.strip():
        raise InvalidValue("must not be empty")
    return value


def _glob(value: str) -> str:
    try:
        check_pattern(value)
    except ValueError as error:
        raise InvalidValue(f"matches nothing: {error}") from None
    parts = value.removeprefix("!").rstrip().removeprefix("/").removesuffix("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise InvalidValue("matches nothing: paths start at the repository's top and have no empty, . or .. part")
    return value


def _globs(value: tuple[str, ...]) -> tuple[str, ...]:
    chars = sum(map(len, value))
    if len(value) > MAX_PATTERNS or chars > MAX_PATTERNS_CHARS:
        raise InvalidValue(
            f"must be at most {MAX_PATTERNS:,} patterns with {MAX_PATTERNS_CHARS:,} characters in all: it is "
            f"{len(value):,} with {chars:,}"
        )
    return value


def _local_path(value: Any, info: ValidationInfo) -> Path:
    """Absolute; a relative path starts at the folder of the registry file, or at the current folder."""
    if not isinstance(value, str | Path) or not str(value):
        raise InvalidValue("must be a path; write . for the folder of this file")
    text = _text(str(value))
    if "://" in text:
        raise InvalidValue("is an address: write it under `git`")
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise InvalidValue("names a home folder that is not known") from None
    base = info.context.folder if isinstance(info.context, RegistryFile) else Path.cwd()
    # Not resolve(): a symlink keeps the name that its owner gave it.
    return Path(os.path.normpath(base / path))


def _schedule(value: str) -> str:
    Schedule.parse(value)
    return value


def _schedule_or_never(value: Any) -> Any:
    # The defaults apply only if the key is left out.
    if isinstance(value, bool):
        raise InvalidValue(f"must be a schedule; write `{NEVER}` for a repository that is synced on request only")
    return NEVER if value is None or (isinstance(value, str) and is_never(value)) else value


def _ticking(value: str | None) -> str | None:
    return value if value is None or value == NEVER else _schedule(_text(value))


def _timezone(value: str) -> str:
    zone(value)
    return value


# Numbers and flags


def _typed(value: Any) -> Any:
    """The text of a variable as the number or flag that it spells."""
    if not isinstance(value, Interpolated):
        return value
    try:
        return json.loads(value.lower())
    except ValueError:
        return str(value)


def _duration(value: Any) -> Any:
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match["count"]) * _UNIT_SECONDS[match["unit"]]
    value = _typed(value)
    if isinstance(value, str):
        raise InvalidValue("must be a number of seconds, or a number with s, m, h or d, such as 24h")
    return value


class OrVariable(BeforeValidator):
    """In the JSON schema: a `${VARIABLE}` is accepted in place of a number, true, false or a fixed set of words."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"type": "string", "pattern": VARIABLE}]}


@dataclass(frozen=True, slots=True)
class Pattern:
    """In the JSON schema: a text matches `regex`, or has a variable. The loader does not use it."""

    regex: str

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"{self.regex}|{VARIABLE}"}


def matching(regex: str, words: str) -> tuple[AfterValidator, Pattern]:
    """The whole text matches `regex`; `words`: the message if it does not."""

    def check(value: str) -> str:
        text = _text(value)
        if not re.fullmatch(regex, text):
            raise InvalidValue(words)
        return text

    return AfterValidator(check), Pattern(f"^(?:{regex})$")


def texts(*keys: str) -> dict[str, Any]:
    """The JSON schema of a mapping that has each of these keys, with a text."""
    return {"required": list(keys), "properties": {key: {"type": "string"} for key in keys}}


_TEXT = AfterValidator(_text)
_OR_NULL = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]})

Listing = Annotated[tuple[T, ...], BeforeValidator(lambda value: () if value is None else value)]
"""A list; null is an empty one: all of its entries may be commented out."""
OrDefaults = Annotated[T, BeforeValidator(lambda value: {} if value is None else value)]
"""A mapping all of whose keys have defaults; null is an empty one."""
Words = Annotated[T, OrVariable(lambda value: str(value) if isinstance(value, str) else value)]
"""One of a fixed set of words."""

AnyText = Annotated[str, _TEXT]
Text = Annotated[str, _TEXT, AfterValidator(_not_empty)]
Prefix = Annotated[str, Field(max_length=MAX_PREFIX_CHARS), AfterValidator(_prefix)]
"""May be empty, begin or end with a blank, and contain line breaks."""
_NAME_WORDS = (
    "must be 1 to 200 letters (a-z), digits and . _ - /, must not start with -, and must have no empty, . or .. part "
    "between its slashes"
)
_COLLECTION_WORDS = "must be 1 to 255 letters (a-z), digits and . _ -, and must not start with . or -"
_PROJECT_WORDS = (
    "must be the path of a project with its group (group/project, group/subgroup/project), not its address, and must "
    "not end in .git or .atom"
)
Name = Annotated[str, *matching(rf"(?!{_EMPTY_OR_DOTS}$){_NAME}", _NAME_WORDS)]
Collection = Annotated[str, *matching(_COLLECTION, _COLLECTION_WORDS)]
Project = Annotated[str, *matching(rf"(?!.*\.(?:git|atom)$){_PROJECT}", _PROJECT_WORDS)]
Group = Annotated[str, *matching(_GROUP, "must be the path of a group: group, or group/subgroup")]
_READER = rf"everybody|(?:project:)?(?:{_GROUP})"
Reader = Annotated[
    str, *matching(_READER, "must be the path of a group, everybody, or project: with the path of a project")
]
Branch = Annotated[
    str,
    *matching(_BRANCH, "is not a branch name in git; write it without refs/heads/"),
]
Glob = Annotated[str, Field(max_length=MAX_PATTERN_CHARS), _TEXT, AfterValidator(_glob)]
Sha256 = Annotated[str, *matching(r"[0-9a-fA-F]{64}", "must be 64 hex digits"), AfterValidator(str.lower)]
Globs = Annotated[tuple[Glob, ...], AfterValidator(_globs)]
ListedGlobs = Annotated[Globs, BeforeValidator(lambda value: () if value is None else value)]
_HTTP = Pattern("^[hH][tT][tT][pP][sS]?://")
BaseUrl = Annotated[str, _TEXT, AfterValidator(base_url), _HTTP]
BaseUrls = Annotated[str, _TEXT, AfterValidator(base_urls), _HTTP]
GitLabUrl = Annotated[BaseUrl, AfterValidator(_gitlab_url)]
GitUrl = Annotated[str, _TEXT, AfterValidator(git_url), _HTTP]
LocalPath = Annotated[Path, BeforeValidator(_local_path), PlainSerializer(str, when_used="json")]
ScheduleText = Annotated[str, _TEXT, AfterValidator(_schedule), Pattern(SCHEDULE_PATTERN)]
_OR_NEVER = (BeforeValidator(_schedule_or_never), AfterValidator(_ticking), _OR_NULL, Pattern(SCHEDULE_PATTERN))
ScheduleOrNever = Annotated[str, *_OR_NEVER]
"""A schedule, or `never` in any spelling; null is `never`."""
MaybeScheduleOrNever = Annotated[str | None, *_OR_NEVER]
"""The same, or None if the key is left out: for a field whose default is not validated."""
Timezone = Annotated[str, _TEXT, AfterValidator(_timezone)]

TYPED = OrVariable(_typed)
ChunkSize = Annotated[int, Field(strict=True, ge=SMALLEST_CHUNK, le=50_000), TYPED]
ChunkOverlap = Annotated[int, Field(strict=True, ge=0, lt=50_000), TYPED]
FileBytes = Annotated[int, Field(strict=True, ge=1, le=100_000_000), TYPED]
Count = Annotated[int, Field(strict=True, ge=1, le=10_000), TYPED]
Attempts = Annotated[int, Field(strict=True, ge=1, le=100), TYPED]
Seconds = Annotated[float, Field(strict=True, gt=0, le=3600), TYPED]
DaySeconds = Annotated[float, Field(strict=True, gt=0, le=86_400), TYPED]
PauseSeconds = Annotated[float, Field(strict=True, ge=0, le=3600), TYPED]
Dimensions = Annotated[int, Field(strict=True, ge=1, le=65_536), TYPED]
WindowChars = Annotated[int, Field(strict=True, ge=100, le=1_000_000), TYPED]
Duration = Annotated[
    float,
    Field(strict=True, ge=0, le=_LONGEST_DURATION_SECONDS),
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
"""Seconds; the file may also hold `90m`, `24h` or `7d`."""
Flag = Annotated[bool, Field(strict=True), TYPED]

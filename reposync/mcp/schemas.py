"""Arguments of the tools, and the JSON schemas of arguments and results. Every agent reads them with every session, so
that they are as short as they can be."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from reposync.errors import UsageError
from reposync.words import escape_unprintable

# Limits that other modules define are not imported: a client waits for this one when it starts the server.


# Results --------------------------------------------------------------------------------------------------------------

TEXT: Final[dict[str, Any]] = {"type": "string"}
NUMBER: Final[dict[str, Any]] = {"type": "integer"}
FLAG: Final[dict[str, Any]] = {"type": "boolean"}


def _items(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


def _record(required: dict[str, Any], **optional: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


_FILE: Final = {"repository": TEXT, "path": TEXT}
_LINES: Final = {"start_line": NUMBER, "end_line": NUMBER}
_EXCERPT: Final = _record({**_LINES, "text": TEXT}, inside=TEXT)
_MATCH: Final = _record({"line": NUMBER, "text": TEXT})
_TIMES: Final = {"last_commit": TEXT, "last_sync_at": TEXT}
_INDEXED: Final = _record({"repository": TEXT, "commit": TEXT}, age=TEXT, note=TEXT, link=TEXT)
FOUND: Final = _record(
    {
        "files": _items(_record({**_FILE, "excerpts": _items(_EXCERPT)}, outdated=FLAG)),
        "further": _items(_record({"repository": TEXT, "places": _items(TEXT)})),
        "indexed": _items(_INDEXED),
    }
)
MATCHES: Final = _record(
    {"files": _items(_record({**_FILE, "commit": TEXT, "matches": _items(_MATCH)}, url=TEXT, outdated=FLAG))},
    stopped=TEXT,
)
READ: Final = _record({**_FILE, "commit": TEXT, **_LINES, "total_lines": NUMBER, "text": TEXT}, url=TEXT, outdated=FLAG)
_REPOSITORY: Final = _record({"name": TEXT, "state": TEXT}, **_TIMES, age=TEXT, next_sync_at=TEXT, problem=TEXT)
REPOSITORIES: Final = _record({"repositories": _items(_REPOSITORY), "more": NUMBER})
WAITED: Final = _record({"searchable": FLAG}, relation=TEXT, **_TIMES, reason=TEXT)

# Arguments ------------------------------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must not contain a line break or another control character")
    return text


Line = Annotated[str, AfterValidator(_plain)]
Name = Annotated[Line, Field(min_length=1, max_length=1_000)]
Repositories = Annotated[list[Name], Field([], max_length=50, description="Only these, by exact name; default: all.")]
PathPattern = Annotated[
    Line, Field("", max_length=1_000, description="Only files matching this gitignore pattern: src/**/*.py")
]


class Arguments(BaseModel):
    """Of one tool, which the docstring describes. An unknown key is an error. `result`: the schema of its structure."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    result: ClassVar[dict[str, Any]]


class SearchCode(Arguments):
    """Finds code in all indexed repositories by what it does or by identifiers. Answers with excerpts, grouped by file
    and best first, within max_tokens. `further` only names files."""

    result = FOUND

    query: str = Field(
        "", max_length=2_000, description="What the code does, in words, or identifiers; also symbol:NAME."
    )
    repositories: Repositories
    path: PathPattern
    language: Line = Field("", max_length=50)
    like: Line = Field("", max_length=1_000, description="REPOSITORY:PATH:LINE, instead of a query: similar code.")
    limit: int = Field(8, ge=1, le=20, description="Files with excerpts.")
    max_tokens: int = Field(2_000, ge=200, le=20_000)


class GrepCode(Arguments):
    """Exact and regular-expression search over all indexed files. `stopped` says why there may be more."""

    result = MATCHES

    pattern: str = Field(min_length=1, max_length=1_000, description="RE2, within lines; text if fixed.")
    repositories: Repositories
    path: PathPattern
    fixed: bool = False
    ignore_case: bool = False
    limit: int = Field(50, ge=1, le=200, description="Lines.")


class ReadCode(Arguments):
    """The indexed text of a file, or lines of it."""

    result = READ

    repository: Name
    path: Annotated[Line, Field(min_length=1, max_length=4_096)]
    start: int | None = Field(None, ge=1, description="First line.")
    end: int | None = Field(None, ge=1)


class ListRepositories(Arguments):
    """The indexed repositories: commit and age of each index, next sync, problems."""

    result = REPOSITORIES

    name: Line = Field("", max_length=1_000, description="A part of the name.")


class WaitForCommit(Arguments):
    """Waits until the index holds a pushed commit or a descendant of it. It starts no sync."""

    result = WAITED

    repository: Name
    sha: str = Field(pattern="^[0-9a-fA-F]{7,64}$", description="Or its first 7 digits or more.")
    timeout: float = Field(30.0, ge=0, le=300.0, allow_inf_nan=False, description="Seconds.")


A = TypeVar("A", bound=Arguments)


def read_arguments(kind: type[A], given: dict[str, Any]) -> A:
    """Null is as if the key were not there: some clients send it for every optional argument. Raises UsageError with
    the first problem of each key."""
    try:
        return kind.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        problems = {".".join(map(str, each["loc"])): each["msg"] for each in reversed(error.errors())}
        told = "; ".join(f"`{escape_unprintable(key[:100])}`: {problem}" for key, problem in reversed(problems.items()))
        raise UsageError(f"Invalid arguments: {told}.") from None


def schema_of(kind: type[Arguments]) -> dict[str, Any]:
    """Without titles, which repeat the names, and without what the description of the tool says."""
    schema = kind.model_json_schema()
    properties = {key: _terse(value) for key, value in schema["properties"].items()}
    required = {"required": schema["required"]} if "required" in schema else {}
    return {"type": "object", "properties": properties, **required}


_LEFT_OUT: Final = frozenset({"title", "maxLength", "minLength", "maxItems", "minimum", "pattern"})
"""Of a schema; the server checks them in any case, and its error says what is wrong."""


def _terse(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:  # an optional one: null is as if it were left out
        schema = {**schema["anyOf"][0], **{key: schema[key] for key in ("description",) if key in schema}}
    kept = {key: value for key, value in schema.items() if key not in _LEFT_OUT and value not in ("", [], False)}
    return {key: _terse(value) if isinstance(value, dict) else value for key, value in kept.items()}

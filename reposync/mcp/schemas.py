"""Arguments of the tools, and the JSON schemas of arguments and results. Every agent reads them with every session, so
that they are as short as they can be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field, WithJsonSchema

from reposync.operations.core import Arguments
from reposync.operations.fields import MAX_NAME_CHARS, MAX_PATH_CHARS, PlainText
from reposync.operations.search import MAX_LINE, Grep, Lines, Phrasings, Search
from reposync.operations.syncs import WaitFor

# Results --------------------------------------------------------------------------------------------------------------

TEXT: Final[dict[str, Any]] = {"type": "string"}
NUMBER: Final[dict[str, Any]] = {"type": "integer"}
FLAG: Final[dict[str, Any]] = {"type": "boolean"}
RECORD: Final[dict[str, Any]] = {"type": "object"}
"""A record whose keys say what they are, when an agent reads the answer."""


def _items(of: dict[str, Any]) -> dict[str, Any]:
    # That keys are required in items, too, would be a tenth of all that agents read.
    return {"type": "array", "items": {key: value for key, value in of.items() if key != "required"}}


def _record(required: dict[str, Any], **optional: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


_FILE: Final = {"repository": TEXT, "path": TEXT}
_LINES: Final = {"start_line": NUMBER, "end_line": NUMBER}
_EXCERPT: Final = _record({**_LINES, "text": TEXT}, inside=TEXT)
_MATCH: Final = _record({"line": NUMBER, "text": TEXT}, mark=TEXT)
_TIMES: Final = {"last_commit": TEXT, "last_sync_at": TEXT}
FOUND: Final = _record(
    {
        "files": _items(_record({**_FILE, "excerpts": _items(_EXCERPT)}, outdated=FLAG, masked=NUMBER)),
        "further": _items(_record({"repository": TEXT, "places": _items(TEXT)})),
        "indexed": _items(RECORD),
    },
    missing=RECORD,
    used=TEXT,
)
MATCHES: Final = _record(
    {
        "files": _items(
            _record({**_FILE, "commit": TEXT, "matches": _items(_MATCH)}, url=TEXT, outdated=FLAG, masked=NUMBER)
        )
    },
    stopped=TEXT,
    missing=RECORD,
)
READ: Final = _record(
    {**_FILE, "commit": TEXT, **_LINES, "total_lines": NUMBER, "text": TEXT}, url=TEXT, outdated=FLAG, masked=NUMBER
)
REPOSITORIES: Final = _record({"repositories": _items(RECORD), "more": FLAG})
REQUESTED: Final = _record({"run": TEXT, "status": TEXT})
WAITED: Final = _record({"searchable": FLAG}, relation=TEXT, **_TIMES, reason=TEXT)

# Arguments ------------------------------------------------------------------------------------------------------------

Name = Annotated[PlainText, Field(min_length=1, max_length=MAX_NAME_CHARS)]


class SearchCode(Search):
    """Finds code in all indexed repositories by what it does or by identifiers. Excerpts by file, best first, within
    max_tokens; `further` only names files."""

    q: Annotated[Phrasings, WithJsonSchema({"type": "string"})] = Field(default_factory=list)
    queries: list[str] = Field(default_factory=list)
    limit: int = Field(8, ge=1, le=20)
    max_tokens: int = Field(2_000, ge=200, le=20_000)


class GrepCode(Grep):
    """Exact and regular-expression search over all indexed files. `stopped`: why there may be more."""

    limit: int = Field(50, ge=1, le=200)


class ReadCode(Lines):
    """The indexed text of a file, or lines of it."""

    repository: Name
    path: Annotated[PlainText, Field(min_length=1, max_length=MAX_PATH_CHARS)]


class ListRepositories(Arguments):
    """The indexed repositories: commit and age of each index, next sync, problems."""

    name: PlainText = Field("", max_length=MAX_NAME_CHARS)


class WaitForCommit(WaitFor):
    """Waits until the index holds a pushed commit or a descendant; starts no sync."""

    repository: Name


class RequestSync(Arguments):
    """Starts a sync; wait_for_commit waits for it. Schedules and pushes start most."""

    repository: Name
    full: bool = False


def schema_of(kind: type[Arguments], words: Mapping[str, str]) -> dict[str, Any]:
    """`words`: what needs saying about an argument. Without titles, which repeat the names, and without what the
    description of the tool says."""
    schema = kind.model_json_schema()
    properties = {
        key: _terse(value) | ({"description": words[key]} if key in words else {})
        for key, value in schema["properties"].items()
    }
    required = {"required": schema["required"]} if "required" in schema else {}
    return {"type": "object", "properties": properties, **required}


_LEFT_OUT: Final = frozenset(
    {"title", "description", "examples", "maxLength", "minLength", "maxItems", "minimum", "pattern"}
)
"""The keys of a schema that agents do not get. The server checks them in any case, and its error says what is wrong."""


def _terse(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:  # an optional one: null is as if it were left out
        schema = {**schema["anyOf"][0], "default": schema["default"]}
    kept = {
        key: value
        for key, value in schema.items()
        if key not in _LEFT_OUT and value not in (None, "", [], False, MAX_LINE)
    }
    return {key: _terse(value) if isinstance(value, dict) else value for key, value in kept.items()}

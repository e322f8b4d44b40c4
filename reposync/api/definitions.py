"""What a repository is registered with, as the API describes it: made from the registry file's own model."""

from __future__ import annotations

import copy
from typing import Any

from reposync.api.models import Pause
from reposync.config.fields import VARIABLE
from reposync.config.registry import Repository

NOT_OVER_HTTP = frozenset({"username", "password"})
"""Secrets are not kept in the database."""
IDENTITY = frozenset({"name", "gitlab", "project", "git", "path"})
"""A repository of another name or from elsewhere is another repository."""
CHANGEABLE = frozenset(Repository.model_fields) - NOT_OVER_HTTP - IDENTITY

_NEW_EXAMPLES = {
    "a project of a GitLab server": {
        "value": {
            "name": "platform/payments-api",
            "gitlab": "main",
            "project": "platform/payments-api",
            "schedule": "every 30 minutes",
        }
    },
    "a git repository that anybody may read": {
        "value": {"name": "handbook", "git": "https://git.example.com/handbook.git", "include": ["*.md"]}
    },
}
_CHANGE_EXAMPLES = {
    "pause": {"value": {"is_active": False, "paused_reason": "migration until Friday"}},
    "resume": {"value": {"is_active": True}},
    "another schedule, and the default branch again": {"value": {"schedule": "daily at 03:00", "branch": None}},
}


def new_repository_body() -> dict[str, Any]:
    """`openapi_extra` of the route that registers."""
    properties = _properties(frozenset(Repository.model_fields) - NOT_OVER_HTTP)
    return _body({"type": "object", "required": ["name"], "properties": properties}, _NEW_EXAMPLES)


def change_body() -> dict[str, Any]:
    """`openapi_extra` of the route that changes."""
    properties = {**copy.deepcopy(Pause.model_json_schema()["properties"]), **_properties(CHANGEABLE)}
    return _body({"type": "object", "properties": properties}, _CHANGE_EXAMPLES)


def _body(schema: dict[str, Any], examples: dict[str, Any]) -> dict[str, Any]:
    content = {"schema": {**schema, "additionalProperties": False}, "examples": examples}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def _properties(keys: frozenset[str]) -> dict[str, Any]:
    schema = Repository.model_json_schema()
    inlined = _inlined(schema["properties"], schema.get("$defs", {}))
    return {key: value for key, value in inlined.items() if key in keys}


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """Without references to definitions that the API's description has not, and without the alternative that a
    variable stands there: over HTTP nothing is taken from the environment."""
    if isinstance(node, list):
        return [_inlined(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    found = {
        key: _inlined(value, definitions) for key, value in node.items() if key != "title" or isinstance(value, dict)
    }
    if isinstance(found.get("pattern"), str):
        found["pattern"] = found["pattern"].removesuffix(f"|{VARIABLE}")
    return found

"""The JSON schema of the registry file, for editors."""

from __future__ import annotations

import json
from typing import Any

from reposync.config import fields
from reposync.config.document import EXTENSION
from reposync.config.registry import Registry

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def registry_schema() -> str:
    """The JSON schema of the registry file, for editors; ends in a line break. The loader refuses more: it reads
    schedules and addresses, and compares keys with each other."""
    schema = {"$schema": _DIALECT, **Registry.model_json_schema(), "title": "reposync registry"}
    _without_noise(schema)
    schema["$id"] = "urn:reposync:registry"
    # A schema cannot compare the names of servers: it sees that there is none.
    schema["allOf"] = [
        {
            "if": {
                "required": [section],
                "properties": {section: {"type": "array", "contains": fields.texts("gitlab")}},
            },
            "then": {"required": ["gitlab"], "properties": {"gitlab": {"minItems": 1, "type": "array"}}},
        }
        for section in ("repositories", "groups")
    ]
    # An empty file is a registry too.
    schema["type"] = ["object", "null"]
    schema["patternProperties"] = {f"^{EXTENSION}": {}}
    return json.dumps(schema, indent=2) + "\n"


def _without_noise(schema: Any) -> None:
    """Remove titles that repeat the key. Lists and mappings may be null."""
    if isinstance(schema, list):
        for item in schema:
            _without_noise(item)
    if not isinstance(schema, dict):
        return
    for name, value in list(schema.get("properties", {}).items()):
        if isinstance(value, dict):
            value.pop("title", None)
            if value.get("type") == "array" or "$ref" in value:
                notes = {note: value.pop(note) for note in ("default", "description") if note in value}
                schema["properties"][name] = {"anyOf": [value, {"type": "null"}], **notes}
    for value in schema.values():
        _without_noise(value)

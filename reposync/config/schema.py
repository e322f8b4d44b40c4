"""The JSON schema of the registry file, for editors and other tools; made from the models."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from reposync.config.document import EXTENSION
from reposync.config.fields import VARIABLE
from reposync.config.registry import Registry

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def registry_schema() -> str:
    """JSON text, ending in a line break. The loader refuses more: it checks texts and what depends on several keys."""
    schema = Registry.model_json_schema(schema_generator=_Generator)
    schema = {"$schema": _DIALECT, **schema, "title": "reposync registry"}
    _without_noise(schema)
    # An empty file is a registry too.
    schema["type"] = ["object", "null"]
    schema["patternProperties"] = {f"^{EXTENSION}": {}}
    return json.dumps(schema, indent=2) + "\n"


class _Generator(GenerateJsonSchema):
    """A `${VARIABLE}` is accepted in place of a number, true, false or a fixed set of words."""

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return _or_variable(super().int_schema(schema))

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return _or_variable(super().float_schema(schema))

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        return _or_variable(super().bool_schema(schema))

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        return _or_variable(super().literal_schema(schema))


def _or_variable(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {"anyOf": [schema, {"type": "string", "pattern": VARIABLE}]}


def _without_noise(schema: Any) -> None:
    """Remove titles that repeat the key. Lists and mappings may be null."""
    if isinstance(schema, list):
        for item in schema:
            _without_noise(item)
    if not isinstance(schema, dict):
        return
    for key, value in list(schema.get("properties", {}).items()):
        if isinstance(value, dict):
            value.pop("title", None)
            if value.get("type") == "array" or "$ref" in value:
                notes = {name: value.pop(name) for name in ("default", "description") if name in value}
                schema["properties"][key] = {"anyOf": [value, {"type": "null"}], **notes}
    for value in schema.values():
        _without_noise(value)

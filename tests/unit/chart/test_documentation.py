"""The chart's own pages say what is in it."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import jsonschema
import pytest
import yaml

from tests.fixtures.chart import CHART, ROOT

pytestmark = pytest.mark.full

spec = importlib.util.spec_from_file_location("generate", ROOT / "helm" / "generate.py")
assert spec is not None and spec.loader is not None
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> list[str]:
    found = []
    for key, value in values.items():
        here = (*path, key)
        found += leaves(value, here) if isinstance(value, dict) and value else [".".join(here)]
    return found


@pytest.mark.parametrize(
    ("path", "made"), [(generate.README, generate.readme), (generate.SCHEMA, generate.values_schema)]
)
def test_what_is_made_from_something_else_is_up_to_date(path, made):
    assert path.read_text() == made(), "run `python helm/generate.py`"
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(VALUES)) == []


def test_the_schema_knows_every_value_and_no_other():
    def known(schema: dict[str, Any], path: tuple[str, ...] = ()) -> set[str]:
        if not schema.get("properties"):
            return {".".join(path)}
        assert schema["additionalProperties"] is False, f"{'.'.join(path)} takes any key"
        return {name for key, each in schema["properties"].items() for name in known(each, (*path, key))}

    schema = known({**SCHEMA, "properties": {k: v for k, v in SCHEMA["properties"].items() if k != "global"}})
    values = set(leaves(VALUES))
    for name in schema - values:
        # Keys of values that are empty, or are taken over as Kubernetes has them.
        assert any(value.startswith(f"{name}.") for value in values) or name.startswith(
            ("probes.", "resources", "migration.resources")
        ), name
    for value in values - schema:
        assert any(value.startswith(f"{name}.") for name in schema), value

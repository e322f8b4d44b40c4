"""The chart's own pages say what is in it."""

from __future__ import annotations

import importlib.util
import json

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


@pytest.mark.parametrize(
    ("path", "made"), [(generate.README, generate.readme), (generate.SCHEMA, generate.values_schema)]
)
def test_what_is_made_from_something_else_is_up_to_date(path, made):
    assert path.read_text() == made(), "run `python helm/generate.py`"
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(VALUES)) == []

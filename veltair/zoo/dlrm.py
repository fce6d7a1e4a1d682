"""DLRM (Naumov et al. 2019) near RM1 of DeepRecSys: bags of many lookups in tables too large for any cache.

Tables are external data, which can be mapped and used in place.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from veltair.errors import ConfigError
from veltair.zoo.external import Built, External, references
from veltair.zoo.graph import model

DENSE, BOTTOM, TOP = 13, (128, 64), (256, 64)


@dataclass(frozen=True, slots=True)
class DlrmShape:
    """RM1's dimensions with a quarter of its rows: 8 tables of 128 MiB."""

    tables: int = 8
    rows: int = 1 << 20
    dim: int = 32
    lookups: int = 80  # rows summed per bag
    max_batch: int = 128

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ConfigError(f"dlrm: {name} must be at least 1, got {getattr(self, name)}")

    @property
    def table_bytes(self) -> int:
        return 4 * self.rows * self.dim

    @property
    def parameters(self) -> int:
        """Of the tables and both MLPs, with biases."""
        pairs = (self.tables + 1) * self.tables // 2
        widths = ((DENSE, *BOTTOM, self.dim), (self.dim + pairs, *TOP, 1))
        mlps = sum((i + 1) * o for mlp in widths for i, o in itertools.pairwise(mlp))
        return self.tables * self.rows * self.dim + mlps


def build(seed: int, shape: DlrmShape, location: str) -> Built:
    """dense float32 (n, 13), sparse_0 … int64 (n, lookups) in 0 … rows-1 -> probability float32 (n, 1).

    location: name of the file that is to hold the tables, the second result, drawn from the same seed.
    """
    # One child more than there are tables: the MLPs' own. Each table can thus be drawn alone, in chunks.
    rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(shape.tables + 1)[-1])
    # Uniform in ±bound so that a bag's variance is 1/sqrt(dim) and the dot product of two bags has variance one.
    bound = math.sqrt(3 / (shape.lookups * math.sqrt(shape.dim)))
    tables = [External(f"table_{i}", (shape.rows, shape.dim), bound=bound) for i in range(shape.tables)]
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def node(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=f"/{output}", **attributes))
        return output

    def constant(name: str, value: npt.NDArray[np.generic]) -> str:
        weights.append(numpy_helper.from_array(value, name))
        return name

    def linear(x: str, name: str, inputs: int, outputs: int) -> str:
        weight = rng.standard_normal((outputs, inputs), dtype=np.float32) * np.float32(math.sqrt(2 / inputs))
        bias = rng.standard_normal(outputs, dtype=np.float32) * np.float32(0.1)
        return node("Gemm", [x, constant(f"{name}.weight", weight), constant(f"{name}.bias", bias)], name, transB=1)

    x, width = "dense", DENSE
    for i, out in enumerate((*BOTTOM, shape.dim)):
        x, width = node("Relu", [linear(x, f"bottom.{i}", width, out)], f"bottom.{i}.relu"), out
    axis = constant("axis", np.array([1], np.int64))
    vectors = [node("Unsqueeze", [x, axis], "bottom.vector")]
    for i in range(shape.tables):
        rows = node("Gather", [tables[i].name, f"sparse_{i}"], f"bag_{i}.rows", axis=0)
        bag = node("ReduceSum", [rows, axis], f"bag_{i}", keepdims=0)
        vectors.append(node("Unsqueeze", [bag, axis], f"bag_{i}.vector"))
    count = len(vectors)
    features = node("Concat", vectors, "features", axis=1)
    dots = node("MatMul", [features, node("Transpose", [features], "features.t", perm=[0, 2, 1])], "dots")
    lower = np.array([r * count + c for r in range(count) for c in range(r)], np.int64)
    flat = node("Flatten", [dots], "dots.flat", axis=1)
    pairs = node("Gather", [flat, constant("lower_triangle", lower)], "pairs", axis=1)
    x, width = node("Concat", [x, pairs], "interaction", axis=1), shape.dim + len(lower)
    for i, out in enumerate(TOP):
        x, width = node("Relu", [linear(x, f"top.{i}", width, out)], f"top.{i}.relu"), out
    node("Sigmoid", [linear(x, f"top.{len(TOP)}", width, 1)], "probability")

    inputs = [helper.make_tensor_value_info("dense", TensorProto.FLOAT, ["n", DENSE])] + [
        helper.make_tensor_value_info(f"sparse_{i}", TensorProto.INT64, ["n", shape.lookups])
        for i in range(shape.tables)
    ]
    outputs = [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["n", 1])]
    graph = helper.make_graph(nodes, "dlrm", inputs, outputs, [*references(tables, location), *weights])
    return model(graph, {"qos_ms": 100, "max_batch": shape.max_batch}), tables

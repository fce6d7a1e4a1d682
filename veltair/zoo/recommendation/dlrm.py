"""DLRM (Naumov et al. 2019) near RM1 of DeepRecSys: bags of many lookups in tables too large for any cache.

Tables are external data, which can be mapped and used in place.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from veltair.errors import ConfigError
from veltair.zoo.conv_graph import model
from veltair.zoo.external_tensors import BuiltModel, ExternalTensor, external_initializers
from veltair.zoo.recommendation.recommender import RecommenderGraph

DENSE, BOTTOM, TOP = 13, (128, 64), (256, 64)


@dataclass(frozen=True, slots=True)
class DlrmShape:
    """The sizes of a DLRM; by default RM1's with a quarter of its rows: 8 tables of 128 MiB.

    >>> DlrmShape(rows=1000).table_bytes
    128000
    """

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
        """Parameters of the tables and both MLPs, with biases."""
        pairs = (self.tables + 1) * self.tables // 2
        widths = ((DENSE, *BOTTOM, self.dim), (self.dim + pairs, *TOP, 1))
        mlps = sum((i + 1) * o for mlp in widths for i, o in itertools.pairwise(mlp))
        return self.tables * self.rows * self.dim + mlps


def build(seed: int, shape: DlrmShape, location: str) -> BuiltModel:
    """dense float32 (n, 13), sparse_0 … int64 (n, lookups) in 0 … rows-1 -> probability float32 (n, 1).

    location: name of the file that is to hold the tables, the second result, drawn from the same seed.
    """
    # One child more than there are tables: the MLPs' own. Each table can thus be drawn alone, in chunks.
    g = RecommenderGraph(np.random.default_rng(np.random.SeedSequence(seed).spawn(shape.tables + 1)[-1]))
    # Uniform in ±bound so that a bag's variance is 1/sqrt(dim) and the dot product of two bags has variance one.
    bound = math.sqrt(3 / (shape.lookups * math.sqrt(shape.dim)))
    tables = [ExternalTensor(f"table_{i}", (shape.rows, shape.dim), bound=bound) for i in range(shape.tables)]
    x = g.tower(g.floats("dense", DENSE), "bottom", (DENSE, *BOTTOM, shape.dim))
    axis = g.constant("axis", np.array([1], np.int64))
    vectors = [g.node("Unsqueeze", [x, axis], "bottom.vector")]
    for i in range(shape.tables):
        rows = g.rows(tables[i].name, g.ids(f"sparse_{i}", shape.lookups), f"bag_{i}.rows")
        bag = g.node("ReduceSum", [rows, axis], f"bag_{i}", keepdims=0)
        vectors.append(g.node("Unsqueeze", [bag, axis], f"bag_{i}.vector"))
    count = len(vectors)
    features = g.node("Concat", vectors, "features", axis=1)
    dots = g.node("MatMul", [features, g.node("Transpose", [features], "features.t", perm=[0, 2, 1])], "dots")
    lower = np.array([r * count + c for r in range(count) for c in range(r)], np.int64)
    flat = g.node("Flatten", [dots], "dots.flat", axis=1)
    pairs = g.node("Gather", [flat, g.constant("lower_triangle", lower)], "pairs", axis=1)
    x = g.node("Concat", [x, pairs], "interaction", axis=1)
    score = g.score(g.tower(x, "top", (shape.dim + len(lower), *TOP)), f"top.{len(TOP)}", TOP[-1])
    outputs = [helper.make_tensor_value_info(score, TensorProto.FLOAT, ["n", 1])]
    graph = helper.make_graph(
        g.nodes, "dlrm", g.inputs, outputs, [*external_initializers(tables, location), *g.initializers]
    )
    return model(graph, {"qos_ms": 100, "max_batch": shape.max_batch}), tables

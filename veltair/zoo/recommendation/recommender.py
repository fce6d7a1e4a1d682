"""Writes recommendation models in the form of exporters: lookups, and towers of dense layers.

Weights are scaled by their inputs, so that values stay near one in every layer and a score depends on all inputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from veltair.zoo.conv_graph import model
from veltair.zoo.external_tensors import ExternalTensor, external_initializers
from veltair.zoo.onnx_writer import OnnxWriter
from veltair.zoo.recommendation.description_text import DescriptionEntries, DescriptionEntry, format_toml
from veltair.zoo.recommendation.table_sizes import EmbeddingTable, fit_tables

SCORE = "probability"
# Mean and variance of a rectified tensor with a mean square of one, which He's initialisation preserves.
RECTIFIED = 1 / math.sqrt(math.pi), 1 - 1 / math.pi


@dataclass(slots=True)
class RecommenderGraph(OnnxWriter):
    """A recommendation graph: its nodes, its inputs and its tables.

    >>> graph = RecommenderGraph(np.random.default_rng(0))
    >>> graph.tower(graph.floats("dense", 13), "bottom", (13, 64, 32))
    'bottom.1.relu'
    """

    tables: Mapping[str, EmbeddingTable] = field(default_factory=dict)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def floats(self, name: str, width: int) -> str:
        """Adds an input float32 (n, width)."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]))
        return name

    def ids(self, name: str, lookups: int = 0) -> str:
        """Adds an input int64 (n, lookups), or (n,) without lookups."""
        shape = ["n", lookups] if lookups else ["n"]
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, shape))
        return name

    def rows(self, table: str, ids: str, output: str) -> str:
        return self.node("Gather", [table, ids], output, axis=0)

    def lookups(self, table: str, ids: str, count: int, output: str) -> str:
        """Looks up rows by a new input of ids and sums them: (n, dim)."""
        if count == 1:
            return self.rows(table, self.ids(ids), output)
        return self.total(self.rows(table, self.ids(ids, count), f"{output}.rows"), output)

    def total(self, x: str, output: str, keep: bool = False) -> str:
        """Sums x over its second dimension."""
        return self.node("ReduceSum", [x, self.axis(1)], output, keepdims=int(keep))

    def axis(self, number: int) -> str:
        name = f"axis_{number}"
        known = any(tensor.name == name for tensor in self.initializers)
        return name if known else self.constant(name, np.array([number], np.int64))

    def linear(self, x: str, name: str, inputs: int, outputs: int, rms: float = 1.0) -> str:
        """Appends a dense layer; its mean square is twice that of x, or two where x has `rms`."""
        weight = self.normal((outputs, inputs), math.sqrt(2 / inputs) / rms)
        bias = self.normal((outputs,), 0.1)
        names = [self.constant(f"{name}.weight", weight), self.constant(f"{name}.bias", bias)]
        return self.node("Gemm", [x, *names], name, transB=1)

    def tower(self, x: str, name: str, widths: Sequence[int], rms: float = 1.0, normalised: bool = False) -> str:
        """Appends rectified dense layers, each followed by a batch norm if `normalised`; `widths` begins with x's."""
        for i, (width, out) in enumerate(itertools.pairwise(widths)):
            x = self.node("Relu", [self.linear(x, f"{name}.{i}", width, out, rms)], f"{name}.{i}.relu")
            if normalised:
                x = self.norm(x, f"{name}.{i}.norm", *(np.full(out, value) for value in RECTIFIED))
            rms = 1.0
        return x

    def norm(self, x: str, name: str, mean: npt.NDArray[np.float64], variance: npt.NDArray[np.float64]) -> str:
        """Appends a batch norm with these running statistics of each column of x."""
        values = {"weight": self.rng.uniform(0.8, 1.2, mean.size), "bias": 0.1 * self.rng.standard_normal(mean.size)}
        values |= {"running_mean": mean, "running_var": variance}
        names = [self.constant(f"{name}.{key}", value.astype(np.float32)) for key, value in values.items()]
        return self.node("BatchNormalization", [x, *names], name, epsilon=1e-5)

    def score(self, x: str, name: str, width: int) -> str:
        return self.node("Sigmoid", [self.linear(x, name, width, 1)], SCORE)

    def normal(self, shape: tuple[int, ...], deviation: float) -> npt.NDArray[np.float32]:
        return self.rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)


@dataclass(frozen=True, slots=True)
class RecommenderSpec:
    """The definition of a recommendation model.

    A model with `describe` has feature columns, which hold its tables. Other models hold their tables themselves, and
    so do those with `own_tables`, whose columns give ids.

    ::

        RecommenderSpec("tiny", (EmbeddingTable("t", 100, 8),), build, qos_ms=10, max_batch=64)
    """

    name: str
    tables: Sequence[EmbeddingTable]  # as published
    build: Callable[[RecommenderGraph], tuple[str, int]]  # appends all nodes; returns name and width of the output
    qos_ms: int
    max_batch: int
    # Returns the feature description without its tables. It gets the tables as they were fitted to the machine, because
    # a hash has as many buckets as its table has rows.
    describe: Callable[[Mapping[str, EmbeddingTable]], DescriptionEntries] | None = None
    own_tables: bool = False


@dataclass(frozen=True, slots=True)
class BuiltRecommender:
    """A built model, the tensors that it does not hold, and the text of its feature description.

    ::

        build_recommender(DEEPFM, seed=0, location="deepfm.onnx.data").features
    """

    proto: onnx.ModelProto
    tensors: list[ExternalTensor]
    features: str
    tables: tuple[EmbeddingTable, ...]


def build_recommender(
    recommender: RecommenderSpec, seed: int, location: str, rows: int | None = None
) -> BuiltRecommender:
    """Builds a model.

    location: name of the file for its tensors; rows: the most rows of each table, None: those of `fit_tables`.
    """
    tables = fit_tables(recommender.tables, rows)
    # One child more than there are tables: the towers' own. Each table can thus be drawn alone, in chunks.
    children = np.random.SeedSequence(seed).spawn(len(tables) + 1)
    g = RecommenderGraph(np.random.default_rng(children[-1]), tables={table.name: table for table in tables})
    output, width = recommender.build(g)
    own = recommender.own_tables or recommender.describe is None
    held = [ExternalTensor(t.name, (t.rows, t.dim), bound=t.bound) for t in tables] if own else []
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", width])
    graph = helper.make_graph(
        g.nodes, recommender.name, g.inputs, [result], [*external_initializers(held, location), *g.initializers]
    )
    proto = model(graph, {"qos_ms": recommender.qos_ms, "max_batch": recommender.max_batch})
    text = ""
    if recommender.describe is not None:
        entries: list[DescriptionEntry] = [
            {"name": t.name, "rows": t.rows, "dim": t.dim, "seed": int(child.generate_state(1)[0])}
            for t, child in zip(() if own else tables, children, strict=False)
        ]
        text = format_toml({"tables": entries} | recommender.describe(g.tables))
    return BuiltRecommender(proto, held, text, tables)

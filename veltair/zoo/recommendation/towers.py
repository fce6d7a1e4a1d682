"""Writes recommendation models as exporters do: lookups, and towers of dense layers around what becomes of their rows.

Weights are scaled by what comes in, so that values stay near one in every layer and a score depends on all inputs.
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
from veltair.zoo.external_data import External, references
from veltair.zoo.graph_nodes import Nodes
from veltair.zoo.recommendation.feature_file import Description, Entry, toml
from veltair.zoo.recommendation.table_sizes import Embedding, fitted

SCORE = "probability"
# Mean and variance of a rectified tensor whose mean square is one, as He's initialisation keeps it.
RECTIFIED = 1 / math.sqrt(math.pi), 1 - 1 / math.pi


@dataclass(slots=True)
class Towers(Nodes):
    """Beside its nodes, the graph's inputs and what is known of its tables."""

    tables: Mapping[str, Embedding] = field(default_factory=dict)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def floats(self, name: str, width: int) -> str:
        """An input float32 (n, width)."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]))
        return name

    def ids(self, name: str, lookups: int = 0) -> str:
        """An input int64 (n, lookups); (n,) where there are none."""
        shape = ["n", lookups] if lookups else ["n"]
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, shape))
        return name

    def rows(self, table: str, ids: str, output: str) -> str:
        return self.node("Gather", [table, ids], output, axis=0)

    def lookups(self, table: str, ids: str, count: int, output: str) -> str:
        """Rows of an input of ids, summed where there are more than one: (n, dim)."""
        if count == 1:
            return self.rows(table, self.ids(ids), output)
        return self.total(self.rows(table, self.ids(ids, count), f"{output}.rows"), output)

    def total(self, x: str, output: str, keep: bool = False) -> str:
        """Summed over the second dimension."""
        return self.node("ReduceSum", [x, self.axis(1)], output, keepdims=int(keep))

    def axis(self, number: int) -> str:
        name = f"axis_{number}"
        known = any(tensor.name == name for tensor in self.initializers)
        return name if known else self.constant(name, np.array([number], np.int64))

    def linear(self, x: str, name: str, inputs: int, outputs: int, rms: float = 1.0) -> str:
        """Weight and bias; the mean square of the result is twice that of x, or two where x has `rms`."""
        weight = self.normal((outputs, inputs), math.sqrt(2 / inputs) / rms)
        bias = self.normal((outputs,), 0.1)
        names = [self.constant(f"{name}.weight", weight), self.constant(f"{name}.bias", bias)]
        return self.node("Gemm", [x, *names], name, transB=1)

    def tower(self, x: str, name: str, widths: Sequence[int], rms: float = 1.0, normalised: bool = False) -> str:
        """Rectified dense layers, perhaps with a batch norm behind each; `widths` begins with that of x."""
        for i, (width, out) in enumerate(itertools.pairwise(widths)):
            x = self.node("Relu", [self.linear(x, f"{name}.{i}", width, out, rms)], f"{name}.{i}.relu")
            if normalised:
                x = self.norm(x, f"{name}.{i}.norm", *(np.full(out, value) for value in RECTIFIED))
            rms = 1.0
        return x

    def norm(self, x: str, name: str, mean: npt.NDArray[np.float64], variance: npt.NDArray[np.float64]) -> str:
        """A batch norm whose running statistics are those given, of each column of x."""
        values = {
            "weight": self.rng.uniform(0.8, 1.2, mean.size), "bias": 0.1 * self.rng.standard_normal(mean.size),
            "running_mean": mean, "running_var": variance,
        }  # fmt: skip
        names = [self.constant(f"{name}.{key}", value.astype(np.float32)) for key, value in values.items()]
        return self.node("BatchNormalization", [x, *names], name, epsilon=1e-5)

    def score(self, x: str, name: str, width: int) -> str:
        return self.node("Sigmoid", [self.linear(x, name, width, 1)], SCORE)

    def normal(self, shape: tuple[int, ...], deviation: float) -> npt.NDArray[np.float32]:
        return self.rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)


@dataclass(frozen=True, slots=True)
class Recommender:
    """A model before it is built.

    tables: as published. build: appends all nodes, and gives the output's name and width. describe: of a model whose
    tables are behind feature columns, its description but for the tables, which it is given as they were taken: a hash
    has as many buckets as its table has rows. Other models hold their tables; so do those with `own_tables`, whose
    columns give ids.
    """

    name: str
    tables: Sequence[Embedding]
    build: Callable[[Towers], tuple[str, int]]
    qos_ms: int
    max_batch: int
    describe: Callable[[Mapping[str, Embedding]], Description] | None = None
    own_tables: bool = False


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A model that was built: the graph, the tensors that it does not hold, and the text of its feature description."""

    proto: onnx.ModelProto
    tensors: list[External]
    features: str
    tables: tuple[Embedding, ...]


def recommendation(recommender: Recommender, seed: int, location: str, rows: int | None = None) -> Recommendation:
    """Build it. location: of its tensors' file; rows: at most of each table, None: as many as `tables.fitted` takes."""
    tables = fitted(recommender.tables, rows)
    # One child more than there are tables: the towers' own. Each table can thus be drawn alone, in chunks.
    children = np.random.SeedSequence(seed).spawn(len(tables) + 1)
    g = Towers(np.random.default_rng(children[-1]), tables={table.name: table for table in tables})
    output, width = recommender.build(g)
    own = recommender.own_tables or recommender.describe is None
    held = [External(t.name, (t.rows, t.dim), bound=t.bound) for t in tables] if own else []
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", width])
    graph = helper.make_graph(
        g.nodes, recommender.name, g.inputs, [result], [*references(held, location), *g.initializers]
    )
    proto = model(graph, {"qos_ms": recommender.qos_ms, "max_batch": recommender.max_batch})
    text = ""
    if recommender.describe is not None:
        entries: list[Entry] = [
            {"name": t.name, "rows": t.rows, "dim": t.dim, "seed": int(child.generate_state(1)[0])}
            for t, child in zip(() if own else tables, children, strict=False)
        ]
        text = toml({"tables": entries} | recommender.describe(g.tables))
    return Recommendation(proto, held, text, tables)

"""A graph convolutional network (Kipf and Welling 2017) over a whole graph of the size of ogbn-arxiv.

    h = relu(A x W + b);  logits = A h V + c

A is the adjacency matrix with self-loops, normalised by the square roots of both degrees. Its edges are constants of
the model, drawn uniformly, and lie in it as PyTorch Geometric's exporter has them: rows are gathered by source, scaled
by edge, and added up by target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

from veltair.zoo.conv_graph import model
from veltair.zoo.external_tensors import BuiltModel
from veltair.zoo.onnx_writer import OnnxWriter

QOS_MS = 2000


@dataclass(frozen=True, slots=True)
class GcnShape:
    """The sizes of a graph and of a network of two layers over it.

    >>> GcnShape().parameters
    21672
    """

    nodes: int = 169_343
    edges: int = 1_166_243  # without self-loops
    features: int = 128
    hidden: int = 128
    classes: int = 40

    @property
    def parameters(self) -> int:
        return (self.features + 1) * self.hidden + (self.hidden + 1) * self.classes


@dataclass(frozen=True, slots=True)
class EdgeList:
    """The edges of a graph and the entries of its normalised adjacency matrix, self-loops included.

    >>> edges = draw_edges(GcnShape(nodes=10, edges=30), np.random.default_rng(0))
    >>> edges.sources.shape, edges.entries.dtype
    ((40,), dtype('float32'))
    """

    sources: npt.NDArray[np.int64]  # (edges,)
    targets: npt.NDArray[np.int64]  # (edges,)
    entries: npt.NDArray[np.float32]  # (edges,)


def draw_edges(shape: GcnShape, rng: np.random.Generator) -> EdgeList:
    """Returns random edges in random order; one pair of nodes may have several."""
    order = rng.permutation(shape.edges + shape.nodes)
    ends = (np.append(rng.integers(0, shape.nodes, shape.edges), np.arange(shape.nodes)) for _ in range(2))
    sources, targets = (each[order] for each in ends)
    degrees = np.bincount(targets, minlength=shape.nodes).clip(1).astype(np.float64)
    return EdgeList(sources, targets, (1 / np.sqrt(degrees[sources] * degrees[targets])).astype(np.float32))


def build(seed: int, shape: GcnShape) -> BuiltModel:
    """features float32 (nodes, features) -> logits float32 (nodes, classes)."""
    rng = np.random.default_rng(seed)
    g, edges = OnnxWriter(rng), draw_edges(shape, rng)
    for name, value in (("sources", edges.sources), ("targets", edges.targets[:, None]), ("entries", edges.entries)):
        g.constant(name, value)
    g.constant("entry_axis", np.array([1]))
    column = g.node("Unsqueeze", ["entries", "entry_axis"], "entry_column")

    def convolution(x: str, name: str, inputs: int, outputs: int) -> str:
        weight = rng.standard_normal((inputs, outputs), np.float32) * np.float32(math.sqrt(2 / inputs))
        product = g.node("MatMul", [x, g.constant(f"{name}.weight", weight)], f"{name}.product")
        rows = g.node("Gather", [product, "sources"], f"{name}.rows", axis=0)
        messages = g.node("Mul", [column, rows], f"{name}.messages")
        extents = g.constant(f"{name}.extents", np.array([shape.nodes, outputs]))
        zero = numpy_helper.from_array(np.zeros(1, np.float32))
        zeros = g.node("ConstantOfShape", [extents], f"{name}.zeros", value=zero)
        total = g.node("ScatterND", [zeros, "targets", messages], f"{name}.sums", reduction="add")
        bias = g.constant(f"{name}.bias", rng.standard_normal(outputs, np.float32) * np.float32(0.1))
        return g.node("Add", [total, bias], name)

    hidden = g.node("Relu", [convolution("features", "layer_0", shape.features, shape.hidden)], "hidden")
    logits = convolution(hidden, "logits", shape.hidden, shape.classes)
    given = helper.make_tensor_value_info("features", TensorProto.FLOAT, [shape.nodes, shape.features])
    made = helper.make_tensor_value_info(logits, TensorProto.FLOAT, [shape.nodes, shape.classes])
    graph = helper.make_graph(g.nodes, "gcn", [given], [made], g.initializers)
    return model(graph, {"qos_ms": QOS_MS}), []

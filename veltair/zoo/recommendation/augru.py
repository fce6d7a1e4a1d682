"""AUGRU, the GRU with an attentional update gate of DIEN (Zhou et al. 2019, section 4.3), as an ONNX Scan.

    [r, u] = sigmoid([x, h] @ gates + b);  c = tanh([x, r * h] @ candidate + b)
    u' = (1 - a) * u;  h = u' * h + (1 - u') * c

ONNX has no operator for it. The body is the cell as TensorFlow's GRUCell spells it, concatenations and split included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


@dataclass(frozen=True, slots=True)
class RecurrentSubgraph:
    """Nodes and constants of a recurrent layer, and the names of its results.

    >>> augru("interest", "x", "scores", inputs=8, hidden=8, rng=np.random.default_rng(0)).last
    'interest.last'
    """

    nodes: tuple[onnx.NodeProto, ...]
    initializers: tuple[onnx.TensorProto, ...]
    states: str  # all hidden states (n, steps, hidden)
    last: str  # the last hidden state (n, hidden)


def augru(name: str, x: str, scores: str, inputs: int, hidden: int, rng: np.random.Generator) -> RecurrentSubgraph:
    """Returns an AUGRU over x float32 (n, steps, inputs) and attention scores float32 (n, steps, 1), from zeros.

    Tensors and nodes are named `name.…`; the weights are seeded by `rng` as Glorot and Bengio's, update bias 1.
    """
    start = [
        helper.make_node("Shape", [x], [f"{name}.batch"], name=f"/{name}.batch", start=0, end=1),
        helper.make_node(
            "Concat", [f"{name}.batch", f"{name}.hidden"], [f"{name}.shape"], name=f"/{name}.shape", axis=0
        ),
        helper.make_node("ConstantOfShape", [f"{name}.shape"], [f"{name}.start"], name=f"/{name}.start"),
    ]
    scan = helper.make_node(
        "Scan",
        [f"{name}.start", x, scores],
        [f"{name}.last", f"{name}.states"],
        name=f"/{name}",
        num_scan_inputs=2,
        scan_input_axes=[1, 1],
        scan_output_axes=[1],
        body=_cell(f"{name}.cell", inputs, hidden, rng),
    )
    width = numpy_helper.from_array(np.array([hidden], np.int64), f"{name}.hidden")
    return RecurrentSubgraph((*start, scan), (width,), f"{name}.states", f"{name}.last")


def _cell(name: str, inputs: int, hidden: int, rng: np.random.Generator) -> onnx.GraphProto:
    """One step: (h, x, a) -> (h, h)."""

    def uniform(width: int) -> npt.NDArray[np.float32]:
        bound = math.sqrt(6 / (inputs + hidden + width))
        return rng.uniform(-bound, bound, (inputs + hidden, width)).astype(np.float32)

    weights = {
        "gates.weight": uniform(2 * hidden),
        "gates.bias": np.ones(2 * hidden, np.float32),
        "candidate.weight": uniform(hidden),
        "candidate.bias": np.zeros(hidden, np.float32),
        "one": np.ones(1, np.float32),
    }
    nodes = [
        helper.make_node(op, [f"{name}.{i}" for i in given], [f"{name}.{o}" for o in made], **attributes)
        for op, given, made, attributes in (
            ("Concat", ["x", "h"], ["xh"], {"axis": 1}),
            ("MatMul", ["xh", "gates.weight"], ["gates.product"], {}),
            ("Add", ["gates.product", "gates.bias"], ["gates.sum"], {}),
            ("Sigmoid", ["gates.sum"], ["gates"], {}),
            ("Split", ["gates"], ["r", "u"], {"axis": 1}),
            ("Mul", ["r", "h"], ["rh"], {}),
            ("Concat", ["x", "rh"], ["xrh"], {"axis": 1}),
            ("MatMul", ["xrh", "candidate.weight"], ["candidate.product"], {}),
            ("Add", ["candidate.product", "candidate.bias"], ["candidate.sum"], {}),
            ("Tanh", ["candidate.sum"], ["c"], {}),
            ("Sub", ["one", "a"], ["rest"], {}),
            ("Mul", ["rest", "u"], ["update"], {}),
            ("Mul", ["update", "h"], ["kept"], {}),
            ("Sub", ["one", "update"], ["share"], {}),
            ("Mul", ["share", "c"], ["new"], {}),
            ("Add", ["kept", "new"], ["next"], {}),
            ("Identity", ["next"], ["state"], {}),
        )
    ]
    given = [
        helper.make_tensor_value_info(f"{name}.{i}", FLOAT, [None, width])
        for i, width in (("h", hidden), ("x", inputs), ("a", 1))
    ]
    made = [helper.make_tensor_value_info(f"{name}.{o}", FLOAT, [None, hidden]) for o in ("next", "state")]
    constants = [numpy_helper.from_array(value, f"{name}.{key}") for key, value in weights.items()]
    return helper.make_graph(nodes, name, given, made, constants)

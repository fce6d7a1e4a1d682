"""A random ONNX network with a dynamic batch, grown node by node: what ONNX Runtime does not take is drawn again."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from bench.case_outcomes import right_outputs
from bench.random_graphs import elementwise, layers, shapes
from bench.random_graphs.drawing import OPERATORS, Draw

SMALL, LARGE = 2, 3  # batch sizes at which a graph is grown; what differs between them is dynamic
LENGTHS = {SMALL: 6, LARGE: 9}  # of the axis that may be open beside the batch, at these sizes
MOST_ELEMENTS = 20_000  # of a value at the smaller size
DRAWN_BY = (elementwise, layers, shapes)  # modules whose functions are among the operators
KINDS = {"f": np.float32, "i": np.int64, "b": np.bool_}
Arrays = dict[str, NDArray[Any]]


class RandomGraph:
    """Values at two batch sizes, and the nodes that give them.

    open_length: whether an axis of each input beside the first is open, named L.
    Deterministic in `seed` for given versions of numpy and ONNX Runtime.
    """

    def __init__(self, seed: int, *, open_length: bool = False, opset: int = 21) -> None:
        self.open_length = open_length
        self._open: dict[str, int] = {}  # the open axis of inputs
        self.rng = np.random.default_rng(seed)
        self._opset = opset
        self._names = 0
        self._nodes: list[NodeProto] = []
        self._constants: Arrays = {}
        self._inputs: list[str] = []
        self._values: dict[int, Arrays] = {SMALL: {}, LARGE: {}}
        self._used: set[str] = set()
        for _ in range(int(self.rng.integers(1, 3))):
            self._add_input()

    def grow(self, nodes: int) -> None:
        """Apply random operators until the graph has that many applications, or nothing fits any more."""
        done = tries = 0
        while done < nodes and tries < 30 * nodes:
            tries += 1
            done += self._apply(OPERATORS[int(self.rng.integers(len(OPERATORS)))])

    def pick(self, *, rank: tuple[int, int] = (1, 6), kind: str = "f", least: int = 1) -> str | None:
        """A value that fits, one of the last three in two cases of three; None where none does."""
        fitting = [
            name
            for name, array in self._values[SMALL].items()
            if array.dtype == KINDS[kind]
            and rank[0] <= array.ndim <= rank[1]
            and all(n >= least for n in array.shape[1:])
        ]
        if not fitting:
            return None
        late = fitting[-3:]
        return str(self.rng.choice(late if self.rng.random() < 0.67 else fitting))

    def shape(self, name: str) -> list[int]:
        return list(self._values[SMALL][name].shape)

    def fixed(self, name: str, axis: int) -> bool:
        return bool(self._values[SMALL][name].shape[axis] == self._values[LARGE][name].shape[axis])

    def constant(self, array: NDArray[np.generic]) -> str:
        name = self.fresh()
        self._constants[name] = np.asarray(array)
        return name

    def fresh(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def feeds(self, batch: int, length: int = LENGTHS[SMALL]) -> Arrays:
        """Random inputs of a batch, with that extent of open axes."""
        rng = np.random.default_rng(batch)
        return {name: self._input(rng, name, self._values[SMALL][name], batch, length) for name in self._inputs}

    def _input(self, rng: np.random.Generator, name: str, like: NDArray[Any], batch: int, length: int) -> NDArray[Any]:
        shape = [batch, *like.shape[1:]]
        if name in self._open:
            shape[self._open[name]] = length
        if like.dtype == np.int64:
            return rng.integers(0, 10, shape)
        return rng.standard_normal(shape).astype(np.float32)

    def model(self) -> onnx.ModelProto:
        """The network; its outputs are the values that no node reads."""
        outputs = [name for name in self._values[SMALL] if name not in self._used and name not in self._inputs]
        return self._model(self._nodes, self._inputs, outputs)

    def describe(self) -> str:
        """A line for each node."""
        return "\n".join(
            f"{', '.join(n.output)} = {n.op_type}({', '.join(n.input)})"
            + (f"  {shape}" if (shape := self._values[SMALL].get(n.output[0], np.empty(0)).shape) else "")
            for n in self._nodes
        )

    def _add_input(self) -> None:
        kind = "i" if self.rng.random() < 0.25 else "f"
        ranks = (2, 3) if kind == "i" else (2, 3, 3, 4, 4, 4, 5)
        extents = [int(self.rng.choice([1, 2, 3, 4, 5, 7, 8, 12, 16])) for _ in range(int(self.rng.choice(ranks)) - 1)]
        name = self.fresh()
        self._inputs.append(name)
        like = np.empty((1, *extents), KINDS[kind])
        if self.open_length:
            self._open[name] = int(self.rng.integers(1, like.ndim))
        for batch, length in LENGTHS.items():
            self._values[batch][name] = self._input(self.rng, name, like, batch, length)

    def _apply(self, draw: Draw) -> bool:
        """Try an operator; False, and nothing is changed, where it does not fit."""
        before = set(self._constants)
        nodes = draw(self)
        found = None if nodes is None else self._evaluated(nodes)
        if nodes is None or found is None:
            for key in set(self._constants) - before:
                del self._constants[key]
            return False
        self._nodes += nodes
        self._used.update(source for node in nodes for source in node.input)
        for batch, arrays in found.items():
            self._values[batch] |= arrays
        return True

    def _evaluated(self, nodes: list[NodeProto]) -> dict[int, Arrays] | None:
        """What the nodes give at both sizes; None where ONNX Runtime refuses them or numbers are not finite."""
        made = {name for node in nodes for name in node.output}
        sources = sorted({n for node in nodes for n in node.input} - made - set(self._constants) - {""})
        outputs = [name for node in nodes for name in node.output if name]
        found = {}
        for batch in (SMALL, LARGE):
            feeds = {name: self._values[batch][name] for name in sources}
            try:
                arrays = right_outputs(self._model(nodes, sources, outputs), feeds)
            except Exception:  # ONNX Runtime raises its own types
                return None
            for array in arrays.values():
                if not 0 < array.size <= MOST_ELEMENTS or array.dtype not in KINDS.values():
                    return None
                if array.dtype == np.float32 and not (np.isfinite(array).all() and np.abs(array).max(initial=0) < 1e4):
                    return None
            found[batch] = arrays
        inner = {name for node in nodes for name in node.input}
        if any(found[SMALL][n].ndim != found[LARGE][n].ndim for n in outputs):
            return None
        return {batch: {n: a for n, a in arrays.items() if n not in inner} for batch, arrays in found.items()}

    def _model(self, nodes: list[NodeProto], inputs: list[str], outputs: list[str]) -> onnx.ModelProto:
        used = {name for node in nodes for name in node.input}
        constants = [numpy_helper.from_array(a, n) for n, a in self._constants.items() if n in used]
        graph = helper.make_graph(
            nodes, "random", [self._port(n) for n in inputs], [self._port(n) for n in outputs], constants
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)], ir_version=10)

    def _port(self, name: str) -> onnx.ValueInfoProto:
        if name not in self._values[SMALL]:
            return onnx.ValueInfoProto(name=name)
        array, larger = self._values[SMALL][name], self._values[LARGE][name]
        sizes = zip(array.shape, larger.shape, strict=True)
        shape: list[int | str | None] = [a if a == b else "N" if (a, b) == (SMALL, LARGE) else None for a, b in sizes]
        if name in self._open:
            shape[self._open[name]] = "L"
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)

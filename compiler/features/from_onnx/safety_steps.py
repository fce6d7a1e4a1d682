"""Drops the safety steps of an ONNX graph's lookups that range propagation proves needless (RECom 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from veltair.compiler.features.index_ranges import IndexRange
from veltair.compiler.onnx.constants import captured_names
from veltair.compiler.onnx.node_attributes import attribute

KEEPS_VALUES = (
    "Identity",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Transpose",
    "Slice",
    "Gather",
    "Expand",
    "Split",
)
INSIDE_OF_COMPARISON: Mapping[str, Callable[[int], IndexRange]] = {
    "GreaterOrEqual": lambda limit: IndexRange(low=limit),
    "Greater": lambda limit: IndexRange(low=limit + 1),
    "Less": lambda limit: IndexRange(high=limit),
    "LessOrEqual": lambda limit: IndexRange(high=limit + 1),
}  # the values that a comparison with a number holds for
INTEGER_BITS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64, "uint64": 64}
MOST_ELEMENTS = 4096  # elements of a constant that are looked at, except for a vocabulary's values


class TensorRanges:
    """Ranges of a graph's integer tensors. What is not known may be any number.

    `drop_proved_steps` uses one::

        TensorRanges(graph, {"ids": IndexRange(0, 100)}).range_of("row")
    """

    def __init__(self, graph: onnx.GraphProto, inputs: Mapping[str, IndexRange] | None = None) -> None:
        self.producer = {output: node for node in graph.node for output in node.output if output}
        self.weights = {w.name: w for w in graph.initializer}
        typed = [v for v in (*graph.input, *graph.value_info) if v.type.tensor_type.HasField("shape")]
        self.ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in typed}
        self.known: dict[str, IndexRange] = dict(inputs or {})
        for node in graph.node:  # in graph order, so that no chain is followed in depth
            for output in node.output:
                self.known[output] = self._range_after(node)

    def range_of(self, tensor: str) -> IndexRange:
        if tensor not in self.known:
            value = self.constant(tensor)
            whole = value is not None and value.dtype.kind in "iub" and value.size > 0
            self.known[tensor] = (
                IndexRange(int(value.min()), int(value.max()) + 1) if whole and value is not None else IndexRange()
            )
        return self.known[tensor]

    def constant(self, tensor: str) -> NDArray[Any] | None:
        weight = self.weights.get(tensor)
        node = self.producer.get(tensor)
        if weight is None and node is not None and node.op_type == "Constant":
            weight = attribute(node, "value", None)
        if weight is None or int(np.prod(weight.dims, dtype=np.int64)) > MOST_ELEMENTS:
            return None
        value: NDArray[Any] = numpy_helper.to_array(weight)
        return value

    def number(self, tensor: str) -> int | None:
        value = self.constant(tensor)
        return int(value.item()) if value is not None and value.size == 1 and value.dtype.kind in "iu" else None

    def same_shape(self, node: onnx.NodeProto) -> bool:
        """Whether a guard that changes no value gives the shape of what it guards."""
        if node.op_type == "Compress":  # it flattens
            return self.ranks.get(node.input[0]) == 1
        scalars = [name for name in node.input if name in self.weights or name in self.producer]
        sizes = [value.ndim for value in map(self.constant, scalars) if value is not None]
        if node.op_type == "Where":  # of the comparison's numbers and the value
            compares = [self.producer[node.input[0]]]
            while compares:
                compare = compares.pop()
                sizes += [v.ndim for v in map(self.constant, compare.input) if v is not None]
                compares += [self.producer[n] for n in compare.input if compare.op_type == "And"]
            sizes += [] if self.constant(node.input[2]) is not None else [1]
        return not any(sizes)

    def _range_after(self, node: onnx.NodeProto) -> IndexRange:
        """The range of a node's output: its operator maps, keeps, replaces or removes (RECom fig. 20)."""
        kind, given = node.op_type, list(node.input)
        if kind in KEEPS_VALUES and given:
            return self.range_of(given[0])
        if kind == "Cast":
            return self._cast(node)
        if kind == "LabelEncoder":
            values = attribute(node, "values_int64s", [])
            return self._span([*values, attribute(node, "default_int64", -1)]) if values else IndexRange()
        if kind == "Mod" and not attribute(node, "fmod", 0):
            divisor = self.number(given[1])
            return IndexRange(0, divisor) if divisor is not None and divisor > 0 else IndexRange()
        if kind == "ReduceSum":
            return self._counted(node)
        if kind in ("Where", "Clip", "Max", "Min", "Compress"):
            guarded, inside, value = self.guard(node)
            if guarded is not None:
                kept = self.range_of(guarded).intersection(inside)
                return kept if value is None or self.range_of(guarded).is_within(inside) else kept.hull(value)
            if kind == "Where":
                return self.range_of(given[1]).hull(self.range_of(given[2]))
        return IndexRange()

    def guard(self, node: onnx.NodeProto) -> tuple[str | None, IndexRange, IndexRange | None]:
        """A safety step: the tensor that it guards, the interval that it leaves as it is, what it puts for the rest.

        None for a node that is no safety step, and for the rest where it is removed.
        """
        given, kind = list(node.input), node.op_type
        if kind == "Where":
            inside = self._condition(given[0], given[1])
            return (given[1], inside, self.range_of(given[2])) if inside is not None else (None, IndexRange(), None)
        if kind == "Compress" and "axis" not in [a.name for a in node.attribute]:
            inside = self._condition(given[1], given[0])
            return (given[0], inside, None) if inside is not None else (None, IndexRange(), None)
        if kind == "Clip":
            low, high = (self.number(n) if n else None for n in (*given[1:], "", "")[:2])
            bound = [n for n in given[1:] if n]
            if any(self.number(n) is None for n in bound):
                return None, IndexRange(), None
            inside = IndexRange(
                *[
                    d if n is None else n + shift
                    for n, d, shift in ((low, IndexRange().low, 0), (high, IndexRange().high, 1))
                ]
            )
            return given[0], inside, inside
        if kind in ("Max", "Min") and len(given) == 2:
            for tensor, limit in (given, given[::-1]):
                bound_ = self.number(limit)
                if bound_ is not None:
                    inside = IndexRange(low=bound_) if kind == "Max" else IndexRange(high=bound_ + 1)
                    return tensor, inside, IndexRange(bound_, bound_ + 1)
        return None, IndexRange(), None

    def _condition(self, condition: str, tensor: str) -> IndexRange | None:
        """The values of `tensor` that a condition holds for; None if it does not compare the tensor with numbers."""
        node = self.producer.get(condition)
        if node is None:
            return None
        if node.op_type == "And":
            sides = [self._condition(name, tensor) for name in node.input]
            return None if None in sides else sides[0].intersection(sides[1])  # type: ignore[union-attr, arg-type]
        if node.op_type not in INSIDE_OF_COMPARISON or node.input[0] != tensor:
            return None
        limit = self.number(node.input[1])
        if limit is None:
            return None
        return INSIDE_OF_COMPARISON[node.op_type](limit)

    def _cast(self, node: onnx.NodeProto) -> IndexRange:
        before = self.range_of(node.input[0])
        to = onnx.helper.tensor_dtype_to_np_dtype(attribute(node, "to", 1))
        if str(to) not in INTEGER_BITS or before == IndexRange():
            return IndexRange()
        info = np.iinfo(to)
        return before if before.is_within(IndexRange(int(info.min), int(info.max) + 1)) else IndexRange()

    def _counted(self, node: onnx.NodeProto) -> IndexRange:
        """The sum of a comparison with n boundaries, which is how ONNX spells Bucketize, is in [0, n]."""
        cast = self.producer.get(node.input[0])
        compare = self.producer.get(cast.input[0]) if cast is not None and cast.op_type == "Cast" else None
        axes = self.constant(node.input[1]) if len(node.input) > 1 else None
        if compare is None or compare.op_type not in INSIDE_OF_COMPARISON or axes is None or axes.size != 1:
            return IndexRange()
        edges = self.constant(compare.input[1])
        last = edges is not None and edges.ndim == 1 and int(axes.item()) in (-1, 1)
        return IndexRange(0, edges.size + 1) if last and edges is not None else IndexRange()

    @staticmethod
    def _span(values: list[int]) -> IndexRange:
        return IndexRange(min(values), max(values) + 1)


def drop_proved_steps(graph: onnx.GraphProto, inputs: Mapping[str, IndexRange] | None = None) -> list[str]:
    """Takes safety steps that are proved needless out of the graph, in place, and returns their names.

    inputs: ranges of the graph's own inputs, for instance of ids that are checked before.
    """
    ranges = TensorRanges(graph, inputs)
    outputs = {output.name for output in graph.output}
    instead: dict[str, str] = {}
    dropped = []
    kept = []
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = instead.get(name, name)
        guarded, inside, _ = ranges.guard(node)
        idle = guarded is not None and ranges.range_of(guarded).is_within(inside) and ranges.same_shape(node)
        if idle and guarded is not None and node.output[0] not in outputs:
            instead[node.output[0]] = guarded
            dropped.append(node.name)
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(nodes_needed(kept, outputs))
    return dropped


def nodes_needed(nodes: list[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """The nodes that some output depends on, in their order."""
    needed, found = set(outputs), []
    for node in reversed(nodes):
        if needed & set(node.output):
            needed.update(node.input, captured_names(node))
            found.append(node)
    return found[::-1]

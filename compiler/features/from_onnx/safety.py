"""Safety steps of an ONNX graph's lookups that do nothing: dropped where range propagation proves it (RECom 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from veltair.compiler.features.index_ranges import Range
from veltair.compiler.onnx.node_attributes import attribute

KEEPS = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Slice", "Gather", "Expand", "Split")
COMPARES = ("GreaterOrEqual", "Greater", "Less", "LessOrEqual")
WHOLE = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64, "uint64": 64}
LARGEST = 4096  # elements of a constant that are looked at, but for a vocabulary's values


class Ranges:
    """Ranges of a graph's integer tensors, asked for by name. Everything unknown may be anything."""

    def __init__(self, graph: onnx.GraphProto, inputs: Mapping[str, Range] | None = None) -> None:
        self.producer = {output: node for node in graph.node for output in node.output if output}
        self.weights = {w.name: w for w in graph.initializer}
        typed = [v for v in (*graph.input, *graph.value_info) if v.type.tensor_type.HasField("shape")]
        self.ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in typed}
        self.known: dict[str, Range] = dict(inputs or {})
        for node in graph.node:  # in graph order, so that no chain is followed in depth
            for output in node.output:
                self.known[output] = self._of(node)

    def of(self, tensor: str) -> Range:
        if tensor not in self.known:
            value = self.constant(tensor)
            whole = value is not None and value.dtype.kind in "iub" and value.size > 0
            self.known[tensor] = (
                Range(int(value.min()), int(value.max()) + 1) if whole and value is not None else Range()
            )
        return self.known[tensor]

    def constant(self, tensor: str) -> NDArray[Any] | None:
        weight = self.weights.get(tensor)
        node = self.producer.get(tensor)
        if weight is None and node is not None and node.op_type == "Constant":
            weight = attribute(node, "value", None)
        if weight is None or int(np.prod(weight.dims, dtype=np.int64)) > LARGEST:
            return None
        value: NDArray[Any] = numpy_helper.to_array(weight)
        return value

    def number(self, tensor: str) -> int | None:
        value = self.constant(tensor)
        return int(value.item()) if value is not None and value.size == 1 and value.dtype.kind in "iu" else None

    def same_shape(self, node: onnx.NodeProto) -> bool:
        """Whether what a guard gives has the shape of what it guards, where it changes no value."""
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

    def _of(self, node: onnx.NodeProto) -> Range:
        """Map, keep, replace, remove (RECom fig. 20)."""
        kind, given = node.op_type, list(node.input)
        if kind in KEEPS and given:
            return self.of(given[0])
        if kind == "Cast":
            return self._cast(node)
        if kind == "LabelEncoder":
            values = attribute(node, "values_int64s", [])
            return self._span([*values, attribute(node, "default_int64", -1)]) if values else Range()
        if kind == "Mod" and not attribute(node, "fmod", 0):
            divisor = self.number(given[1])
            return Range(0, divisor) if divisor is not None and divisor > 0 else Range()
        if kind == "ReduceSum":
            return self._counted(node)
        if kind in ("Where", "Clip", "Max", "Min", "Compress"):
            guarded, inside, value = self.guard(node)
            if guarded is not None:
                kept = self.of(guarded).and_(inside)
                return kept if value is None or self.of(guarded).within(inside) else kept.or_(value)
            if kind == "Where":
                return self.of(given[1]).or_(self.of(given[2]))
        return Range()

    def guard(self, node: onnx.NodeProto) -> tuple[str | None, Range, Range | None]:
        """A safety step: the tensor it guards, the interval inside of which nothing changes, what comes instead."""
        given, kind = list(node.input), node.op_type
        if kind == "Where":
            inside = self._condition(given[0], given[1])
            return (given[1], inside, self.of(given[2])) if inside is not None else (None, Range(), None)
        if kind == "Compress" and "axis" not in [a.name for a in node.attribute]:
            inside = self._condition(given[1], given[0])
            return (given[0], inside, None) if inside is not None else (None, Range(), None)
        if kind == "Clip":
            low, high = (self.number(n) if n else None for n in (*given[1:], "", "")[:2])
            bound = [n for n in given[1:] if n]
            if any(self.number(n) is None for n in bound):
                return None, Range(), None
            inside = Range(
                *[d if n is None else n + shift for n, d, shift in ((low, Range().low, 0), (high, Range().high, 1))]
            )
            return given[0], inside, inside
        if kind in ("Max", "Min") and len(given) == 2:
            for tensor, limit in (given, given[::-1]):
                bound_ = self.number(limit)
                if bound_ is not None:
                    inside = Range(low=bound_) if kind == "Max" else Range(high=bound_ + 1)
                    return tensor, inside, Range(bound_, bound_ + 1)
        return None, Range(), None

    def _condition(self, condition: str, tensor: str) -> Range | None:
        """Where `tensor` is for the condition to hold; None if it is no comparison of it with a number."""
        node = self.producer.get(condition)
        if node is None:
            return None
        if node.op_type == "And":
            sides = [self._condition(name, tensor) for name in node.input]
            return None if None in sides else sides[0].and_(sides[1])  # type: ignore[union-attr, arg-type]
        if node.op_type not in COMPARES or node.input[0] != tensor:
            return None
        limit = self.number(node.input[1])
        if limit is None:
            return None
        return {
            "GreaterOrEqual": Range(low=limit), "Greater": Range(low=limit + 1),
            "Less": Range(high=limit), "LessOrEqual": Range(high=limit + 1),
        }[node.op_type]  # fmt: skip

    def _cast(self, node: onnx.NodeProto) -> Range:
        before = self.of(node.input[0])
        to = onnx.helper.tensor_dtype_to_np_dtype(attribute(node, "to", 1))
        if str(to) not in WHOLE or before == Range():
            return Range()
        info = np.iinfo(to)
        return before if before.within(Range(int(info.min), int(info.max) + 1)) else Range()

    def _counted(self, node: onnx.NodeProto) -> Range:
        """The sum of a comparison with n boundaries is in [0, n]: ONNX's way to say Bucketize."""
        cast = self.producer.get(node.input[0])
        compare = self.producer.get(cast.input[0]) if cast is not None and cast.op_type == "Cast" else None
        axes = self.constant(node.input[1]) if len(node.input) > 1 else None
        if compare is None or compare.op_type not in COMPARES or axes is None or axes.size != 1:
            return Range()
        edges = self.constant(compare.input[1])
        last = edges is not None and edges.ndim == 1 and int(axes.item()) in (-1, 1)
        return Range(0, edges.size + 1) if last and edges is not None else Range()

    @staticmethod
    def _span(values: list[int]) -> Range:
        return Range(min(values), max(values) + 1)


def without_proved(graph: onnx.GraphProto, inputs: Mapping[str, Range] | None = None) -> list[str]:
    """Takes proved safety steps out of the graph, in place; gives their names.

    inputs: what is known of the graph's own inputs, e.g. ids that are checked before.
    """
    ranges = Ranges(graph, inputs)
    outputs = {output.name for output in graph.output}
    instead: dict[str, str] = {}
    dropped = []
    kept = []
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = instead.get(name, name)
        guarded, inside, _ = ranges.guard(node)
        idle = guarded is not None and ranges.of(guarded).within(inside) and ranges.same_shape(node)
        if idle and guarded is not None and node.output[0] not in outputs:
            instead[node.output[0]] = guarded
            dropped.append(node.name)
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(needed(kept, outputs))
    return dropped


def needed(nodes: list[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """Nodes that some output depends on."""
    needed, found = set(outputs), []
    for node in reversed(nodes):
        if needed & set(node.output):
            needed.update(node.input)
            found.append(node)
    return found[::-1]

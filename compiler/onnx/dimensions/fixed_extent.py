"""`FixedExtent`: a model whose file leaves a dimension open, beside the batch, at one extent of it.

Either its inputs have that extent, or they are *exact*: they have room for it, and the extent of a query comes as an
input of its own, to which operators at the model's begin cut them. What is behind these has no shape that can be told,
so that it is left to ONNX Runtime (`folding.opaque_nodes`), which takes any.

Where inputs are padded, the position that a node reads as the last one is not the query's last. Such nodes get the
extent of each sample as that same input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.onnx.constants import all_nodes
from veltair.errors import ModelError
from veltair.profiles.artifact.dynamic_dimension import EXTENT_INPUT

PREFIX = f"{EXTENT_INPUT}/"  # of names that are added
ONE, PLACE = f"{PREFIX}one", f"{PREFIX}place"  # the number, and the last position of each sample, (batch, 1)


@dataclass(frozen=True, slots=True)
class FixedExtent:
    """One extent of the dimension `name`.

    >>> FixedExtent("seq", 32).exact
    False
    """

    name: str
    extent: int
    exact: bool = False
    batch: int | None = None  # what a symbolic first dimension is fixed to; None: it stays open
    ids: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # the bounds of inputs that are exact
    last: Mapping[str, bool] = field(default_factory=dict)  # results that are the last position: True keeps its axis

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """Bounds of inputs whose values the operators do not show. Layers are timed and checked at the extent."""
        return {**self.ids, EXTENT_INPUT: (self.extent, self.extent)} if self.exact or self.last else {}

    def fix(self, proto: onnx.ModelProto, path: Path) -> None:
        """Give the inputs the extent. Raises ModelError where no input has the dimension, or one has it twice and is to
        be exact."""
        require_dimension(proto, self.name, path)
        open_surplus(proto, self.name, path)  # raises
        fix_dimension(inputs_of(proto), self.name, self.extent)
        for value in proto.graph.input if self.batch is not None else ():
            for dim in value.type.tensor_type.shape.dim[:1]:
                if not dim.HasField("dim_value"):
                    dim.dim_value = self.batch
        if not self.exact:
            fix_dimension(proto.graph.output, self.name, self.extent)
        del proto.graph.value_info[:]  # what it says of shapes holds for any extent, and is inferred again

    def cut_inputs(
        self, proto: onnx.ModelProto, axes: Mapping[str, tuple[int, ...]], surplus: Mapping[str, int]
    ) -> None:
        """Have the inputs cut to the extent that EXTENT_INPUT says. The model is of operator set 10 or newer.

        axes, surplus: what `open_axes` and `open_surplus` give.
        """
        if not self.exact:
            return
        graph = proto.graph
        renamed = {name: f"{PREFIX}{name}" for name in axes}
        for node in all_nodes(graph.node):
            for place, name in enumerate(node.input):
                node.input[place] = renamed.get(name, name)
        added = [node for name in axes for node in _cut(name, renamed[name], axes[name], surplus.get(name, 0))]
        given = list(graph.node)
        del graph.node[:]
        graph.node.extend([*added, *given])
        for name, where in axes.items():
            added_numbers = ("begin", [0] * len(where)), ("axes", list(where)), ("surplus", [surplus.get(name, 0)])
            for suffix, numbers in added_numbers:
                graph.initializer.append(
                    numpy_helper.from_array(np.array(numbers, np.int64), f"{PREFIX}{name}/{suffix}")
                )
        graph.input.append(helper.make_tensor_value_info(EXTENT_INPUT, TensorProto.INT64, [1]))

    def read_last(self, proto: onnx.ModelProto, axes: Mapping[str, tuple[int, ...]], path: Path) -> None:
        """Have the nodes that make `last` read the last position of each sample. The model is of operator set 12 or
        newer, and their operands are (batch, extent, …).

        Raises ModelError where other nodes make them.
        """
        if not self.last:
            return
        graph = proto.graph
        given = list(graph.node)
        found = {name for node in given for name in node.output if node.op_type in ("Gather", "Slice")}
        if not self.last.keys() <= found:
            raise ModelError(f"{path}: expected a Gather or Slice that makes {', '.join(self.last.keys() - found)}")
        del graph.node[:]
        graph.node.append(helper.make_node("Sub", [EXTENT_INPUT, ONE], [f"{PREFIX}last"], f"{PREFIX}last"))
        graph.node.append(helper.make_node("Unsqueeze", [f"{PREFIX}last", ONE], [PLACE], PLACE))
        for node in given:
            graph.node.extend(_read_last(node, self.last) if node.output[0] in self.last else [node])
        graph.initializer.append(numpy_helper.from_array(np.ones(1, np.int64), ONE))
        rows = [value.type.tensor_type.shape.dim[0] for value in graph.input if value.name in axes]
        batch = max(dim.dim_value for dim in rows) if all(dim.HasField("dim_value") for dim in rows) else None
        graph.input.append(helper.make_tensor_value_info(EXTENT_INPUT, TensorProto.INT64, [batch]))


def _read_last(node: onnx.NodeProto, last: Mapping[str, bool]) -> Iterator[onnx.NodeProto]:
    name, keeps = node.output[0], last[node.output[0]]
    row = f"{PREFIX}{name}" if keeps else name
    yield helper.make_node("GatherND", [node.input[0], PLACE], [row], f"{PREFIX}{name}", batch_dims=1)
    if keeps:
        yield helper.make_node("Unsqueeze", [row, ONE], [name], f"{PREFIX}{name}/axis")


def _cut(name: str, cut: str, axes: tuple[int, ...], more: int) -> Iterator[onnx.NodeProto]:
    extent = end = EXTENT_INPUT
    if more:
        extent = end = f"{cut}/extent"
        yield helper.make_node("Add", [EXTENT_INPUT, f"{cut}/surplus"], [extent], name=extent)
    if len(axes) > 1:
        end = f"{cut}/end"
        yield helper.make_node("Concat", [extent] * len(axes), [end], name=end, axis=0)
    yield helper.make_node("Slice", [name, f"{cut}/begin", end, f"{cut}/axes"], [cut], name=cut)


def open_axes(proto: onnx.ModelProto, name: str) -> dict[str, tuple[int, ...]]:
    """The axes of each input that have the dimension of this name, or a number more than it."""
    found = {}
    for value in inputs_of(proto):
        axes = tuple(axis for axis, dim in _open_dims(value) if surplus_over(dim, name) is not None)
        if axes:
            found[value.name] = axes
    return found


def require_dimension(proto: onnx.ModelProto, name: str, path: Path) -> None:
    """Raises ModelError where no input has a dimension of this name."""
    if not open_axes(proto, name):
        known = ", ".join(repr(name) for name in open_names(proto)) or "none"
        raise ModelError(f"{path}: no input has a dimension {name!r}; symbolic dimensions: {known}")


def open_surplus(proto: onnx.ModelProto, name: str, path: Path) -> dict[str, int]:
    """By how much some inputs exceed the dimension of this name: the mask of a decoder has `past + 1`.

    Raises ModelError where that differs between the axes of an input.
    """
    found = {}
    for value in inputs_of(proto):
        more = {each for _, dim in _open_dims(value) if (each := surplus_over(dim, name)) is not None}
        if len(more) > 1:
            raise ModelError(f"{path}: input {value.name!r} has the dimension {name!r} in several lengths")
        if more - {0}:
            found[value.name] = more.pop()
    return found


def fix_dimension(values: Iterable[onnx.ValueInfoProto], name: str, extent: int) -> None:
    """Give tensors the extent where they have the dimension of this name, or a number more than it."""
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            if (more := surplus_over(dim.dim_param, name)) is not None:
                dim.dim_value = extent + more


def surplus_over(text: str, name: str) -> int | None:
    """What a symbolic dimension is more than the one of this name; None where it is another one.

    >>> [surplus_over(text, "past") for text in ("past", "past + 1", "2+past", "past2")]
    [0, 1, 2, None]
    """
    if text == name:
        return 0
    number = r"(\d{1,6})"
    match = re.fullmatch(rf"{re.escape(name)}\s*\+\s*{number}|{number}\s*\+\s*{re.escape(name)}", text.strip())
    return int(match[1] or match[2]) if match else None


def _open_dims(value: onnx.ValueInfoProto) -> Iterator[tuple[int, str]]:
    dims = value.type.tensor_type.shape.dim
    return ((axis, dim.dim_param) for axis, dim in enumerate(dims) if not dim.HasField("dim_value"))


def open_names(proto: onnx.ModelProto) -> list[str]:
    """The names of the inputs' symbolic dimensions."""
    dims = (dim for value in inputs_of(proto) for dim in value.type.tensor_type.shape.dim)
    return list(dict.fromkeys(dim.dim_param for dim in dims if dim.dim_param))


def inputs_of(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """What a file expects: its inputs that are no constants."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name not in constants:
            yield value

"""Outputs whose extents values decide: a model gives each as values in a room of fixed size, and its extents beside.

The operators that do so are standard ones, at the end of the model, where ONNX Runtime runs them together with whatever
decides the extents (`opaque_nodes`). Nothing behind this module knows of extents that vary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from onnx import helper

from veltair.compiler.onnx.constants import type_name
from veltair.compiler.onnx.node_evaluation import Array
from veltair.errors import ConfigError, ModelError
from veltair.profiles.artifact.manifest import Port, labelled_output, sized_output

OUTPUT_ROOM = 1 << 16  # elements for each sample, where nobody asks for another number
MOST_ROOM = 1 << 26
OutputRoom: TypeAlias = int | Mapping[str, int]  # elements for each sample: of all such outputs, or by output
PREFIX = "veltair/output/"  # of names that are added


@dataclass(frozen=True, slots=True)
class BranchShape:
    """What is known of the shape of an output that branches give.

    >>> BranchShape((0, 0), uneven=True).dims
    (0, 0)
    """

    dims: tuple[int, ...]  # the batch is -1, an extent that varies 0; as many as the output has in any branch
    uneven: bool = False  # whether it has fewer dimensions in some


def give_room(
    proto: onnx.ModelProto,
    names: Set[str],
    room: OutputRoom,
    dynamic: bool,
    path: Path,
    ranks: Mapping[str, int],
    branches: Mapping[str, BranchShape],
) -> tuple[onnx.ModelProto, dict[str, Port], dict[str, Array]]:
    """The model with two outputs in place of each of `names`, the ports that clients see, and constants.

    room: elements for each sample; an output whose extents the file states gets no fewer than it states.
    dynamic: whether a symbolic first dimension of an input is the batch.
    ranks: of outputs, as far as they are known; the others' have to be stated in the file.
    branches: shapes of outputs that the file states otherwise, or not at all.
    Raises ModelError naming an output whose rank is not known.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    graph = changed.graph
    batch = next(_batched(graph)) if dynamic else None
    symbol = (batch.type.tensor_type.shape.dim[0].dim_param if batch else "") or None
    symbols = batch_symbols(graph) - {""} if dynamic else set()
    taken = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    outputs, ports = list[onnx.ValueInfoProto](), dict[str, Port]()
    numbers = {f"{PREFIX}flat": [-1], f"{PREFIX}none": [0]}
    for value in proto.graph.output:
        if value.name not in names:
            outputs.append(value)
            continue
        tensor = value.type.tensor_type
        behind = branches.get(value.name)
        if not tensor.HasField("shape") and value.name not in ranks and behind is None:
            raise ModelError(
                f"{path}: output {value.name!r}: the values of the inputs decide how many dimensions it has"
            )
        dims = [dim.dim_value for dim in tensor.shape.dim] or [0] * ranks.get(value.name, 0)
        if dims and tensor.shape.dim and not dims[0] and tensor.shape.dim[0].dim_param in symbols:
            dims[0] = -1
        space = room if isinstance(room, int) else room.get(value.name, OUTPUT_ROOM)
        if behind is not None:
            stated = [dim.dim_value for dim in tensor.shape.dim]
            space = max(space, prod(stated if stated and stated[0] else stated[1:]))
            dims = list(behind.dims if 0 in behind.dims else [0] * len(behind.dims))
        port = ports[value.name] = Port(value.name, type_name(tensor.elem_type), tuple(dims), room=space)
        numbers |= {f"{PREFIX}{value.name}/room": [space], f"{PREFIX}{value.name}/rows": [-1, space]}
        parts = sized_output(port, 1 if batch is None else -1)
        for part in parts:
            if part.name in taken:
                raise ModelError(f"{path}: two tensors would be {part.name!r}; expected another name")
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(part.dtype))
            shape = [dim if dim >= 0 else symbol for dim in part.shape]
            outputs.append(helper.make_tensor_value_info(part.name, kind, shape))
        numbers |= {f"{PREFIX}{value.name}/no_dims": [-1] * len(dims)} if behind and behind.uneven else {}
        graph.node.extend(_nodes(value.name, parts, batch, uneven=behind is not None and behind.uneven))
    constants = {name: np.array(value, np.int64) for name, value in numbers.items()}
    del graph.output[:]
    graph.output.extend(outputs)
    return changed, ports, constants


def checked_room(room: int | None, option: str) -> int:
    """The room that was asked for; None: nobody did. Raises ConfigError naming the option."""
    if room is None:
        return OUTPUT_ROOM
    if not 1 <= room <= MOST_ROOM:
        raise ConfigError(f"{option}: expected 1 to {MOST_ROOM} elements, found {room}")
    return room


def client_ports(
    tensors: Sequence[Port], sized: Mapping[str, Port], labels: Mapping[str, tuple[str, ...]]
) -> tuple[Port, ...]:
    """The outputs as clients see them, of the tensors that kernels write. `labels`: of outputs of text.

    >>> boxes = Port("boxes", "float32", (0, 4), room=400)
    >>> tensors = [Port("y", "int64", (-1,)), *sized_output(boxes, -1)]
    >>> [port.name for port in client_ports(tensors, {"boxes": boxes}, labels={})]
    ['y', 'boxes']
    """
    whole = {part.name: port for port in sized.values() for part in sized_output(port, -1)}
    ports = dict.fromkeys(whole.get(tensor.name, tensor) for tensor in tensors)
    return tuple(labelled_output(port, labels.get(port.name, ())) for port in ports)


def batch_symbols(graph: onnx.GraphProto) -> Set[str]:
    """The names of the batch in a graph where an input's symbolic first dimension is the batch; "" is none."""
    return {value.type.tensor_type.shape.dim[0].dim_param for value in _batched(graph)}


def _batched(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    constants = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in constants and dims and not dims[0].HasField("dim_value"):
            yield value


def _nodes(
    name: str, parts: Sequence[Port], batch: onnx.ValueInfoProto | None, *, uneven: bool
) -> Iterator[onnx.NodeProto]:
    """Those that write an output's values and zeros behind them, or no more than the room takes, and its extents.

    uneven: the extents are followed by -1 where the output has fewer dimensions than others of its shapes.
    """
    values, extents = (part.name for part in parts)
    inner = f"{PREFIX}{name}/"

    def node(op: str, inputs: Sequence[str], output: str, **attributes: int) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output], name=f"{inner}{op}/{output}", **attributes)

    space = f"{inner}room"
    if batch is not None:
        yield node("Shape", [batch.name], f"{inner}batch", start=0, end=1)
        space = f"{inner}space"
        yield node("Mul", [f"{inner}room", f"{inner}batch"], space)
    if uneven:
        yield node("Shape", [name], f"{inner}shape")
        yield node("Shape", [f"{inner}shape"], f"{inner}rank")
        yield node("Shape", [f"{inner}no_dims"], f"{inner}most")
        yield node("Slice", [f"{inner}no_dims", f"{inner}rank", f"{inner}most"], f"{inner}left")
        yield node("Concat", [f"{inner}shape", f"{inner}left"], extents, axis=0)
    else:
        yield node("Shape", [name], extents)
    yield node("Reshape", [name, f"{PREFIX}flat"], f"{inner}flat")
    yield node("Shape", [f"{inner}flat"], f"{inner}size")
    yield node("Sub", [space, f"{inner}size"], f"{inner}spare")
    yield node("Concat", [f"{PREFIX}none", f"{inner}spare"], f"{inner}pads", axis=0)
    yield node("Pad", [f"{inner}flat", f"{inner}pads"], f"{inner}padded")
    yield node("Reshape", [f"{inner}padded", f"{inner}rows"], values)

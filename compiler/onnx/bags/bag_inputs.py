"""Exported bags as standard operators on inputs of fixed extents: a row of ids for each bag, and the bag's length.

Nothing behind this module knows of extents that differ from bag to bag: `RaggedInput` brings what clients give into
these inputs, where queries enter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx import TensorProto, helper

from veltair.compiler.onnx.bags.bag_spelling import ExportedBags
from veltair.compiler.onnx.bags.exported_bags import find_bags
from veltair.compiler.onnx.bags.standard_bags import reduce_rows, shared_constants
from veltair.compiler.onnx.constants import captured_names, type_name
from veltair.errors import ConfigError, ModelError
from veltair.profiles.artifact.ragged_inputs import RaggedInput

BAG_ROOM = 128  # ids of a bag, where nobody asks for another number
MOST_ROOM = 1 << 20
BagRoom: TypeAlias = Mapping[str, int]  # ids of a bag, by input; of "" for all others
LEAST_OPSET = 13  # from which axes of ReduceSum are an input


@dataclass(frozen=True, slots=True)
class BagInputs:
    """The inputs of the bags that `give_bags_rows` found, and the least and the greatest length of each, by its name.

    >>> BagInputs().ragged
    ()
    """

    ragged: tuple[RaggedInput, ...] = ()
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def give_bags_rows(proto: onnx.ModelProto, room: BagRoom, path: Path) -> BagInputs:
    """Rewrite the bags of a model whose ids are inputs with an extent that the file leaves open.

    Raises ModelError where an input of a bag is also something else.
    """
    opset = max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    graph = proto.graph
    bags = [bag for bag in find_bags(graph) if _takes(bag, graph)] if opset >= LEAST_OPSET else []
    inputs = {value.name: value for value in graph.input}
    grouped: dict[str, list[ExportedBags]] = {}
    for bag in (each for each in bags if each.form != "matrix"):
        grouped.setdefault(bag.ids, []).append(bag)
    if unknown := room.keys() - grouped.keys() - {""}:
        found = ", ".join(grouped) or "none"
        raise ModelError(f"{path}: no bags of ids {sorted(unknown)[0]!r} to give room; the bags found are of: {found}")
    if not bags:
        return BagInputs()
    ragged = tuple(_ragged(ids, each, inputs, room, path) for ids, each in grouped.items())
    names = [name for each in ragged for name in each.flat]  # of clients
    if twice := [name for name in names if names.count(name) > 1 or name in {each.bounds for each in ragged}]:
        raise ModelError(f"{path}: input {twice[0]!r} is one of several tensors of bags; expected one")
    _replace_loops(graph, bags, {each.ids: each for each in ragged}, opset, path)
    _replace_inputs(graph, ragged)
    filled = {bag.ids for bag in bags if not bag.empty}
    return BagInputs(
        ragged, {view.lengths: (int(each.ids in filled), each.room) for each in ragged for view in each.views}
    )


def checked_bag_room(given: Mapping[str, int], option: str) -> BagRoom:
    """The rooms that were asked for. Raises ConfigError naming the option."""
    for name, room in given.items():
        if not 1 <= room <= MOST_ROOM:
            where = f"{option}: {name}" if name else option
            raise ConfigError(f"{where}: expected 1 to {MOST_ROOM} ids for a bag, found {room}")
    return given


def parse_bag_room(text: str) -> tuple[str, int]:
    """The input and the number as the command line has them. Raises ConfigError.

    >>> parse_bag_room("64"), parse_bag_room("clicks=200")
    (('', 64), ('clicks', 200))
    """
    name, given, number = text.rpartition("=")
    if not (number.isascii() and number.isdecimal() and len(number) < 10) or (given and not name):
        raise ConfigError(f"--bag-room {text}: expected IDS or INPUT=IDS, as in clicks=200")
    return name, int(number)


def _takes(bag: ExportedBags, graph: onnx.GraphProto) -> bool:
    """Whether the names are those of inputs and of a table, and the number of ids is open; of a matrix its columns are
    not."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    inputs = {value.name: value.type.tensor_type for value in graph.input if value.name not in constants}
    table, matrix = constants.get(bag.table), bag.form == "matrix"
    if table is None or len(table.dims) != 2 or table.data_type != TensorProto.FLOAT:
        return False
    kinds: dict[str, tuple[str, ...]] = {bag.ids: ("int64", "int32")}
    kinds |= {} if matrix else {bag.bounds: ("int64", "int32")}
    kinds |= {bag.weights: ("float32",)} if bag.weights else {}
    for name, kind in kinds.items():
        tensor = inputs.get(name)
        if tensor is None or len(tensor.shape.dim) != 1 + matrix or type_name(tensor.elem_type) not in kind:
            return False
    distinct = len(kinds) == 1 + (not matrix) + bool(bag.weights)
    if matrix:
        widths = {inputs[name].shape.dim[1].dim_value for name in kinds}
        return distinct and len(widths) == 1 and min(widths) > 0 and bag.bounds in ("", str(*widths))
    return distinct and not inputs[bag.ids].shape.dim[0].HasField("dim_value")


def _ragged(
    ids: str, bags: Sequence[ExportedBags], inputs: Mapping[str, onnx.ValueInfoProto], room: BagRoom, path: Path
) -> RaggedInput:
    """All bags of one tensor of ids."""
    ways = {(bag.bounds, bag.form, bag.features) for bag in bags}
    if len(ways) > 1:
        raise ModelError(
            f"{path}: input {ids!r} is cut into bags in two ways, by {' and by '.join(way[0] for way in ways)}"
        )
    bounds, form, features = ways.pop()
    assert form != "matrix"  # which is one input as it is
    weights = tuple(dict.fromkeys(bag.weights for bag in bags if bag.weights))
    dtype = type_name(inputs[bounds].type.tensor_type.elem_type)
    used = tuple(sorted({bag.feature for bag in bags}))
    held = room.get(ids, room.get("", BAG_ROOM))
    return RaggedInput(ids, f"{ids}/lengths", bounds, dtype, form, held, weights, features, used)


def _replace_loops(
    graph: onnx.GraphProto, bags: Sequence[ExportedBags], ragged: Mapping[str, RaggedInput], opset: int, path: Path
) -> None:
    """Put what becomes of the rows in place of what gave them, and drop the nodes that nothing needs any more.

    Raises ModelError where one that is needed reads what says which ids a bag has.
    """
    made = {bag.output: bag for bag in bags}
    replaced = {name for each in ragged.values() for name in (*each.flat, each.bounds)}
    wanted, kept = {value.name for value in graph.output}, list[onnx.NodeProto]()
    for node in reversed(graph.node):
        needed = wanted.intersection(node.output)
        if bag := next((made[name] for name in needed if name in made), None):
            each = ragged.get(bag.ids)
            kept.extend([*reduce_rows(bag, each, opset)][::-1])
            wanted.update({bag.table, *(() if each else (bag.ids, bag.weights))} - {""})
        elif needed:
            read = {*node.input, *captured_names(node)}
            if both := sorted(read & replaced):
                raise ModelError(
                    f"{path}: node {node.name!r} ({node.op_type}) reads input {both[0]!r}, which is one of bags; "
                    "expected that only the bags read it"
                )
            kept.append(node)
            wanted |= read
    del graph.node[:]
    graph.node.extend(kept[::-1])
    graph.initializer.extend(shared_constants(bags, [*ragged.values()]))


def _replace_inputs(graph: onnx.GraphProto, ragged: Sequence[RaggedInput]) -> None:
    """Inputs of fixed extents in place of those that clients give."""
    given = list(graph.input)
    flat = {name: each for each in ragged for name in each.flat}
    del graph.input[:]
    for value in given:
        if (each := flat.get(value.name)) is not None:
            extents = [each.room] if value.name == each.ids else [each.room, 1]
            kind = value.type.tensor_type.elem_type
            for view in each.views:
                name = view.ids if value.name == each.ids else view.weights[value.name]
                graph.input.append(helper.make_tensor_value_info(name, kind, [_bags(each, given), *extents]))
            continue
        here = [(each, view.lengths) for each in ragged if each.bounds == value.name for view in each.views]
        lengths = (
            helper.make_tensor_value_info(name, TensorProto.INT64, [_bags(each, given), 1, 1]) for each, name in here
        )
        graph.input.extend(lengths if here else [value])


def _bags(ragged: RaggedInput, given: Sequence[onnx.ValueInfoProto]) -> int | str:
    """Their number, or its name."""
    dim = next(v for v in given if v.name == ragged.bounds).type.tensor_type.shape.dim[0]
    if dim.HasField("dim_value"):
        return int(dim.dim_value) // ragged.features - (ragged.form == "ends")
    return dim.dim_param or "bags"

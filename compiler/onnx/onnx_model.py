"""Loads an ONNX file: `load_model` checks it, simplifies it and infers every shape.

ONNX Runtime at its basic level folds batch norms and constants and stays in standard operators. Tables (large
constants that only Gather reads) never pass through it: they stay mapped from the file that holds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from veltair.compiler.features.from_onnx.column_extraction import ExtractedColumns, extract_columns
from veltair.compiler.features.from_onnx.column_reader import TEXTUAL
from veltair.compiler.onnx.allowed_operators import STANDARD, check_operator_domains, check_written_operators
from veltair.compiler.onnx.bags.bag_inputs import BagRoom, give_bags_rows
from veltair.compiler.onnx.branches import tensors_of_sequences
from veltair.compiler.onnx.constants import all_nodes, check_tensors, extract_tables, state_constants
from veltair.compiler.onnx.dimensions.batch import greatest_batch, has_open_batch
from veltair.compiler.onnx.dimensions.fixed_extent import FixedExtent, open_axes, open_surplus
from veltair.compiler.onnx.dimensions.given_dimensions import NOTHING_GIVEN, GivenDimensions
from veltair.compiler.onnx.folding.shape_folding import fold_shapes
from veltair.compiler.onnx.folding.sized_outputs import OUTPUT_ROOM, OutputRoom
from veltair.compiler.onnx.group_norms import spell_group_norms
from veltair.compiler.onnx.half_floats import has_half_floats, state_looked_up_rows, widen_half_floats
from veltair.compiler.onnx.limits import bounded_memory, check_memory, check_nodes, check_sizes, held_bytes
from veltair.compiler.onnx.node_attributes import name_nodes
from veltair.compiler.onnx.node_checks import check_loops, check_values, sort_nodes
from veltair.compiler.onnx.quantised.block_weights import unpack_block_weights
from veltair.compiler.onnx.quantised.nodes import (
    QuantisedConstant,
    find_quantised,
    separate_quantisation,
    widen_four_bits,
)
from veltair.compiler.onnx.quantised.tables import extract_quantised_tables
from veltair.compiler.onnx.recurrent_layout import put_steps_first
from veltair.compiler.onnx.scikit_learn.class_labels import number_labels
from veltair.compiler.onnx.scikit_learn.class_maps import give_tensors
from veltair.compiler.onnx.scikit_learn.text_encoders import spell_encoders
from veltair.compiler.onnx.shape_inference import infer_shapes, inferable
from veltair.compiler.onnx.simplify import describe_error, save_model, simplify_model
from veltair.errors import ModelError
from veltair.machine.scratch import ScratchFolder
from veltair.profiles.artifact.manifest import Port, shape_at
from veltair.profiles.artifact.ragged_inputs import RaggedInput
from veltair.types import TensorSpec

IR_VERSION = 13  # the newest that ONNX Runtime reads
NEWEST_OPSET = 26  # likewise
OPSET = 17  # older models are converted up to it
PORT_TYPES = {"float32", "float64", "float16", "bool", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))}
RUN_ELSEWHERE = frozenset({"ai.onnx.ml", "com.microsoft"})  # domains that ONNX Runtime has beside standard ONNX
PROTOBUF_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A model ready to be lowered. Shapes are those of ONNX; -k stands for k times the batch. ::

    model = load_model(Path("resnet50.onnx"), max_batch=8)
    graph = lower(model, "fp32").graph
    """

    path: Path
    name: str
    opset: int
    nodes: tuple[onnx.NodeProto, ...]  # topological order, every one named
    values: Mapping[str, TensorSpec]  # every tensor, constants included
    initializers: Mapping[str, NDArray[Any]]  # a table of float32 that the file stores narrower: its stored rows
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]  # the tensors that are computed: of one of `sized`, its values and its extents
    max_batch: int
    metadata: Mapping[str, str]
    columns: ExtractedColumns | None = None  # feature columns that the file's own operators compute
    mergeable: bool = True  # whether queries of different clients may share a batch (`shape_folding`)
    other_opsets: Mapping[str, int] = field(default_factory=dict)  # of the domains RUN_ELSEWHERE, by domain
    sized: Mapping[str, Port] = field(default_factory=dict)  # outputs whose extents values decide, as clients see them
    quantised: Mapping[str, QuantisedConstant] = field(default_factory=dict)  # initializers that were 8-bit integers
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # of inputs, where no Gather tells them
    ragged: tuple[RaggedInput, ...] = ()  # how clients give some of the inputs: as bags that differ in length
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # that numbers stand for, by output of text
    halves: bool = False  # whether the file computes in floats of 16 bits, which have 32 here

    @property
    def stated_qos_ns(self) -> int:
        """The target that the file states as `veltair.qos_ms`; 0 where it states nothing usable."""
        try:
            stated_ms = float(self.metadata.get("veltair.qos_ms", "0"))
        except ValueError:
            return 0
        return round(stated_ms * 1e6) if 0 < stated_ms < 1e9 else 0


def load_model(
    path: Path,
    max_batch: int | None = None,
    *,
    fallback: bool = True,
    output_room: OutputRoom = OUTPUT_ROOM,
    fixed: FixedExtent | None = None,
    bag_room: BagRoom | None = None,
    given: GivenDimensions = NOTHING_GIVEN,
) -> OnnxModel:
    """Read, check and simplify a model.

    max_batch: limits a symbolic first dimension, and has no effect on models without one.
    fallback: whether ONNX Runtime may run nodes whose shapes cannot be told.
    output_room: elements for each sample of an output whose extents values decide.
    fixed: the extent of the dimension that `given` leaves to queries.
    bag_room: ids of a bag, at most, by the input that holds them; of "" for all others.
    given: what is said of dimensions that the file leaves open.

    Only a temporary folder is written. Raises ModelError, which names the tensor or node and what was expected.
    """
    proto = parse_model(path, given)
    axes = open_axes(proto, fixed.name) if fixed else {}
    surplus = open_surplus(proto, fixed.name, path) if fixed else {}
    if fixed:
        fixed.fix(proto, path)
    check_nodes(proto, path)
    labels = number_labels(proto, path)
    widen_four_bits(proto, path)
    name_nodes(proto)
    spell_encoders(proto)
    spell_group_norms(proto.graph)
    bags = give_bags_rows(proto, bag_room or {}, path)
    if fixed and bags.ragged:
        raise ModelError(f"{path}: has bags that differ in length; expected no dimension {fixed.name} beside the batch")
    whole = fixed is not None and fixed.exact  # ONNX Runtime runs what looks rows up, and takes tables as they are
    halves = not whole and has_half_floats(proto)
    if halves:
        state_looked_up_rows(proto.graph)
    stored = {} if whole else extract_quantised_tables(proto, path, frozenset(TEXTUAL))
    columns = extract_columns(proto, path, fallback=fallback)
    check_nodes(proto, path, columns_taken=True)
    domains = {*STANDARD, "ai.onnx.ml", *(RUN_ELSEWHERE if fallback else ())}  # our kernels take much of that one
    check_written_operators(proto, domains, path)
    check_tensors(proto, path)
    held = held_bytes(proto) * (2 if halves else 1)  # as they will be
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    with ScratchFolder("import") as folder, bounded_memory(held, path):
        tables = extract_tables(proto, path, folder)
        if halves:
            tables = widen_half_floats(proto, tables, folder)
        dynamic = has_open_batch(proto, path)
        proto = up_to_date(proto, path, folder)
        if fixed:
            fixed.cut_inputs(proto, axes, surplus)
            fixed.read_last(proto, axes, path)
        put_steps_first(proto.graph)
        limit = greatest_batch(metadata, max_batch, path) if dynamic else 1
        _check_sizes(proto, limit, held, path)
        simple, constants = simplify_model(proto, path, folder)
        check_loops(simple.graph, path)
        _check_sizes(simple, limit, held, path)
        name_nodes(simple)
        tensors_of_sequences(simple.graph, constants)
        unpack_block_weights(simple.graph, constants)
        separate_quantisation(simple.graph, constants)
        quantised = find_quantised(simple.graph, constants)
        check_operator_domains(simple, domains, path)
        folded = fold_shapes(
            simple, constants | tables, dynamic, limit, path, fallback=fallback, output_room=output_room
        )
        computed = folded.values.keys() - folded.constants.keys()
        check_memory({name: shape_at(folded.values[name].shape, limit) for name in sorted(computed)}, path)
    if columns is not None and columns.batch is not None and not folded.mergeable:
        raise ModelError(
            f"{path}: its inputs fix the batch to {columns.batch}, and what it computes mixes the rows of a batch; "
            "expected a model with columns that computes each row by itself"
        )
    constants, values = folded.constants, folded.values
    constants |= {name: rows for name, rows in stored.items() if name in values}
    check_values(folded.nodes, values, constants, path)
    ports = (values[i.name] for i in simple.graph.input if i.name not in constants)
    inputs = tuple(spec for spec in ports if 0 not in spec.shape)  # nobody has to give what has no elements
    outputs = tuple(values[name] for name in folded.outputs)
    for spec in (*inputs, *outputs):
        if spec.dtype not in PORT_TYPES:
            raise ModelError(
                f"{path}: tensor {spec.name!r} is {spec.dtype}; expected float32, float64, float16, bool or an integer"
            )
        if any(d < 0 for d in spec.shape[1:]):
            raise ModelError(
                f"{path}: tensor {spec.name!r} has shape {spec.shape}, where -k is k times the batch; expected that in "
                "its first dimension alone"
            )
    opset = next(o.version for o in simple.opset_import if o.domain in STANDARD)
    others = {o.domain: o.version for o in simple.opset_import if o.domain in RUN_ELSEWHERE}
    bounds = fixed.bounds if fixed else bags.bounds
    own = limit, metadata, columns, folded.mergeable, others, folded.sized, quantised, bounds, bags.ragged, labels
    return OnnxModel(path, path.stem, opset, tuple(folded.nodes), values, constants, inputs, outputs, *own, halves)


def _check_sizes(proto: onnx.ModelProto, batch: int, held: int, path: Path) -> None:
    """Following values takes time and memory that sizes may forbid: it writes out a `Range` of 10^12 numbers."""
    for values_too in (False, True):
        check_sizes(proto, infer_shapes(proto, batch, path, values_too=values_too), held, path)


def parse_model(path: Path, given: GivenDimensions = NOTHING_GIVEN) -> onnx.ModelProto:
    """The protobuf of a file, with given extents; external data is not read yet. Raises ModelError."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise ModelError(f"{path}: not a file; expected an ONNX model")
        if size > PROTOBUF_BYTES:
            raise ModelError(f"{path}: {size} bytes; an ONNX file holds at most 2 GB, the rest is external data")
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    try:
        proto = onnx.load_model_from_string(content)
    except Exception:
        raise ModelError(f"{path}: not an ONNX file (no ModelProto could be read from it)") from None
    graph = proto.graph
    if not graph.node or not graph.output or not proto.opset_import:
        raise ModelError(f"{path}: not an ONNX model (it has no nodes, no output or no operator set)")
    if not any(entry.domain in STANDARD for entry in proto.opset_import):
        # Trees and pipelines may have operators of ai.onnx.ml alone.
        proto.opset_import.append(onnx.helper.make_opsetid("", OPSET))
    sort_nodes(graph, path)
    state_constants(graph)
    give_tensors(proto, path)
    given.apply(proto, path)
    return proto


def up_to_date(proto: onnx.ModelProto, path: Path, folder: Path) -> onnx.ModelProto:
    """Check the model with ONNX's own checker, convert it to opset 17 or newer, and drop constants from its inputs.

    Large constants move to the folder.
    """
    version = next(o.version for o in proto.opset_import if o.domain in STANDARD)
    try:
        whole = len(inferable(proto.graph)) == len(proto.graph.node)
        if whole and any(not output.type.tensor_type.HasField("shape") for output in proto.graph.output):
            proto = onnx.shape_inference.infer_shapes(proto)
        with _stated_outputs(proto.graph):
            onnx.checker.check_model(str(save_model(proto, folder / "checked.onnx")))
        if version < OPSET:
            proto = onnx.version_converter.convert_version(proto, OPSET)
        elif NEWEST_OPSET < version <= onnx.defs.onnx_opset_version():
            _call_older(proto, version)
    except Exception as error:
        raise ModelError(f"{path}: {describe_error(error)}") from None
    # Below 4, a constant had to be an input as well; ONNX Runtime refuses versions newer than itself, whatever is used.
    proto.ir_version = min(max(proto.ir_version, 8), IR_VERSION)
    constants = {t.name for t in proto.graph.initializer}
    inputs = [i for i in proto.graph.input if i.name not in constants]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    return proto


@contextmanager
def _stated_outputs(graph: onnx.GraphProto) -> Iterator[None]:
    """Within the block, every output has a shape: the checker refuses one without, and compares none."""
    tensors = [output.type.tensor_type for output in graph.output if output.type.HasField("tensor_type")]
    unstated = [tensor for tensor in tensors if not tensor.HasField("shape")]
    for tensor in unstated:
        tensor.shape.SetInParent()
    yield
    for tensor in unstated:
        tensor.ClearField("shape")


def _call_older(proto: onnx.ModelProto, version: int) -> None:
    """Name the newest operator set that ONNX Runtime knows, where none of the operators has changed since."""
    kinds = {(node.op_type, "") for node in all_nodes(proto.graph.node) if node.domain in STANDARD}
    if all(onnx.defs.get_schema(op, version, domain).since_version <= NEWEST_OPSET for op, domain in kinds):
        for entry in proto.opset_import:
            if entry.domain in STANDARD:
                entry.version = NEWEST_OPSET

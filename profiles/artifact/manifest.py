"""The schema of a model artifact's manifest, which describes a compiled model (`manifest.json`). Needs no TVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from veltair.profiles.artifact.dynamic_dimension import EXTENT_INPUT, DynamicDimension
from veltair.profiles.artifact.ragged_inputs import RaggedInput
from veltair.types import TensorSpec

SCHEMA = 1
ALIGNMENT = 64  # bytes; what TVM's kernels assume of every tensor
ONNX_LAYER = "onnxruntime"  # the operator of a layer that ONNX Runtime runs
SLACK_BYTES = 8192  # kernels may read a register tile past the end of a tensor, never write there
LevelSource: TypeAlias = Literal["measured", "modelled"]
Storage: TypeAlias = Literal["fp32", "fp16", "int8"]  # of the rows of a table; each row of bytes has a scale and a bias
_ITEM_SIZES = {1: "bool int8 uint8", 2: "int16 uint16 float16", 4: "int32 uint32 float32", 8: "int64 uint64 float64"}
ITEM_BYTES = {dtype: size for size, names in _ITEM_SIZES.items() for dtype in names.split()}


def shape_at(shape: Sequence[int], batch: int) -> tuple[int, ...]:
    """The shape for a query of this batch: a dimension -k is k times the batch.

    >>> shape_at((-1, 3, -4), 8)
    (8, 3, 32)
    """
    return tuple(-dim * batch if dim < 0 else dim for dim in shape)


class Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor that kernels take. A dimension -k stands for k times the batch of the query.

    >>> Buffer("arena", "float32", (-1, 16), 0).bytes_at(batch=4)
    256
    """

    kind: Literal["input", "output", "weight", "arena"]
    dtype: str  # numpy name; bfloat16 travels as uint16
    shape: tuple[int, ...]
    offset: int  # bytes into weights.bin or the arena; the position among the model's input tensors or outputs

    def at(self, batch: int) -> tuple[int, ...]:
        """The shape for a query of this batch."""
        return shape_at(self.shape, batch)

    def bytes_at(self, batch: int) -> int:
        """The size in bytes for a query of this batch."""
        size = ITEM_BYTES[self.dtype]
        for dim in self.at(batch):
            size *= dim
        return size


class PackedLocation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where an input begins in a packed buffer: at `start` times the batch.

    >>> PackedLocation(buffer=0, start=12)
    PackedLocation(buffer=0, start=12)
    """

    buffer: int = msgspec.field(name="bank")  # index into Manifest.packed_buffers
    start: int


class Port(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output of the model. `low` and `high` bound integer ids, both inclusive.

    A raw feature lies in packed buffers (see `input_layout`): a number in one, the ends of strings in one and their
    bytes in another. An extent of 0 is one that the values of the inputs decide (see `output_layout`).

    >>> Port("x", "float32", (-1, 3)).at(batch=2)
    (2, 3)
    """

    name: str
    dtype: str  # numpy name, or "string"
    shape: tuple[int, ...]  # first dimension -1: the batch
    low: int | None = None
    high: int | None = None
    locations: tuple[PackedLocation, ...] = msgspec.field(default=(), name="places")
    max_bytes: int = 0  # of strings: space for the text of a row, on average over a batch
    separator: str = ""  # of strings: what splits one into tokens
    labels: tuple[str, ...] = ()  # of an output of text: what the numbers stand for that kernels give
    room: int = 0  # of an output whose extents values decide: the elements for which there is space, for each sample

    def at(self, batch: int) -> tuple[int, ...]:
        """The shape for a query of this batch."""
        return shape_at(self.shape, batch)

    def spec(self) -> TensorSpec:
        """The name, type and shape alone."""
        return TensorSpec(self.name, self.dtype, self.shape)


class VersionEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One code version of a layer, with its latencies.

    >>> version = VersionEntry("conv_v1", (0, 1), 65536, 64, point={"tile": 8}, latency_ns=(((100, 60),),))
    >>> version.latency_ns[0][0][1]  # the first batch and level, on 2 cores
    60
    """

    symbol: str
    arguments: tuple[int, ...]  # indices into Manifest.buffers, in the kernel's order
    block_size: int  # bytes of working set of one parallel task
    parallelism: int
    point: dict[str, int | str]  # where in its design space this version lies
    latency_ns: tuple[tuple[tuple[int, ...], ...], ...]  # (batches, levels, cores)
    origin: str = ""  # how the search came by the point: searched, a shipped record, another workload's best, …


class LayerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One layer with all its code versions.

    >>> LayerEntry("fc", "matmul", inputs=(0,), outputs=(1,), flops=(128,), bytes=(512,), versions=()).op
    'matmul'
    """

    name: str
    op: str
    inputs: tuple[int, ...]  # buffer indices of activations, weights excluded
    outputs: tuple[int, ...]
    flops: tuple[int, ...]  # (batches)
    bytes: tuple[int, ...]  # (batches)
    versions: tuple[VersionEntry, ...]
    note: str = ""  # a remark for the reader of `veltair inspect`


class ExpectedOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an output holds for the inputs of `expected_answer.draw_inputs`, as far as it was kept.

    >>> ExpectedOutput(values=(0.5, -0.25), largest=0.5).largest
    0.5
    """

    values: tuple[float | None, ...]  # at evenly spaced positions; null: not compared, see `make_answer`
    largest: float | None  # the greatest magnitude in the whole output; null as above


class ExpectedAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the artifact computed at batch 1 when it was compiled; whoever loads it compares (`expected_answer`).

    >>> ExpectedAnswer(tolerance=1e-3, outputs=(ExpectedOutput((0.5,), 0.5),)).tolerance
    0.001
    """

    tolerance: float  # allowed error over the output's largest value; integers are exact
    outputs: tuple[ExpectedOutput, ...]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A compiled model: its layers, tensors, latencies and the digests of its other files.

    ::

        manifest = msgspec.json.decode(Path("artifacts/mlp/manifest.json").read_bytes(), type=Manifest)
        manifest.layers[0].versions[0].latency_ns[0][0][3]  # the smallest batch, alone, on 4 cores
    """

    schema: int
    model: str
    precision: Literal["fp32", "bf16"]
    tolerance: float  # relative error against the fp32 reference that `verify` allows
    qos_ns: int
    target: dict[str, str | int]  # the TVM target that the kernels were built for
    features: tuple[str, ...]  # instruction sets that the kernels use
    max_batch: int
    batches: tuple[int, ...]  # batch sizes that were timed, ascending; the last is max_batch
    levels: tuple[float, ...]  # interference levels that were timed, ascending from 1.0
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    buffers: tuple[Buffer, ...]
    arena_bytes: int  # zeroed once when it is allocated: halos of padded activations rely on it
    layers: tuple[LayerEntry, ...]
    environment: dict[str, str]
    source_digest: str  # sha256 of the ONNX file
    kernels_digest: str
    weights_digest: str
    calibrated: int = 0  # samples by which the compiler chose scales of 8-bit integers; 0: it chose none
    level_sources: tuple[LevelSource, ...] = ()  # of each level; none stands for all measured
    packed_buffers: tuple[Port, ...] = msgspec.field(default=(), name="banks")  # one-dimensional
    mergeable: bool = True  # whether queries of different clients may share a batch
    tables: Storage = "fp32"  # the storage that was asked for float tables that are looked up
    tables_error: float = 0.0  # the greatest of a number in them, over the largest magnitude in its table
    columns_digest: str = ""  # of the file with the feature columns; none where the model has no columns
    answer: ExpectedAnswer | None = None  # null: compiled by a version that kept none, so that nothing is compared
    given: tuple[str, ...] = ()  # what was said of dimensions that the file leaves open, as `compile --dim` takes it
    dimension: DynamicDimension | None = None  # the one that queries choose beside the batch
    ragged: tuple[RaggedInput, ...] = ()  # how clients give some of the inputs: as bags that differ in length
    buckets: tuple[Manifest, ...] = ()  # the model at the smaller extents of `dimension`; this manifest has the largest

    def private_bytes(self, workers: int) -> int:
        """What each worker has of its own: the arena, and in sessions of ONNX Runtime copies of the models that these
        run, one for each power of two of cores, of which there are half as many as workers."""
        models = [
            self.buffers[index].bytes_at(1)
            for layer in self.layers
            if layer.op == ONNX_LAYER
            for index in layer.versions[0].arguments
            if self.buffers[index].kind == "weight"
        ]
        own = self.arena_bytes + sum(models) * max(1, workers // 2).bit_length()
        return own + sum(bucket.private_bytes(workers) for bucket in self.buckets)

    @property
    def every_bucket(self) -> tuple[Manifest, ...]:
        """The model at each extent of `dimension`, the largest first; the model alone where it has none."""
        return (self, *self.buckets)

    @property
    def client_inputs(self) -> tuple[Port, ...]:
        """The inputs that clients give. The dimension that they choose has its largest extent; one that differs from
        query to query, as that of the ids of all bags, is 0."""
        if not self.ragged:
            return tuple(port for port in self.inputs if port.name != EXTENT_INPUT)
        of = {name: (each, client) for each in self.ragged for name, client in each.rows.items()}
        found: dict[str, Port] = {}
        for port in self.inputs:
            if port.name in of:
                each, name = of[port.name]
                if name == each.bounds:
                    bags = max(port.shape[0], 0) * each.features
                    plain = each.form != "ends" and each.features == 1  # as many as there are samples
                    port = Port(
                        name,
                        each.bounds_dtype,
                        (port.shape[0] if plain else bags + (each.form == "ends") if bags else 0,),
                    )
                elif each.features == 1:
                    port = msgspec.structs.replace(port, shape=(0,))
                else:  # whose range depends on where it is
                    port = msgspec.structs.replace(port, name=name, shape=(0,), low=None, high=None)
            found.setdefault(port.name, port)
        return tuple(found.values())

    def client_shape(self, port: Port) -> tuple[int, ...]:
        """The shape of an input or output with -1 for whatever varies."""
        shape = tuple(dim if dim > 0 else -1 for dim in port.shape)
        return shape if self.dimension is None else self.dimension.client_shape(port.name, shape)

    @property
    def input_tensors(self) -> tuple[Port, ...]:
        """The tensors that a query's inputs lie in: inputs that have one each, then the packed buffers."""
        return (*(port for port in self.inputs if not port.locations), *self.packed_buffers)

    @property
    def output_tensors(self) -> tuple[Port, ...]:
        """The tensors that kernels write: of an output of text numbers, and of one with `room` its values and its
        extents, in place of it."""
        ports = tuple(numbered_output(port) if port.labels else port for port in self.outputs)
        if not self.values_decide_extents:
            return ports
        batch = -1 if any(port.shape[:1] == (-1,) for port in self.inputs) else 1
        return tuple(each for port in ports for each in (sized_output(port, batch) if port.room else (port,)))

    @property
    def values_decide_extents(self) -> bool:
        """Whether some output has other extents for other values of the inputs."""
        return any(port.room for port in self.outputs)

    @property
    def fixed_sizes(self) -> bool:
        """Whether the inputs and outputs of all queries of a batch have the same shapes and bytes, as clients see
        them."""
        texts = any(port.labels for port in self.outputs)
        return self.dimension is None and not self.values_decide_extents and not self.ragged and not texts


def labelled_output(port: Port, labels: tuple[str, ...]) -> Port:
    """An output whose numbers stand for these labels, as clients see it; without any, as it is.

    >>> labelled_output(Port("label", "int64", (-1,)), ("no", "yes")).dtype
    'string'
    """
    return msgspec.structs.replace(port, dtype="string", labels=labels) if labels else port


def numbered_output(port: Port) -> Port:
    """The numbers of an output of text, as kernels give them: the opposite of `labelled_output`."""
    return msgspec.structs.replace(port, dtype="int64", labels=())


def sized_output(port: Port, batch: int) -> tuple[Port, Port]:
    """The tensors that hold an output whose extents values decide: its values, then zeros, and its extents.

    batch: as a first dimension, -1 or 1.

    >>> [(each.name, each.shape) for each in sized_output(Port("boxes", "float32", (0, 4), room=400), batch=-1)]
    [('boxes/values', (-1, 400)), ('boxes/extents', (2,))]
    """
    values = Port(f"{port.name}/values", port.dtype, (batch, port.room))
    return values, Port(f"{port.name}/extents", "int64", (len(port.shape),))

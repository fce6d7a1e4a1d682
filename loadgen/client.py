"""The interface of inference clients, and the types that it uses: model metadata, payloads, responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Literal, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SharedTensor:
    """A tensor in a region of shared memory.

    >>> SharedTensor((1, 4), "region", offset=64, size_bytes=16).parameters["shared_memory_offset"]
    64
    """

    shape: tuple[int, ...]
    region: str
    offset: int
    size_bytes: int

    @property
    def parameters(self) -> dict[str, str | int]:
        """The parameters by which the protocol refers to it."""
        return {
            "shared_memory_region": self.region,
            "shared_memory_offset": self.offset,
            "shared_memory_byte_size": self.size_bytes,
        }


Array: TypeAlias = NDArray[np.generic]  # strings as objects, each of them bytes
Tensors: TypeAlias = dict[str, Array]
Payload: TypeAlias = Mapping[str, Array | SharedTensor]


class Outcome(IntEnum):
    """What became of a query."""

    UNSENT = 0
    OK = 1
    REFUSED = 2  # by the server: 503/UNAVAILABLE, RESOURCE_EXHAUSTED, 504/DEADLINE_EXCEEDED
    ERROR = 3  # another status, a broken response, a broken connection, no response in time


@dataclass(frozen=True, slots=True)
class Response:
    """The end of a query, as the client saw it.

    >>> Response(Outcome.REFUSED, "503 queue full").outcome.name
    'REFUSED'
    """

    outcome: Outcome
    detail: str = ""  # why not OK


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """An input of a served model.

    >>> TensorMetadata("x", "FP32", (-1, 3, 224, 224)).datatype
    'FP32'
    """

    name: str
    datatype: str  # of the protocol: "FP32", "INT64", …
    shape: tuple[int, ...]  # -1: dynamic


class RawFeature(msgspec.Struct, frozen=True):
    """An input that the server makes columns from: any integer, or text.

    >>> RawFeature(max_bytes=64, separator=";").separator
    ';'
    """

    max_bytes: Annotated[int, msgspec.Meta(ge=1)] = 16  # strings: mean room for the text of a row of a batch
    separator: Annotated[str, msgspec.Meta(max_length=1)] = ""  # strings: the character between tokens


@dataclass(frozen=True, slots=True)
class ChosenDimension:
    """A dimension beside the batch that each query chooses.

    >>> ChosenDimension("seq", low=1, high=512, axes={"ids": (1,)}).masks
    ()
    """

    name: str
    low: int  # both bounds are inclusive
    high: int
    axes: dict[str, tuple[int, ...]]  # by input
    masks: tuple[str, ...] = ()  # inputs of 0 and 1, with a 1 in each row
    surplus: dict[str, int] = field(default_factory=dict)  # by input: what its axes have more than the extent


class RaggedBags(msgspec.Struct, frozen=True):
    """Inputs that hold bags of ids, which differ in length.

    >>> RaggedBags(ids="ids", bounds="offsets", form="offsets", room=64).weights
    ()
    """

    ids: str
    bounds: str  # says which ids each bag has
    form: Literal["offsets", "ends", "lengths"]
    room: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]  # ids of a bag, at most
    weights: tuple[str, ...] = ()  # of each id one
    features: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1  # whose lengths lie one after the other


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What the server says of a model.

    >>> ModelMetadata("m", (TensorMetadata("ids", "INT64", (-1, 4)),), id_ranges={"ids": (0, 9)}).max_batch is None
    True
    """

    name: str
    inputs: tuple[TensorMetadata, ...]
    id_ranges: dict[str, tuple[int, int]] = field(default_factory=dict)  # input -> ids that it may hold, inclusive
    features: dict[str, RawFeature] = field(default_factory=dict)  # by input
    max_batch: int | None = None  # None: the server does not say
    dimension: ChosenDimension | None = None  # None: the server tells of none
    bags: tuple[RaggedBags, ...] = ()


class CallSettings(NamedTuple):
    """What it takes to make a client's infer calls by other means.

    >>> CallSettings("http", "::1", 8000, connections=4, timeout_s=10.0).port
    8000
    """

    protocol: Literal["grpc", "http"]
    host: str  # a numeric address, which has been connected to
    port: int
    connections: int
    timeout_s: float
    head: bytes = b""  # gRPC: the header block of each call


class InferenceClient(Protocol):
    """An inference client of either protocol. Only `send` is on the hot path.

    ::

        meta = await client.describe("resnet50")
        request = client.encode(meta, draw_payloads(meta, None, rng)[0])
        response = await client.send(request)
    """

    async def describe(self, model: str) -> ModelMetadata:
        """The model's metadata. Raises ConfigError when the server cannot be reached or does not serve the model."""

    def encode(self, meta: ModelMetadata, payload: Payload) -> bytes:
        """The whole infer request, which can be sent any number of times."""

    async def send(self, request: bytes, tenant: int = 0) -> Response:
        """Send a request of a tenant, over connections of its own, and wait for its end. Whatever happens is an
        outcome; only cancellation is raised."""

    async def close(self) -> None: ...

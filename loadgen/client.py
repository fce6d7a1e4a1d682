"""What the load generator knows of a served model and of an answer; what a client of either protocol offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor that lies in a region of shared memory."""

    shape: tuple[int, ...]
    region: str
    offset: int
    size_bytes: int

    @property
    def parameters(self) -> dict[str, str | int]:
        """As the protocol names them."""
        return {
            "shared_memory_region": self.region,
            "shared_memory_offset": self.offset,
            "shared_memory_byte_size": self.size_bytes,
        }


Array: TypeAlias = NDArray[np.generic]  # strings as objects, each of them bytes
Tensors: TypeAlias = dict[str, Array]
Payload: TypeAlias = Mapping[str, Array | PlacedTensor]


class Outcome(IntEnum):
    UNSENT = 0
    OK = 1
    REFUSED = 2  # the server said so: 503/UNAVAILABLE, RESOURCE_EXHAUSTED, 504/DEADLINE_EXCEEDED
    ERROR = 3  # everything else: other statuses, broken answers, broken connections, no answer in time


@dataclass(frozen=True, slots=True)
class Answer:
    outcome: Outcome
    detail: str = ""  # why not OK


@dataclass(frozen=True, slots=True)
class TensorMeta:
    name: str
    datatype: str  # of the protocol: "FP32", "INT64", …
    shape: tuple[int, ...]  # -1: dynamic


class Feature(msgspec.Struct, frozen=True):
    """An input that columns are made of: any integer, or text."""

    max_bytes: Annotated[int, msgspec.Meta(ge=1)] = 16  # of strings: room for a row's text, on average over a batch
    separator: Annotated[str, msgspec.Meta(max_length=1)] = ""  # of strings: what splits one into tokens


@dataclass(frozen=True, slots=True)
class ModelMeta:
    name: str
    inputs: tuple[TensorMeta, ...]
    id_ranges: dict[str, tuple[int, int]] = field(default_factory=dict)  # input -> ids that it may hold, inclusive
    features: dict[str, Feature] = field(default_factory=dict)  # by input
    max_batch: int | None = None  # None: not told


class Client(Protocol):
    """An inference client of which only `send` is on the hot path."""

    async def describe(self, model: str) -> ModelMeta:
        """Raises ConfigError when the server cannot be reached or does not serve the model."""

    def encode(self, meta: ModelMeta, payload: Payload) -> bytes:
        """The whole infer request, ready to be sent any number of times."""

    async def send(self, request: bytes) -> Answer:
        """Never raises but for cancellation: whatever happens to a query is an outcome."""

    async def close(self) -> None: ...

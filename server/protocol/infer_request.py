"""`InferRequest`: an inference request of the Open Inference Protocol v2, free of HTTP and of protobuf.

Decoders return an `InferRequest` whose tensors still hold the bytes that were received;
`tensor_values.tensor_values` turns one into numpy without a copy, or into strings. Whatever is wrong with the input
raises RequestError, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from veltair.errors import RequestError, UnsupportedError, quoted
from veltair.profiles.artifact.strings import Strings
from veltair.server.protocol.datatypes import Array

Parameter: TypeAlias = bool | int | float | str

# Parameters that ask for a feature that is not served, by their prefix.
_UNSUPPORTED = {"classification": "classification", "sequence_": "sequences"}
UNSUPPORTED_PREFIXES = tuple(_UNSUPPORTED)
_REGION, _SIZE, _OFFSET = (f"shared_memory_{part}" for part in ("region", "byte_size", "offset"))


class TensorLocation(msgspec.Struct, frozen=True):
    """Where in a registered region of the client's shared memory a tensor lies.

    >>> TensorLocation("tensors", offset=0, size_bytes=64).parameters
    {'shared_memory_region': 'tensors', 'shared_memory_byte_size': 64}
    """

    region: str
    offset: int
    size_bytes: int

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The location as the protocol writes it."""
        found: dict[str, Parameter] = {_REGION: self.region, _SIZE: self.size_bytes}
        if self.offset:
            found[_OFFSET] = self.offset
        return found


class NamedTensor(msgspec.Struct, frozen=True):  # a query may have a thousand: a dataclass takes five times as long
    """An input as it was received: raw little-endian bytes, their location, the numbers or strings of typed data, or
    Arrow's strings.

    >>> NamedTensor("x", "FP32", (1, 2), bytes(8)).shape
    (1, 2)
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview | Array | Strings | Sequence[bytes] | TensorLocation


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the client wants.

    >>> RequestedOutput("y", binary=True).location is None
    True
    """

    name: str
    binary: bool
    location: TensorLocation | None = None  # None: it comes with the response


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A decoded request, not yet validated.

    >>> x = NamedTensor("x", "FP32", (1, 2), bytes(8))
    >>> InferRequest("7", {"timeout": 5000}, (x,), outputs=()).binary_output
    False
    """

    id: str
    parameters: Mapping[str, Parameter]
    inputs: tuple[NamedTensor, ...]
    outputs: tuple[RequestedOutput, ...]  # none: all of them
    binary_output: bool = False  # for outputs that are not listed


def parse_tensor_location(where: str, parameters: Mapping[str, Any]) -> TensorLocation | None:
    """The shared memory that the parameters of an input or output name; None without any.

    Raises RequestError, which begins with `where`, and UnsupportedError for parameters that are not served.
    """
    refuse_unsupported(where, parameters)
    if not parameters.keys() & {_REGION, _SIZE, _OFFSET}:
        return None
    region = parameters.get(_REGION)
    if not isinstance(region, str):
        raise RequestError(f"{where}: {_REGION} is the name of a region, got {quoted(region)}")
    offset = _count_of_bytes(where, parameters, _OFFSET, 0)
    return TensorLocation(region, offset, _count_of_bytes(where, parameters, _SIZE, None))


def _count_of_bytes(where: str, parameters: Mapping[str, Any], key: str, default: int | None) -> int:
    value = parameters.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RequestError(f"{where}: {key} is a count of bytes, got {quoted(value, 40)}")
    return value


def refuse_unsupported(where: str, parameters: Mapping[str, Any]) -> None:
    """Raises UnsupportedError for a parameter that asks for a feature that this server does not have."""
    for key in parameters:
        for prefix, feature in _UNSUPPORTED.items():
            if key.startswith(prefix) and parameters[key]:
                raise UnsupportedError(f"{where}: {feature} ({key}) is not supported")

"""A query as the server gets it: one gRPC message with a tensor for each input, decoded, checked and packed.

Peers whose timed call takes a thousand tensors do this work inside their timing, so our kernels are timed with it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb

from veltair.profiles.artifact.input_layout import HasInputs, InputLayout
from veltair.profiles.artifact.strings import Strings
from veltair.profiles.runtime.executor import aligned_zeros
from veltair.server.protocol.datatypes import datatype_name
from veltair.server.protocol.grpc_codec import decode_request, parse_request
from veltair.server.protocol.tensor_values import tensor_bytes
from veltair.server.protocol.validation import InputValidator


def encode(model: HasInputs, values: Mapping[str, NDArray[Any] | Strings], batch: int) -> bytes:
    """The ModelInferRequest of a query, every tensor raw."""
    request = pb.ModelInferRequest(model_name="bench")
    for port in model.inputs:
        request.inputs.add(name=port.name, datatype=datatype_name(port.dtype), shape=port.at(batch))
        value = values[port.name]
        request.raw_input_contents.append(
            bytes(tensor_bytes(value if isinstance(value, Strings) else value.astype(port.dtype)))
        )
    encoded: bytes = request.SerializeToString()
    return encoded


class RequestReader:
    """One request, and the arrays that it is read into.

    A daemon decodes messages beyond `grpc_codec.INLINE_BYTES` in a process of its own; here all are decoded in this
    one, which is the same work.
    """

    def __init__(self, model: HasInputs, values: Mapping[str, NDArray[Any] | Strings], batch: int) -> None:
        self._layout, self._batch = InputLayout.of(model), batch
        self.arrays = [aligned_zeros(port.at(batch), port.dtype) for port in self._layout.tensors]
        self._validator = InputValidator("bench", model.inputs, batch)
        self._data = memoryview(encode(model, values, batch))
        self.read()

    def read(self) -> None:
        """Decodes, checks and packs the request, as a daemon does before a worker gets it."""
        request = decode_request(parse_request(self._data, len(self._data)))
        self._layout.fill(self.arrays, self._validator.validate(request.inputs), self._batch)

"""`InputValidator`: the one place where a request's tensors become what a model takes, or raise RequestError."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np

from veltair.errors import RequestError, quoted
from veltair.profiles.artifact.dynamic_dimension import DynamicDimension
from veltair.profiles.artifact.manifest import Manifest, Port
from veltair.profiles.artifact.ragged_inputs import RaggedInput, all_to_rows
from veltair.profiles.artifact.strings import Strings
from veltair.server.protocol.arrow_batch import ARROW_INPUT, read_record_batch
from veltair.server.protocol.datatypes import BYTES, DTYPES, Array, Tensor, datatype_name
from veltair.server.protocol.infer_request import UNSUPPORTED_PREFIXES, NamedTensor, Parameter, RequestedOutput
from veltair.server.protocol.tensor_values import tensor_values
from veltair.types import DEFAULT_PRIORITY_LEVEL, PRIORITY_LEVELS

MICROSECOND_NS = 1000
MAX_TIMEOUT_US = 24 * 3600 * 1_000_000
MAX_LISTED = 32  # names of inputs in an error
KNOWN_PARAMETERS = frozenset(
    ("timeout", "priority", "tenant", "veltair_trace", "binary_data_output", "triton_enable_empty_final_response")
)  # of a request
WARNING_PARAMETER = "veltair_warning"  # of a response
MOST_NAMED = 8  # parameters in a warning


class _ExpectedInput(NamedTuple):
    """What one input must be, computed once for all queries."""

    port: Port
    name: str
    datatype: str
    dtype: np.dtype[Any] | None  # of numbers whose raw bytes are used unchanged
    row_shape: tuple[int, ...]  # the shape behind the batch
    row_bytes: int  # 0 where there is no batch
    bounded: bool
    extents: tuple[tuple[int, int], ...]  # the least and the greatest of each dimension
    shape: str  # the same in messages


class InputValidator:
    """Checks the inputs of one tenant's requests.

    >>> validator = InputValidator("mlp", [Port("x", "float32", (-1, 2))], max_batch=8)
    >>> validator.validate([NamedTensor("x", "FP32", (1, 2), bytes(8))])
    {'x': array([[0., 0.]], dtype=float32)}
    """

    @classmethod
    def of(cls, model: str, manifest: Manifest) -> Self:
        """What checks the inputs of a model's clients. `model` as below."""
        return cls(
            model, manifest.client_inputs, manifest.max_batch, manifest.dimension, manifest.ragged, manifest.inputs
        )

    def __init__(
        self,
        model: str,
        ports: Sequence[Port],
        max_batch: int,
        dimension: DynamicDimension | None = None,
        ragged: Sequence[RaggedInput] = (),
        inputs: Sequence[Port] = (),
    ) -> None:
        """`model` is the name that errors begin with. `dimension`: one that queries choose beside the batch. `ragged`:
        bags that some of the ports hold. `inputs`: those of the kernels, with the ranges of their ids."""
        self.ports, self._dimension, self._ragged = tuple(ports), dimension, tuple(ragged)
        self._model, self._ranges = model, {port.name: (port.low, port.high) for port in inputs} if ragged else {}
        self._names = {port.name for port in ports}
        self._row_shapes = {port.name: port.shape[1:] for port in ports if port.shape[:1] == (-1,)}
        bags = {name: extents for each in ragged for name, extents in each.open_extents(max_batch).items()}
        self._expected = tuple(_expected_input(port, max_batch, dimension, bags) for port in ports)

    def validate(self, tensors: Sequence[NamedTensor]) -> dict[str, Tensor]:
        """The values by input name: of the model's dtypes and shapes, of one batch, every id within its range. Of bags
        that differ in length, the values are those that kernels read.

        Raises RequestError.
        """
        if len(tensors) == 1 and tensors[0].name == ARROW_INPUT and ARROW_INPUT not in self._names:
            tensors = self._columns(tensors[0])
        model, received = self._model, {tensor.name: tensor for tensor in tensors}
        self._refuse_other_names(received, tensors)
        validated: dict[str, Tensor] = {}
        batch, first = 0, ""  # and the input that set it
        for port, name, datatype, dtype, row_shape, row_bytes, bounded, extents, wanted in self._expected:
            tensor = received.get(name)
            if tensor is None:
                raise RequestError(f"{model}: input {name!r} is missing; it takes {_list_names(self.ports)}")
            shape, data = tensor.shape, tensor.data
            if (  # nearly all of a thousand: numbers as raw bytes, of the batch that the first one had
                dtype is not None
                and batch
                and tensor.datatype == datatype
                and shape[:1] == (batch,)
                and shape[1:] == row_shape
                and isinstance(data, (bytes, memoryview))
                and len(data) == batch * row_bytes
            ):
                values: Tensor = np.frombuffer(data, dtype).reshape(shape)
            else:
                if tensor.datatype != datatype:
                    raise RequestError(f"{model}: input {name!r} is {datatype}, got {quoted(tensor.datatype, 40)}")
                if not _fits(shape, extents):
                    got = ", ".join(map(str, shape[:16])) + (", …" if len(shape) > 16 else "")
                    raise RequestError(f"{model}: input {name!r} has shape [{wanted}], got [{got}]")
                if port.shape[:1] == (-1,):
                    batch, first = (batch, first) if batch else (shape[0], name)
                    if shape[0] != batch:
                        raise RequestError(f"{model}: input {name!r} has batch {shape[0]}, {first!r} has {batch}")
                values = tensor_values(tensor)
            if bounded and not isinstance(values, Strings):
                _check_range(model, port, values)
            validated[name] = values
        if self._dimension is not None:
            self._dimension.extent_of(model, {name: received[name].shape for name in validated})
            self._dimension.check_masks(model, validated)
        return all_to_rows(model, self._ragged, validated, batch, self._ranges) if self._ragged else validated

    def _columns(self, tensor: NamedTensor) -> list[NamedTensor]:
        """The inputs in a record batch, of the model's shapes. Columns that the model does not have are refused."""
        if tensor.datatype != "UINT8":
            raise RequestError(f"{self._model}: input {ARROW_INPUT!r} is UINT8, got {quoted(tensor.datatype, 40)}")
        values = tensor_values(tensor)
        assert not isinstance(values, Strings)  # of datatype BYTES
        found = []
        for column in read_record_batch(np.ascontiguousarray(values).reshape(-1).data):
            expected = self._row_shapes.get(column.name, ())
            if expected != column.shape[1:] and math.prod(expected) == column.shape[1]:
                column = msgspec.structs.replace(column, shape=(column.shape[0], *expected))
            found.append(column)
        return found

    def _refuse_other_names(self, received: Mapping[str, NamedTensor], tensors: Sequence[NamedTensor]) -> None:
        """Raises RequestError for a name that comes twice or that the model does not have."""
        if len(received) != len(tensors):
            seen: set[str] = set()
            for tensor in tensors:
                if tensor.name in seen:
                    raise RequestError(f"{self._model}: input {quoted(tensor.name)} is given twice")
                seen.add(tensor.name)
        if not received.keys() <= self._names:
            unknown = next(name for name in received if name not in self._names)
            raise RequestError(f"{self._model}: no input {quoted(unknown)}; it takes {_list_names(self.ports)}")


def _expected_input(
    port: Port, max_batch: int, dimension: DynamicDimension | None, bags: Mapping[str, tuple[int, int]]
) -> _ExpectedInput:
    """`bags`: the least and the greatest extent of ports of bags, where it is 0."""
    datatype, row_shape = datatype_name(port.dtype), port.shape[1:]
    raw = datatype not in (BYTES, "BOOL") and port.shape[:1] == (-1,)  # the bytes of a BOOL are checked
    dtype = DTYPES[datatype] if raw else None
    row_bytes = math.prod(row_shape) * dtype.itemsize if dtype is not None else 0
    bounded = port.low is not None or port.high is not None
    bounds, chosen = (0, 0), tuple[int, ...]()
    if dimension:
        more, chosen = dimension.surplus.get(port.name, 0), dimension.axes.get(port.name, ())
        bounds = dimension.low + more, dimension.high + more
    extents, texts = list[tuple[int, int]](), list[str]()
    for axis, dim in enumerate(port.shape):
        open_to = bags.get(port.name, (0, 0)) if dim == 0 else (1, max_batch) if dim < 0 else (dim, dim)
        low, high = bounds if axis in chosen else open_to
        extents.append((low, high))
        texts.append(f"{low}…{high}" if axis in chosen or dim <= 0 else str(dim))
    return _ExpectedInput(
        port, port.name, datatype, dtype, row_shape, row_bytes, bounded, extents=tuple(extents), shape=", ".join(texts)
    )


def _list_names(ports: Sequence[Port]) -> str:
    listed = ", ".join(port.name for port in ports[:MAX_LISTED])
    return listed if len(ports) <= MAX_LISTED else f"{listed}, … ({len(ports)} in all)"


def _fits(shape: tuple[int, ...], extents: Sequence[tuple[int, int]]) -> bool:
    return len(shape) == len(extents) and all(low <= n <= high for n, (low, high) in zip(shape, extents, strict=True))


def _check_range(model: str, port: Port, values: Array) -> None:
    low, high = port.low, port.high
    if (low is None and high is None) or not values.size:
        return
    if low == 0 and high is not None and values.dtype.kind == "i":  # read unsigned, a negative id is very large
        if int(values.view(f"u{values.itemsize}").max()) <= high:
            return
    elif (low is None or int(values.min()) >= low) and (high is None or int(values.max()) <= high):
        return
    bad = np.zeros(values.shape, bool)
    if low is not None:
        bad |= values < low
    if high is not None:
        bad |= values > high
    at = np.unravel_index(int(bad.argmax()), values.shape)
    raise RequestError(
        f"{model}: input {port.name!r} has {values[at]} at {[int(i) for i in at]}; "
        f"ids go from {'any' if low is None else low} to {'any' if high is None else high}"
    )


def batch_size(ports: Sequence[Port], inputs: Mapping[str, Tensor]) -> int:
    """Rows of the first of a query's inputs that has a batch; 1 where every shape is fixed.

    >>> batch_size([Port("x", "float32", (-1, 2))], {"x": np.zeros((3, 2), np.float32)})
    3
    """
    for port in ports:
        value = inputs.get(port.name)
        if port.shape[:1] == (-1,) and value is not None:
            return len(value) // port.shape[1] if isinstance(value, Strings) else value.shape[0] if value.shape else 1
    return 1


def validate_outputs(model: str, ports: Sequence[Port], requested: Sequence[RequestedOutput]) -> tuple[str, ...]:
    """Names of the outputs to answer with, in the requested order; all when none is named. Raises RequestError."""
    if not requested:
        return tuple(port.name for port in ports)
    names = tuple(output.name for output in requested)
    known = {port.name for port in ports}
    for index, name in enumerate(names):
        if name not in known:
            raise RequestError(f"{model}: no output {quoted(name)}; it gives {', '.join(sorted(known))}")
        if name in names[:index]:
            raise RequestError(f"{model}: output {name!r} is asked for twice")
    return names


def timeout_ns(parameters: Mapping[str, Parameter]) -> int | None:
    """The request's `timeout` (microseconds on the wire); None for none or 0. Raises RequestError."""
    value = _integer_parameter(parameters, "timeout", "microseconds", MAX_TIMEOUT_US)
    return value * MICROSECOND_NS if value else None


def priority_level(parameters: Mapping[str, Parameter]) -> int:
    """The request's `priority` as `Query.priority_level`: none or 0 is the default, a larger number than that of the
    last level means the last. Raises RequestError.

    >>> [priority_level({"priority": priority}) for priority in (0, 1, 2, 1000)]
    [3, 1, 2, 5]
    """
    priority = _integer_parameter(parameters, "priority", "a priority", 2**64 - 1)
    return min(priority, PRIORITY_LEVELS) if priority else DEFAULT_PRIORITY_LEVEL


def _integer_parameter(parameters: Mapping[str, Parameter], key: str, meaning: str, most: int) -> int:
    value: Any = parameters.get(key, 0)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 21:
        value = int(value)  # some gRPC clients send it as a string
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise RequestError(f"parameter {key!r} is {meaning}, an integer from 0 to {most}; got {quoted(value, 40)}")
    return value


def text_parameter(parameters: Mapping[str, Parameter], key: str) -> str:
    """A parameter of text, empty without one. Raises RequestError."""
    value = parameters.get(key, "")
    if not isinstance(value, str):
        raise RequestError(f"parameter {key!r} is a string; got {quoted(value, 40)}")
    return value


def warn_of_unknown(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The response's parameter that names those of the request that mean nothing here; empty without any.

    >>> warn_of_unknown({"timeout": 5, "temperature": 0.5})
    {'veltair_warning': "unknown parameter: 'temperature'"}
    """
    unknown = sorted(  # over gRPC they have no order of their own
        key for key in parameters if key not in KNOWN_PARAMETERS and not key.startswith(UNSUPPORTED_PREFIXES)
    )
    if not unknown:
        return {}
    named = ", ".join(quoted(key, 60) for key in unknown[:MOST_NAMED]).encode("ascii", "backslashreplace").decode()
    more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
    return {WARNING_PARAMETER: f"unknown parameter{'s' if len(unknown) > 1 else ''}: {named}{more}"}

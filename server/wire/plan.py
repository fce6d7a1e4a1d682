"""`Plan`: what a request becomes, for all later ones with the same head. `plans.c` keeps and carries it out."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.errors import quoted
from veltair.machine.native_library import array_address
from veltair.profiles.artifact.input_layout import InputLayout, InputSlot
from veltair.profiles.artifact.manifest import Manifest, Port
from veltair.server.protocol.infer_request import InferRequest, NamedTensor, TensorLocation
from veltair.server.protocol.validation import priority_level, timeout_ns
from veltair.server.wire.native import ELEMENTS, INPUT, OUTPUT, PlanValues
from veltair.server.wire.response_parts import ResponseParts

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class SlotViews:
    """A slot's memory: where it begins, and views of its inputs and outputs at one batch.

    ::

        SlotViews(address, pool.inputs(tenant, 0, batch), pool.outputs(tenant, 0, batch))
    """

    address: int
    inputs: Sequence[Array]  # in the order of `Manifest.input_tensors`
    outputs: Sequence[Array]  # in the order of `Manifest.outputs`


@dataclass(frozen=True, slots=True)
class FileRange:
    """Where in a client's file a tensor lies: `FileRange(file=7, offset=64)`."""

    file: int
    offset: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan in the form that C reads: arrays of records, and the parts of the response.

    ::

        plan = make_plan(request, parts, tenant=0, batch=1, manifest=manifest, views=views, files={})
        if plan is not None:
            threads.add_grpc_plan(message, tenant_name, plan)
    """

    tenant: int
    batch: int
    priority_level: int
    timeout_ns: int
    inputs: NDArray[np.void]  # INPUT, in the order of the request's raw tensors
    outputs: NDArray[np.void]  # OUTPUT, in the order of the response
    begin: bytes  # of the response, up to its id
    rest: bytes  # of the response, from behind its id to its tensors

    def values(self) -> PlanValues:
        return PlanValues(
            tenant=self.tenant,
            batch=self.batch,
            priority_level=self.priority_level,
            timeout_ns=self.timeout_ns,
            inputs=len(self.inputs),
            outputs=len(self.outputs),
            input=array_address(self.inputs),
            output=array_address(self.outputs),
            begin=self.begin,
            begin_bytes=len(self.begin),
            rest=self.rest,
            rest_bytes=len(self.rest),
        )


def make_plan(
    request: InferRequest,
    response: ResponseParts,
    *,
    tenant: int,
    batch: int,
    manifest: Manifest,
    views: SlotViews,
    files: Mapping[TensorLocation, FileRange],
) -> Plan | None:
    """The plan of a valid request that was answered with this response; None for one that has to be decoded again.

    Tensors come as raw bytes, numbers also in shared memory (`files`).
    """
    slots = {slot.port.name: slot for slot in InputLayout.of(manifest).slots(views.inputs, batch)}
    if any(tensor.name not in slots for tensor in request.inputs):  # inputs inside of one another
        return None
    rows = [_input(slots[tensor.name], tensor, views.address, files) for tensor in request.inputs]
    outputs = _outputs(request, response, manifest, views, files)
    if None in rows or len(rows) != len(manifest.inputs) or outputs is None:
        return None
    return Plan(
        tenant=tenant,
        batch=batch,
        priority_level=priority_level(request.parameters),
        timeout_ns=timeout_ns(request.parameters) or 0,
        inputs=np.array(rows, INPUT),
        outputs=np.array(outputs, OUTPUT),
        begin=response.begin,
        rest=response.rest,
    )


def _input(
    slot: InputSlot, tensor: NamedTensor, begin: int, files: Mapping[TensorLocation, FileRange]
) -> tuple[int, ...] | None:
    """The record of one input; None where C cannot copy it."""
    data, values, text = tensor.data, slot.values, slot.text
    if not isinstance(data, (bytes, memoryview, TensorLocation)) or not values.flags.c_contiguous:
        return None
    offset = array_address(values) - begin
    if text is not None:
        if isinstance(data, TensorLocation):
            return None
        text_offset, sent = array_address(text) - begin, len(data)
        return (values.size, offset, ELEMENTS["strings"], -1, 0, 0, 0, text_offset, text.size, sent)
    bounds = _bounds(slot.port, values.dtype)
    if bounds is None:
        return None
    place, sent = (files[data], 0) if isinstance(data, TensorLocation) else (FileRange(-1, 0), len(data))
    element, low, high = bounds
    return (values.nbytes, offset, element, place.file, place.offset, low, high, 0, 0, sent)


def _outputs(
    request: InferRequest,
    response: ResponseParts,
    manifest: Manifest,
    views: SlotViews,
    files: Mapping[TensorLocation, FileRange],
) -> list[tuple[Any, ...]] | None:
    by_name = {port.name: view for port, view in zip(manifest.outputs, views.outputs, strict=True)}
    locations = {output.name: output.location for output in request.outputs}
    rows = []
    for name, shape in response.outputs.items():
        view, location = by_name[name], locations.get(name)
        place, error = FileRange(-1, 0), ""
        if not view.flags.c_contiguous or shape != view.shape:
            return None
        if location is not None:
            place = files[location]
            error = f"output {name!r}: region {quoted(location.region)} has become shorter than it was"
            if location.size_bytes < view.nbytes or len(error.encode()) >= OUTPUT["error"].itemsize:
                return None
        rows.append((view.nbytes, array_address(view) - views.address, place.offset, place.file, 0, error.encode()))
    return rows


def _bounds(port: Port, dtype: np.dtype[Any]) -> tuple[int, int, int] | None:
    """The element's code and its range; None where C cannot check it."""
    if dtype == np.bool_:
        return ELEMENTS["u1"], 0, 1
    if port.low is None and port.high is None:
        return ELEMENTS[""], 0, 0
    element = ELEMENTS.get(dtype.str[1:])
    if element is None:
        return None
    limits = np.iinfo(dtype)
    low = limits.min if port.low is None else max(port.low, limits.min)
    high = limits.max if port.high is None else min(port.high, limits.max)
    return element, ctypes.c_int64(low).value, ctypes.c_int64(high).value

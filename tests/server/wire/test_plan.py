"""Plans that requests become: where each tensor goes, which values it may have, how the response is put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from in_process_front import MANIFEST
from tensor_pools import new_pool
from tritonclient.grpc import service_pb2 as pb

from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.manifest import Manifest, PackedLocation, Port
from veltair.server.ipc.tensor_pool import TensorPool
from veltair.server.protocol.datatypes import datatype_name
from veltair.server.protocol.grpc_codec import encode_response
from veltair.server.protocol.infer_request import InferRequest, NamedTensor, RequestedOutput, TensorLocation
from veltair.server.wire.native import ELEMENTS
from veltair.server.wire.plan import FileRange, Plan, SlotViews, make_plan
from veltair.server.wire.response_parts import split_message

SLOTS, BATCH = 2, 3
ANY = ELEMENTS[""]
PACKED = msgspec.structs.replace(
    MANIFEST,
    inputs=(
        Port("dense", "float32", (-1, 3)),
        Port("a", "int64", (-1, 1), locations=(PackedLocation(0, 0),)),
        Port("many", "int64", (-1, 4), 0, 9, locations=(PackedLocation(0, 1),)),
        Port("b", "int64", (-1, 1), locations=(PackedLocation(0, 5),)),
    ),
    packed_buffers=(Port("ints", "int64", (-6,)),),
)


def with_inputs(*inputs: Port) -> Manifest:
    return msgspec.structs.replace(MANIFEST, inputs=inputs)


def values_of(manifest: Manifest, batch: int) -> dict[str, np.ndarray[Any, Any]]:
    chance = np.random.default_rng(batch)
    return {port.name: chance.integers(0, 2, port.at(batch)).astype(port.dtype) for port in manifest.inputs}


def plan_of(
    manifest: Manifest,
    data: Mapping[str, Any],
    *,
    outputs: Sequence[str | RequestedOutput] = (),
    files: Mapping[TensorLocation, FileRange] | None = None,
    batch: int = BATCH,
    **parameters: Any,
) -> tuple[Plan | None, TensorPool, Any]:
    """The plan of a request with this data, a pool for it, and the response that it was learned from."""
    pool = new_pool([manifest] * 2, SLOTS)
    ports = {port.name: port for port in manifest.inputs}
    tensors = tuple(
        NamedTensor(name, datatype_name(np.dtype(ports[name].dtype)), ports[name].at(batch), value)
        for name, value in data.items()
    )
    wanted = tuple(o if isinstance(o, RequestedOutput) else RequestedOutput(o, True, None) for o in outputs)
    results = {port.name: np.ones(port.at(batch), port.dtype) for port in manifest.outputs}
    stored = {o.name: o.location for o in wanted if o.location is not None}
    names = [o.name for o in wanted] or list(results)
    response = encode_response("sums", "1", "an id", {n: results[n] for n in names}, {}, stored)
    address = pool.address(1)
    views = SlotViews(address, pool.inputs(1, 0, batch), pool.outputs(1, 0, batch))
    request = InferRequest("an id", parameters, tensors, wanted, True)
    plan = make_plan(
        request,
        split_message(response),
        tenant=1,
        batch=batch,
        manifest=manifest,
        views=views,
        files={} if files is None else files,
    )
    return plan, pool, response


def put(plan: Plan, pool: TensorPool, tensors: Sequence[bytes], slot: int) -> None:
    """Copy tensors into a slot of the second tenant, as the plan says."""
    begin = slot * pool.regions[1].slot_bytes
    for row, data in zip(plan.inputs, tensors, strict=True):
        assert row["bytes"] == len(data)
        at = begin + int(row["offset"])
        pool._bytes[1][at : at + len(data)] = np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("manifest", [MANIFEST, PACKED], ids=["plain", "packed"])
def test_tensors_arrive_where_the_layout_reads_them(manifest: Manifest, batch: int) -> None:
    values = values_of(manifest, batch)
    for names in (list(values), list(reversed(values))):
        raw = {name: values[name].tobytes() for name in names}
        plan, pool, _ = plan_of(manifest, raw, batch=batch)
        assert plan is not None and (plan.tenant, plan.batch, plan.timeout_ns) == (1, batch, 0)
        for slot in range(SLOTS):
            put(plan, pool, list(raw.values()), slot)
            found = InputLayout.of(manifest).slots(pool.inputs(1, slot, batch), batch)
            assert {s.port.name: s.values.tolist() for s in found} == {n: v.tolist() for n, v in values.items()}


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        (Port("p", "float32", (-1, 2)), (ANY, 0, 0)),
        (Port("p", "int64", (-1, 2)), (ANY, 0, 0)),
        (Port("p", "int64", (-1, 2), 0, 99), (ELEMENTS["i8"], 0, 99)),
        (Port("p", "int32", (-1, 2), -5, None), (ELEMENTS["i4"], -5, 2**31 - 1)),
        (Port("p", "int32", (-1, 2), None, 7), (ELEMENTS["i4"], -(2**31), 7)),
        (Port("p", "int8", (-1, 2), -1000, 1000), (ELEMENTS["i1"], -128, 127)),
        (Port("p", "uint8", (-1, 2), 1, None), (ELEMENTS["u1"], 1, 255)),
        (Port("p", "uint64", (-1, 2), 1, None), (ELEMENTS["u8"], 1, -1)),  # its bits
        (Port("p", "bool", (-1, 2)), (ELEMENTS["u1"], 0, 1)),
    ],
    ids=lambda value: f"{value.dtype} {value.low} {value.high}" if isinstance(value, Port) else "",
)
def test_ranges(port: Port, expected: tuple[int, int, int]) -> None:
    manifest = with_inputs(port)
    plan, _, _ = plan_of(manifest, {"p": values_of(manifest, BATCH)["p"].tobytes()})
    assert plan is not None
    assert plan.inputs[["element", "low", "high"]].tolist() == [expected]


def test_a_range_that_c_cannot_check_gives_no_plan() -> None:
    plan, _, _ = plan_of(with_inputs(Port("p", "float32", (-1, 2), 0, 1)), {"p": bytes(8 * BATCH)})
    assert plan is None


@pytest.mark.parametrize("change", [{"ids": None}, {"ids": np.zeros((BATCH, 2), np.int64)}], ids=["less", "typed"])
def test_requests_that_have_to_be_decoded_give_no_plan(change: dict[str, Any]) -> None:
    data = {name: values.tobytes() for name, values in values_of(MANIFEST, BATCH).items()} | change
    assert plan_of(MANIFEST, {name: value for name, value in data.items() if value is not None})[0] is None


@pytest.mark.parametrize(
    "outputs", [(), ("sum",), ("ids_sum",), ("sum", "ids_sum"), ("ids_sum", "sum")], ids=lambda names: "+".join(names)
)
def test_outputs_are_those_of_the_response_in_its_order(outputs: Sequence[str]) -> None:
    data = {name: values.tobytes() for name, values in values_of(MANIFEST, BATCH).items()}
    plan, pool, response = plan_of(MANIFEST, data, outputs=outputs, timeout=250)
    assert plan is not None and plan.timeout_ns == 250_000
    pool.outputs(1, 1, BATCH)[0][:] = 1
    pool.outputs(1, 1, BATCH)[1][:] = 1
    begin = pool.regions[1].slot_bytes
    message = plan.begin + pb.ModelInferResponse(id="another").SerializeToString() + plan.rest
    for row in plan.outputs:
        assert row["file"] == -1
        at = begin + int(row["offset"])
        tensor = pool._bytes[1][at : at + int(row["bytes"])].tobytes()
        message += pb.ModelInferResponse(raw_output_contents=[tensor]).SerializeToString()
    response.id = "another"
    assert message == response.SerializeToString()


def test_shared_memory() -> None:
    values = values_of(MANIFEST, BATCH)
    place, target = TensorLocation("r", 8, values["x"].nbytes), TensorLocation("out", 0, 100)
    files = {place: FileRange(7, 72), target: FileRange(8, 640)}
    data = {"ids": values["ids"].tobytes(), "x": place}
    outputs = ["ids_sum", RequestedOutput("sum", True, target)]
    plan, _, _ = plan_of(MANIFEST, data, outputs=outputs, files=files)
    assert plan is not None
    assert plan.inputs[["file", "file_offset"]].tolist() == [(-1, 0), (7, 72)]
    assert plan.outputs[["file", "file_offset"]].tolist() == [(-1, 0), (8, 640)]
    assert plan.outputs["error"].tolist() == [b"", b"output 'sum': region 'out' has become shorter than it was"]


@pytest.mark.parametrize("location", [TensorLocation("r", 0, 1), TensorLocation("ü" * 90, 0, 100)])
def test_an_output_too_small_or_an_error_too_long_gives_no_plan(location: TensorLocation) -> None:
    data = {name: values.tobytes() for name, values in values_of(MANIFEST, BATCH).items()}
    outputs = [RequestedOutput("sum", True, location)]
    assert plan_of(MANIFEST, data, outputs=outputs, files={location: FileRange(8, 0)})[0] is None

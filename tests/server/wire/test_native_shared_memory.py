"""Plans whose tensors lie in a client's shared memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from native_front import IDS, Fronts, ask, request, run
from tritonclient.grpc import service_pb2 as pb

Status = grpc.StatusCode
X_AT, IDS_AT, SUM_AT, END = 64, 128, 256, 320
NAME = "tensors"


@pytest.fixture
def memory() -> Iterator[Path]:
    """A file of `END` bytes in shared memory."""
    path = Path("/dev/shm") / f"veltair-wire-{os.getpid()}"
    path.write_bytes(bytes(END))
    yield path
    path.unlink()


def open_files(path: Path) -> int:
    """How many descriptors of this process are of that file."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith(str(path))
        except FileNotFoundError:
            continue
    return count


def write(path: Path, at: int, values: Any) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(np.ascontiguousarray(values).tobytes())


def located(entry: Any, offset: int, size: int) -> None:
    entry.parameters["shared_memory_region"].string_param = NAME
    entry.parameters["shared_memory_offset"].int64_param = offset
    entry.parameters["shared_memory_byte_size"].int64_param = size


def query(*, x: bool = False, ids: bool = False, total: bool = False, id_: str = "") -> bytes:
    """Which of the tensors lie in shared memory."""
    message = request(id=id_)
    if ids:
        located(message.inputs[1], IDS_AT, 16)
        del message.raw_input_contents[1]
    if x:
        located(message.inputs[0], X_AT, 16)
        del message.raw_input_contents[0]
    if total:
        message.outputs.add(name="ids_sum")
        located(message.outputs.add(name="sum"), SUM_AT, 8)
    data: bytes = message.SerializeToString()
    return data


def register(fronts: Fronts, memory: Path) -> None:
    fronts.service.regions.register(NAME, memory.name, 0, END)


@pytest.mark.parametrize(
    "where", [{"x": True}, {"ids": True}, {"x": True, "ids": True}], ids=lambda where: "+".join(where)
)
def test_inputs(memory: Path, where: dict[str, bool]) -> None:
    async def body(fronts: Fronts) -> None:
        register(fronts, memory)
        channel = fronts.channel()
        await fronts.learn(channel, query(**where))
        for number in (1, 7):
            write(memory, X_AT, np.full(4, number, np.float32))
            write(memory, IDS_AT, np.array([number, number]))
            expected = await ask(fronts.channel(python=True), query(**where))
            assert await ask(channel, query(**where)) == expected
            sums = [4.0 * number] if "x" in where else [10.0], [2 * number] if "ids" in where else [sum(IDS[0])]
            assert expected.sums() == sums
        assert fronts.scripted.count == 2
        write(memory, IDS_AT, np.array([5, 100]))
        answer = await ask(channel, query(**where))
        assert answer == await ask(fronts.channel(python=True), query(**where))
        assert answer.code is (Status.INVALID_ARGUMENT if "ids" in where else Status.OK)
        assert fronts.scripted.link.taken == 0

    run(body)


def test_outputs(memory: Path) -> None:
    async def body(fronts: Fronts) -> None:
        register(fronts, memory)
        channel = fronts.channel()
        expected = await fronts.learn(channel, query(total=True))
        write(memory, SUM_AT, np.zeros(2, np.float32))
        assert await ask(channel, query(total=True)) == expected
        assert np.frombuffer(memory.read_bytes()[SUM_AT : SUM_AT + 8], np.float32).tolist() == [10.0, 0.0]
        assert list(expected.message.raw_output_contents) == [np.array([104]).tobytes(), b""]
        assert fronts.scripted.count == 1

    run(body)


@pytest.mark.parametrize("where", [{"x": True}, {"total": True}], ids=["input", "output"])
@pytest.mark.parametrize("left", [0, X_AT + 8])
def test_a_file_that_is_cut_short_under_a_plan(memory: Path, where: dict[str, bool], left: int) -> None:
    async def body(fronts: Fronts) -> None:
        register(fronts, memory)
        channel = fronts.channel()
        await fronts.learn(channel, query(**where))
        os.truncate(memory, left)
        answer = await ask(channel, query(**where))
        assert answer.code is Status.INVALID_ARGUMENT
        assert "region 'tensors' has become shorter than it was" in answer.details
        assert answer == await ask(fronts.channel(python=True), query(**where))
        assert memory.stat().st_size == left and fronts.scripted.link.taken == 0
        assert fronts.outcomes() == {"ok": 1, "invalid": 2}
        os.truncate(memory, END)
        assert (await ask(channel, query(**where))).code is Status.OK

    run(body)


def test_unregister_clears_plans_and_closes_files(memory: Path) -> None:
    async def body(fronts: Fronts) -> None:
        register(fronts, memory)
        assert open_files(memory) == 1
        channel = fronts.channel()
        for where in ({"x": True}, {"x": True, "ids": True}, {"total": True}):
            await fronts.learn(channel, query(**where))
        assert open_files(memory) == 1 + 4  # each plan has descriptors of its own
        fronts.service.regions.unregister(NAME)
        assert open_files(memory) == 0
        answer = await ask(channel, query(x=True))
        assert (answer.code, answer.details) == (Status.INVALID_ARGUMENT, "no region 'tensors' is registered")
        register(fronts, memory)
        await fronts.learn(channel, query(x=True))
        await fronts.learn(channel, query(x=True) + pb.ModelInferRequest(id="behind").SerializeToString())
        assert open_files(memory) == 2

    run(body)


def test_a_query_that_runs_while_its_region_is_unregistered(memory: Path) -> None:
    async def body(fronts: Fronts) -> None:
        register(fronts, memory)
        channel = fronts.channel()
        await fronts.learn(channel, query(total=True))
        write(memory, SUM_AT, np.zeros(1, np.float32))
        asked = asyncio.create_task(ask(channel, query(total=True)))
        held = await fronts.scripted.next()
        fronts.service.regions.unregister()
        assert open_files(memory) == 1  # the query's
        fronts.scripted.end(held)
        assert (await asked).code is Status.OK
        assert np.frombuffer(memory.read_bytes()[SUM_AT : SUM_AT + 4], np.float32).tolist() == [10.0]
        assert (await ask(channel, b"")).code is Status.NOT_FOUND
        assert open_files(memory) == 0

    run(body, automatic=False)


def test_the_same_plan_again_replaces_the_one_before(memory: Path) -> None:
    async def body(fronts: Fronts) -> None:
        register(fronts, memory)
        channel = fronts.channel()
        fronts.threads.set_open(False)
        for _ in range(20):
            await fronts.learn(channel, query(x=True, id_="any"))
        assert open_files(memory) == 2

    run(body)

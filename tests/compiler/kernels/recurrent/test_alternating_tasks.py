"""The tasks of a loop that runs again and again: each once a turn, and by one thread in both orders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.kernels.recurrent.alternating_tasks import AlternatingTasks
from veltair.compiler.shared_library import compile_function
from veltair.machine.isa import tvm_target
from veltair.machine.topology import usable_machine
from veltair.profiles.runtime.executor import aligned_zeros

TURNS = 6
FASTEST_CORES_FIRST = 1  # a mode of TVM's pool


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    configure = tvm_ffi.get_global_func("runtime.config_threadpool")
    configure(FASTEST_CORES_FIRST, request.param)
    yield request.param
    configure(FASTEST_CORES_FIRST, len(usable_machine().cores))


def visits(count: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """How often each turn visits each task, and as the how-manieth: (TURNS, count) each. The latter is of one thread;
    several count on top of each other."""

    def body(times: Any, nth: Any) -> None:
        tasks, visited = AlternatingTasks(count), T.alloc_buffer((1,), "int32", scope="global")
        with T.serial(0, TURNS) as turn:
            T.buffer_store(visited, T.int32(0), [0])
            for task in tasks.run(turn):
                T.buffer_store(times, times[turn, task] + 1, [turn, task])
                T.buffer_store(nth, visited[0], [turn, task])
                T.buffer_store(visited, visited[0] + 1, [0])

    outputs = [Activation(name, "int32", (TURNS, count)) for name in ("times", "nth")]
    made = aligned_zeros((TURNS, count), "int32"), aligned_zeros((TURNS, count), "int32")
    run = compile_function(build_prim_func(outputs, body), "main", tvm_target())["main"]
    run(*map(tvm_ffi.from_dlpack, made))
    return made


@pytest.mark.parametrize("threads", [1, 2], indirect=True, ids="{}-threads".format)
@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_every_task_is_run_once_a_turn(count: int, threads: int) -> None:
    times, nth = visits(count)
    np.testing.assert_array_equal(times, np.ones_like(times))
    if threads == 1:
        forwards = np.arange(count)
        np.testing.assert_array_equal(nth, [forwards, forwards[::-1]] * (TURNS // 2))

"""The tasks of a loop that runs again and again: each once a turn, and by one thread in both orders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.kernels.recurrent.alternating_tasks import AlternatingTasks
from veltair.compiler.shared_library import compile_function
from veltair.machine.isa import tvm_target
from veltair.profiles.runtime.executor import aligned_zeros

COUNTS, TURNS = (1, 2, 7, 64), 6


def visits(count: int) -> list[Any]:
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
    made = [aligned_zeros((TURNS, count), "int32") for _ in outputs]
    run = compile_function(build_prim_func(outputs, body), "main", tvm_target())["main"]
    run(*map(tvm_ffi.from_dlpack, made))
    return [array.tolist() for array in made]


@pytest.mark.parametrize("threads", [1, 2])
def test_every_task_is_run_once_a_turn(threads: int) -> None:
    """In a process of its own, since the threads of this one are taken."""
    environment = os.environ | {"TVM_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, __file__], stdout=subprocess.PIPE, check=True, env=environment)
    for count, (times, nth) in zip(COUNTS, json.loads(done.stdout), strict=True):
        np.testing.assert_array_equal(times, np.ones((TURNS, count)))
        if threads == 1:
            forwards = np.arange(count)
            np.testing.assert_array_equal(nth, [forwards, forwards[::-1]] * (TURNS // 2))


if __name__ == "__main__":
    print(json.dumps([visits(count) for count in COUNTS]))

"""What processes of TensorFlow have in common, which run in a Python of its own: threads, and turns that are timed.

`veltair.commands.timing.engine_process` does the same beside veltair, which this Python does not have.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

TURN_S = 0.4


def use_threads(threads: int) -> None:
    """Call it before TensorFlow does anything else."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def serve_turns(run: Callable[[], object]) -> None:
    """Prints `ready`, and answers each line of stdin with the time of a turn in ms."""
    print("ready", flush=True)
    for _ in sys.stdin:
        print(turn(run), flush=True)


def turn(run: Callable[[], object]) -> float:
    """Median time of a run in ms."""
    end = time.perf_counter() + TURN_S / 4
    while time.perf_counter() < end:
        run()
    taken: list[float] = []
    end = time.perf_counter() + TURN_S
    while time.perf_counter() < end or len(taken) < 5:
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e3

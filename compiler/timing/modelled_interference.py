"""Modelled slowdown of a measured time when less of the last-level cache and of the bandwidth is left.

A pressure leaves a layer a share of the shared cache, and the same share of what that cache and the memory deliver.
The layer then moves more (its code's loop levels say how much, see `locality`), at a lower rate:

    data(share) = the longer of   bytes below L2 / (share x rate of the last-level cache)
                                  bytes below a cache of share x LLC / (share x rate of the memory)
    T(share) = T0 x max(1, data(share) / max(T0, data(1)))

T0 is measured, so whatever the model does not know of the code (latencies, instructions, imbalance) is in it; the model
only says when moving data outlasts it. That supposes that all moving is hidden behind computing until it takes longer,
as with hardware prefetchers and the kernels' own it mostly is: the slowdown is a lower bound, and its opposite, adding
the time of the additional bytes, an upper one. Where the model finds more to move than T0 has time for (a model's
weights that were in the cache, say), its rates are scaled to T0. L2 is private and never shared. What a whole model
touches stays in the last-level cache between two queries as far as the share holds it.

The level of a pressure is the mean slowdown of the model's layers (VELTAIR sec. 4.3), as for measured ones.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veltair.machine.cache_traffic import LoopLevel, Reuse, traffic_bytes
from veltair.machine.memory import memory_bytes
from veltair.machine.topology import cache_bytes
from veltair.types import CoreId

SHARES = tuple(tenths / 10 for tenths in range(10, 0, -1))  # ten pressures (sec. 3.3): what they leave, from all on
STEP = 1.01  # a level less than this above the one before is the same level


@dataclass(frozen=True, slots=True)
class Memory:
    """What data passes on its way to a core. Rates are those of one core while all cores stream."""

    l2_bytes: int  # of each core
    llc_bytes: int  # of all cores together
    llc_bytes_per_ns: float
    dram_bytes_per_ns: float


def data_ns(reuse: Reuse, cores: int, share: float, memory: Memory, resident_bytes: int = 0) -> float:
    """How long the layer's data takes on so many cores with a share of what is shared; 0 without traffic.

    resident_bytes: what the whole model touches; in a cache that holds it, nothing comes from memory.
    """
    below_l2 = traffic_bytes(reuse, 1, memory.l2_bytes)
    kept = [*reuse, LoopLevel(0, resident_bytes, 0)] if resident_bytes > reuse[-1].working_set_bytes(cores) else reuse
    below_llc = traffic_bytes(kept, cores, share * memory.llc_bytes)
    rates = (memory.llc_bytes_per_ns, memory.dram_bytes_per_ns)
    return max(moved / (share * cores * rate) for moved, rate in zip((below_l2, below_llc), rates, strict=True))


def slowdown(run_ns: float, reuse: Reuse, cores: int, share: float, memory: Memory, resident_bytes: int = 0) -> float:
    """T(share) / T0 of a layer that takes `run_ns` alone on `cores` cores; 1.0 at share 1."""
    alone = data_ns(reuse, cores, 1.0, memory, resident_bytes)
    return max(1.0, data_ns(reuse, cores, share, memory, resident_bytes) / max(run_ns, alone))


def slowdowns(
    alone_ns: NDArray[np.float64], reuses: Sequence[Sequence[Reuse]], memory: Memory, resident_bytes: Sequence[int]
) -> NDArray[np.float64]:
    """(versions, batches, shares, cores): `slowdown` of every cell of a table of times alone.

    Args:
        alone_ns: (versions, batches, cores)
        reuses: (versions, batches)
        resident_bytes: of the model, (batches)
    """
    versions, batches, cores = alone_ns.shape
    found = np.ones((versions, batches, len(SHARES), cores))
    for (i, j, core), run_ns in np.ndenumerate(alone_ns):
        for s, share in enumerate(SHARES):
            found[i, j, s, core] = slowdown(run_ns, reuses[i][j], core + 1, share, memory, resident_bytes[j])
    return found


def distinct_shares(levels: Sequence[float]) -> list[tuple[int, float]]:
    """(index of the share, level) of those that press harder than all before: the first, 1.0, always among them."""
    found = [(0, 1.0)]
    for i, level in enumerate(levels):
        if level >= found[-1][1] * STEP:
            found.append((i, round(level, 3)))
    return found


def this_memory(cores: Sequence[CoreId]) -> Memory:
    """This machine's: sizes as the system tells, rates measured by a short stream on all of `cores` at once."""
    sizes = cache_bytes()
    l2 = sizes.get("L2", 1 << 20)
    llc = max(sizes.get("L3", 0), l2)
    near = 4 * l2  # of each core: in the last-level cache, out of L2
    far = max(near, min(2 * llc, memory_bytes() // 8) // len(cores))
    return Memory(l2, llc, _streamed(cores, near), _streamed(cores, far))


def _streamed(cores: Sequence[CoreId], size: int, windows: int = 10, window_ns: int = 40_000_000) -> float:
    """Bytes a nanosecond that each of the cores reads from a buffer of its own of `size` bytes, all at once.

    The best of a few windows: what else runs now does not count.
    """
    compare = ctypes.CDLL(None).memcmp  # reads both halves at the width of the machine, without the interpreter's lock
    compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    rates: list[float] = []
    start = threading.Barrier(len(cores))

    def stream(core: CoreId) -> None:
        os.sched_setaffinity(0, (core,))  # of this thread
        memory = np.ones(size, np.uint8)
        first, second = memory.ctypes.data, memory.ctypes.data + size // 2
        compare(first, second, size // 2)
        start.wait()
        best = 0.0
        for _ in range(windows):
            begin = time.perf_counter_ns()
            passes = 0
            while (spent := time.perf_counter_ns() - begin) < window_ns:
                compare(first, second, size // 2)
                passes += 1
            best = max(best, passes * size / spent)
        rates.append(best)

    threads = [threading.Thread(target=stream, args=(core,)) for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates) / len(rates)

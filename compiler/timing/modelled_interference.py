"""Models how a measured time grows when less of the last-level cache and of the bandwidth is left.

A pressure leaves a layer a share of the shared cache and of the bandwidths of that cache and the memory. The layer
then moves more bytes (the loop levels of its code give their number, see `locality`), at a lower rate:

    data(share) = the longer of   bytes below L2 / (share x rate of the last-level cache)
                                  bytes below a cache of share x LLC / (share x rate of the memory)
    T(share) = T0 x max(1, data(share) / max(T0, data(1)))

T0 is measured, so it contains what the model does not describe (latencies, instructions, imbalance); the model only
decides when data movement takes longer than T0. It assumes that all movement is hidden behind computing until it takes
longer, which prefetching by hardware and kernels mostly achieves: the slowdown is a lower bound, and its opposite,
adding the time of the additional bytes, an upper one. Where the model predicts more movement than T0 has time for (for
example of weights that were in the cache), its rates are scaled to T0. L2 is private and never shared. What a whole
model touches stays in the last-level cache between two queries as far as the share holds it.

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

SHARES = tuple(tenths / 10 for tenths in range(10, 0, -1))  # the share that each of ten pressures (sec. 3.3) leaves
WINDOWS, WINDOW_NS = 10, 40_000_000  # of streaming; the best counts, so that other programs do not
STEP = 1.01  # a level less than this above the one before is the same level


@dataclass(frozen=True, slots=True)
class MemorySystem:
    """Cache sizes and bandwidths of a machine. Rates are those of one core while all cores stream.

    >>> memory = MemorySystem(l2_bytes=1 << 20, llc_bytes=1 << 25, llc_bytes_per_ns=8.0, dram_bytes_per_ns=2.0)
    >>> modelled_slowdown(100.0, [LoopLevel(0, 4096, 4096)], 1, 0.5, memory)
    2.0
    """

    l2_bytes: int  # of each core
    llc_bytes: int  # of all cores together
    llc_bytes_per_ns: float
    dram_bytes_per_ns: float


def data_ns(reuse: Reuse, cores: int, share: float, memory: MemorySystem, resident_bytes: int = 0) -> float:
    """Time in ns to move a layer's data on `cores` cores with a share of cache and bandwidth; 0 without traffic.

    resident_bytes: bytes that the whole model touches; nothing comes from memory where the cache holds them all.
    """
    below_l2 = traffic_bytes(reuse, 1, memory.l2_bytes)
    kept = [*reuse, LoopLevel(0, resident_bytes, 0)] if resident_bytes > reuse[-1].working_set_bytes(cores) else reuse
    below_llc = traffic_bytes(kept, cores, share * memory.llc_bytes)
    rates = (memory.llc_bytes_per_ns, memory.dram_bytes_per_ns)
    return max(moved / (share * cores * rate) for moved, rate in zip((below_l2, below_llc), rates, strict=True))


def modelled_slowdown(
    run_ns: float, reuse: Reuse, cores: int, share: float, memory: MemorySystem, resident_bytes: int = 0
) -> float:
    """T(share) / T0 of a layer that takes `run_ns` alone on `cores` cores; 1.0 at share 1."""
    alone = data_ns(reuse, cores, 1.0, memory, resident_bytes)
    return max(1.0, data_ns(reuse, cores, share, memory, resident_bytes) / max(run_ns, alone))


def modelled_slowdowns(
    alone_ns: NDArray[np.float64],
    reuses: Sequence[Sequence[Reuse]],
    memory: MemorySystem,
    resident_bytes: Sequence[int],
) -> NDArray[np.float64]:
    """(versions, batches, shares, cores): `modelled_slowdown` of every cell of a table of solo times.

    Args:
        alone_ns: (versions, batches, cores)
        reuses: (versions, batches)
        resident_bytes: of the model, (batches)
    """
    versions, batches, cores = alone_ns.shape
    found = np.ones((versions, batches, len(SHARES), cores))
    for (i, j, core), run_ns in np.ndenumerate(alone_ns):
        for s, share in enumerate(SHARES):
            found[i, j, s, core] = modelled_slowdown(run_ns, reuses[i][j], core + 1, share, memory, resident_bytes[j])
    return found


def distinct_shares(levels: Sequence[float]) -> list[tuple[int, float]]:
    """(index of the share, level) of the shares that slow down more than all before; the first, 1.0, is always kept."""
    found = [(0, 1.0)]
    for i, level in enumerate(levels):
        if level >= found[-1][1] * STEP:
            found.append((i, round(level, 3)))
    return found


def measure_memory(cores: Sequence[CoreId]) -> MemorySystem:
    """This machine's cache sizes as Linux reports them, and rates measured by streaming on all of `cores` at once."""
    sizes = cache_bytes()
    l2 = sizes.get("L2", 1 << 20)
    llc = max(sizes.get("L3", 0), l2)
    near = 4 * l2  # buffer of each core: fits the last-level cache, not L2
    far = max(near, min(2 * llc, memory_bytes() // 8) // len(cores))
    return MemorySystem(l2, llc, _streaming_rate(cores, near), _streaming_rate(cores, far))


def _streaming_rate(cores: Sequence[CoreId], size: int) -> float:
    """Bytes per nanosecond that each core reads from a buffer of its own of `size` bytes, all cores at once."""
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
        for _ in range(WINDOWS):
            begin = time.perf_counter_ns()
            passes = 0
            while (spent := time.perf_counter_ns() - begin) < WINDOW_NS:
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

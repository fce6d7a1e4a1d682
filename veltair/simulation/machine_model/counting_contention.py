"""Hardware counters of a simulated machine, beside the slowdown of its running layers that they should predict.

Every running block counts at a rate that follows from what its layers move past their L2 and past the L3 under the
present pressure. Rates hold from one change of the co-runners to the next and are summed up exactly.

Instructions are estimated, because the model has no instruction stream: one for each vector of multiply-adds and for
each load that feeds it, and one for each 64 bytes that pass the L2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from veltair.scheduler.events import CountersSampled
from veltair.simulation.interference_model import Timeline
from veltair.simulation.machine_model.contention_model import ContentionModel
from veltair.simulation.machine_model.counter_fit import SlowdownSample
from veltair.simulation.machine_model.execution_rate import ExecutionRate, Segment
from veltair.simulation.machine_model.machine_model import MachineModel
from veltair.types import CounterSample, Machine

LINE_BYTES = 64
SOURCE = "simulated"
PERIOD_NS = 10_000_000  # between two readings, as in the daemon
_LOADS = 1.0  # of operands for a vector multiply-add, at most: the others come from registers

Counts = NDArray[np.float64]  # L3 accesses, L3 misses, instructions, cycles, FLOPs, slowdown of all blocks, blocks


class CountingContention(ContentionModel):
    """A contention model with hardware counters.

    ::

        contention = CountingContention(model, machine, execution_rates, rng, lambda: virtual.now_ns)
        contention.read().l3_misses
    """

    def __init__(
        self,
        model: MachineModel,
        machine: Machine,
        execution_rates: Mapping[tuple[str, int], ExecutionRate],
        rng: np.random.Generator,
        now_ns: Callable[[], int],
    ) -> None:
        """`now_ns`: virtual time."""
        super().__init__(model, machine, execution_rates, rng)
        self._clock = now_ns
        self._since_ns = self._read_ns = 0
        self._rate: Counts = np.zeros(7)  # per ns
        self._total: Counts = np.zeros(7)
        self._known: dict[tuple[Segment, int, int, int], Counts] = {}

    def changed(self) -> Iterable[tuple[int | None, Timeline]]:
        moved = list(super().changed())
        if moved or not self.running:
            self._advance()
            self._rate = sum(
                (self._rates_of(it.segment, it.cache, it.memory, it.link) for it in self.running.values()), np.zeros(7)
            )
        return moved

    def read(self) -> SlowdownSample:
        """Returns the counts since the last reading; the level is the mean slowdown of the blocks that ran.

        Time must have passed since that reading.
        """
        self._advance()
        window_ns = self._since_ns - self._read_ns
        accesses, misses, instructions, cycles, flops, slowdowns, blocks = self._total.tolist()
        self._read_ns = self._since_ns
        self._total = np.zeros(7)
        return SlowdownSample(
            window_ns=window_ns,
            l3_accesses=accesses,
            l3_misses=misses,
            instructions=instructions,
            cycles=cycles,
            flops=flops,
            level=max(1.0, slowdowns / blocks) if blocks else 1.0,
        )

    def event(self, now_ns: int, samples: list[SlowdownSample] | None = None) -> CountersSampled:
        """Returns a reading as an event, for `VirtualMachine.every`; appends it to `samples` as well."""
        seen = self.read()
        if samples is not None:
            samples.append(seen)
        counts = CounterSample(now_ns, seen.window_ns, round(seen.l3_accesses), round(seen.l3_misses), SOURCE)
        return CountersSampled(now_ns, counts)

    def _advance(self) -> None:
        now_ns = self._clock()
        self._total += self._rate * (now_ns - self._since_ns)
        self._since_ns = now_ns

    def _rates_of(self, segment: Segment, cache: int, memory: int, link: int) -> Counts:
        key = segment, cache, memory, link
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = count_rates(segment, cache, memory, link)
        return known


def count_rates(segment: Segment, cache: int, memory: int, link: int = 0) -> Counts:
    """Returns what a block counts per ns under these pressures (levels), the mean over its layers' time."""
    rate, cores, domains = segment.rate, segment.cores, segment.domains
    work, machine = rate.work, rate.machine
    at = range(segment.layers.start, segment.layers.stop), segment.versions
    took_ns = segment.timeline(cache, memory, link)[-1]
    accesses = work.l3_bytes[cores - 1][at].sum() / LINE_BYTES
    misses = rate.moved_bytes(cores, domains, cache)[at].sum() / LINE_BYTES
    flops = work.flops[segment.layers].sum()
    vectors = flops / (2 * machine.vector_bits / 32)
    instructions = vectors * (1 + _LOADS) + accesses
    slowdown = took_ns / segment.timeline(0, 0)[-1]
    counted = np.array([accesses, min(misses, accesses), instructions, 0.0, flops, 0.0, 0.0]) / took_ns
    counted[3] = cores * machine.clock_ghz
    counted[5:] = slowdown, 1.0
    return counted

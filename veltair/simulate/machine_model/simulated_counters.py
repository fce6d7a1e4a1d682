"""Hardware counters of a simulated machine, and what they are to foretell: how much its running layers are slowed.

Every running block counts at its own rate, which follows from what its layers move past their L2 and past the L3 under
the pressure of the moment. Rates hold from one change of the neighbours to the next, and are summed up exactly.

Instructions are estimated, since the model has no instruction stream: one for each vector of multiply-adds and for
each load that feeds it, and one for each 64 bytes that pass the L2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from veltair.scheduler.events import CountersSampled
from veltair.simulate.interference_model import Timeline
from veltair.simulate.machine_model.contention import Contention
from veltair.simulate.machine_model.layer_speed import Pace, Stretch
from veltair.simulate.machine_model.machines import MachineModel
from veltair.simulate.machine_model.proxy_fit import Sample
from veltair.types import CounterSample, Machine

LINE_BYTES = 64
SOURCE = "simulated"
PERIOD_NS = 10_000_000  # between two readings, as the daemon's
_LOADS = 1.0  # of operands for a vector multiply-add, at most: what does not come from a register

Counts = NDArray[np.float64]  # L3 accesses, L3 misses, instructions, cycles, FLOPs, slowdown of all blocks, blocks


class CountedContention(Contention):
    """Contention that can be read like a machine."""

    def __init__(
        self,
        model: MachineModel,
        machine: Machine,
        paces: Mapping[tuple[str, int], Pace],
        rng: np.random.Generator,
        now_ns: Callable[[], int],
    ) -> None:
        """`now_ns`: virtual time."""
        super().__init__(model, machine, paces, rng)
        self._clock = now_ns
        self._since_ns = self._read_ns = 0
        self._rate: Counts = np.zeros(7)  # per ns
        self._total: Counts = np.zeros(7)
        self._known: dict[tuple[Stretch, int, int], Counts] = {}

    def changed(self) -> Iterable[tuple[int, Timeline]]:
        moved = list(super().changed())
        if moved or not self.running:
            self._advance()
            self._rate = sum((self._of(it.stretch, it.cache, it.memory) for it in self.running.values()), np.zeros(7))
        return moved

    def read(self) -> Sample:
        """Since the last reading, which was before; its level is the mean slowdown of the blocks that ran."""
        self._advance()
        window_ns = self._since_ns - self._read_ns
        accesses, misses, instructions, cycles, flops, slowdowns, blocks = self._total.tolist()
        self._read_ns = self._since_ns
        self._total = np.zeros(7)
        return Sample(
            window_ns=window_ns, l3_accesses=accesses, l3_misses=misses, instructions=instructions, cycles=cycles,
            flops=flops, level=max(1.0, slowdowns / blocks) if blocks else 1.0,
        )  # fmt: skip

    def event(self, now_ns: int, samples: list[Sample] | None = None) -> CountersSampled:
        """A reading for `VirtualMachine.every`, kept in `samples` as well."""
        seen = self.read()
        if samples is not None:
            samples.append(seen)
        counts = CounterSample(now_ns, seen.window_ns, round(seen.l3_accesses), round(seen.l3_misses), SOURCE)
        return CountersSampled(now_ns, counts)

    def _advance(self) -> None:
        now_ns = self._clock()
        self._total += self._rate * (now_ns - self._since_ns)
        self._since_ns = now_ns

    def _of(self, stretch: Stretch, cache: int, memory: int) -> Counts:
        key = stretch, cache, memory
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = rates(stretch, cache, memory)
        return known


def rates(stretch: Stretch, cache: int, memory: int) -> Counts:
    """What a block counts in a ns under these pressures (levels of `pace`), the mean over its layers' time."""
    pace, cores, domains = stretch.pace, stretch.cores, stretch.domains
    work, machine = pace.work, pace.machine
    at = range(stretch.layers.start, stretch.layers.stop), stretch.versions
    took_ns = stretch.course(cache, memory)[-1]
    accesses = work.l3_bytes[cores - 1][at].sum() / LINE_BYTES
    misses = pace.moved_bytes(cores, domains, cache)[at].sum() / LINE_BYTES
    flops = work.flops[stretch.layers].sum()
    vectors = flops / (2 * machine.vector_bits / 32)
    instructions = vectors * (1 + _LOADS) + accesses
    slowdown = took_ns / stretch.course(0, 0)[-1]
    counted = np.array([accesses, min(misses, accesses), instructions, 0.0, flops, 0.0, 0.0]) / took_ns
    counted[3] = cores * machine.clock_ghz
    counted[5:] = slowdown, 1.0
    return counted

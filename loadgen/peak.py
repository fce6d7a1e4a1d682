"""The highest load at which every tenant's QoS holds, by bisection on a factor common to all rates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass

from veltair.loadgen.tally import Lag, Tally, pooled

WIDTH = 0.03  # of the final bracket, relative to its lower end
LOWEST, HIGHEST = 2.0**-10, 2.0**10  # of the factor: beyond them the scenario's rates are wrong

Run = tuple[list[Tally], Lag]


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One factor, tried with one run per seed."""

    scale: float
    seeds: tuple[int, ...]  # that were run: a hopeless factor is given up early
    tallies: list[Tally]  # pooled over the runs
    lag: Lag  # of the worst run
    held: bool

    @property
    def qps(self) -> float:
        """Served, all tenants together."""
        return sum(t.served / (t.window_ns / 1e9) for t in self.tallies if t.window_ns)


def bisect(width: float = WIDTH) -> Generator[float, bool, float | None]:
    """Yields the factor to try, is sent whether it held, returns the highest that did (None: not even LOWEST).

    From 1 it doubles (or halves) until the answer turns, then halves the bracket down to `width`.
    """
    low, high, scale = 0.0, 0.0, 1.0  # 0: not known yet
    while True:
        if (yield scale):
            low = scale
        else:
            high = scale
        if not high:
            if low >= HIGHEST:
                return low
            scale = low * 2
        elif not low:
            if high <= LOWEST:
                return None
            scale = high / 2
        elif high - low <= width * low:
            return low
        else:
            scale = (low + high) / 2


def hopeless(runs: Sequence[Sequence[Tally]], planned: int) -> bool:
    """Whether a tenant has missed more already than all the planned runs together may miss."""
    for tally in pooled(runs):
        allowed = (1 - tally.percentile) * tally.offered / len(runs) * planned
        if tally.offered - tally.within > allowed + 1e-9:
            return True
    return False


async def find_peak(
    measure: Callable[[float, int], Awaitable[Run]],
    settle: Callable[[], Awaitable[None]],
    seeds: Sequence[int],
) -> AsyncIterator[Probe]:
    """The probes as they end; the peak is the one of the highest factor that held.

    `measure(scale, seed)` runs the load once. Each factor is tried with the same seeds, so that two factors
    differ in nothing but the rate. `settle` is awaited after every probe that failed.
    """
    search = bisect()
    scale = next(search)
    while True:
        runs: list[Run] = []
        for seed in seeds:
            runs.append(await measure(scale, seed))
            if hopeless([tallies for tallies, _ in runs], len(seeds)):
                break
        total = pooled([tallies for tallies, _ in runs])
        held = len(runs) == len(seeds) and all(t.qos_held for t in total)
        worst = max((lag for _, lag in runs), key=lambda lag: (lag.late_share, lag.max_ns))
        yield Probe(scale, tuple(seeds[: len(runs)]), total, worst, held)
        if not held:
            await settle()
        try:
            scale = search.send(held)
        except StopIteration:
            return

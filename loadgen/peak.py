"""The highest load at which every tenant's QoS holds, by bisection on a factor common to all rates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass

from veltair.loadgen.tenant_results import Lag, Tally

WIDTH = 0.03  # of the final bracket, relative to its lower end
LOWEST, HIGHEST = 2.0**-10, 2.0**10  # of the factor: beyond them the scenario's rates are wrong

Run = tuple[list[Tally], Lag]


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One factor, tried with one run per seed and judged by their median: a hiccup of the machine decides nothing."""

    scale: float
    seeds: tuple[int, ...]  # that were run: no more than it takes to know the median
    tallies: list[Tally]  # of the run that decided, the weakest that held or the best that did not
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


def _margin(run: Run) -> float:
    """How far the tenant that is worst off is above its percentile; negative where it is below."""
    return min((t.qos_rate or 0.0) - t.percentile for t in run[0])


async def find_peak(
    measure: Callable[[float, int], Awaitable[Run]],
    settle: Callable[[], Awaitable[None]],
    seeds: Sequence[int],
) -> AsyncIterator[Probe]:
    """The probes as they end; the peak is the one of the highest factor that held.

    `measure(scale, seed)` runs the load once. Each factor is tried with the same seeds, in the same order, so that two
    factors differ in nothing but the rate; most of the runs must hold. `settle` is awaited after every probe that
    failed.
    """
    search = bisect()
    scale = next(search)
    while True:
        held: list[Run] = []
        missed: list[Run] = []
        for seed in seeds:
            run = await measure(scale, seed)
            (held if all(t.qos_held for t in run[0]) else missed).append(run)
            if 2 * len(held) > len(seeds) or 2 * len(missed) >= len(seeds):
                break
        holds = 2 * len(held) > len(seeds)
        decisive, _ = min(held, key=_margin) if holds else max(missed, key=_margin)
        runs = held + missed
        worst = max((lag for _, lag in runs), key=lambda lag: (lag.late_share, lag.max_ns))
        yield Probe(scale, tuple(seeds[: len(runs)]), decisive, worst, holds)
        if not holds:
            await settle()
        try:
            scale = search.send(holds)
        except StopIteration:
            return

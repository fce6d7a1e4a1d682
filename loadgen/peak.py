"""The highest load at which every tenant's QoS holds, by bisection on a factor common to all rates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from veltair.loadgen.tenant_results import SendLag, TenantOutcomes

WIDTH = 0.03  # of the final bracket, relative to its lower end
LOWEST, HIGHEST = 2.0**-10, 2.0**10  # of the factor: beyond them the scenario's rates are wrong
CLIFF = 0.05  # a load that is hardly higher and misses a percentile by more is no edge but a collapse


class LoadRun(NamedTuple):
    """One run of the load at one scale.

    >>> LoadRun([], SendLag(late_share=0.2)).lag.too_large
    True
    """

    tenants: list[TenantOutcomes]
    lag: SendLag

    @property
    def held(self) -> bool:
        """Whether every tenant's QoS held."""
        return all(t.qos_held for t in self.tenants)

    @property
    def margin(self) -> float:
        """How far the tenant that is worst off is above its percentile; negative where it is below."""
        return min((t.qos_rate or 0.0) - t.percentile for t in self.tenants)


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One factor, tried with one run per seed and judged by their median, so that no single slow run decides.

    >>> Probe(2.0, (1, 2), [], SendLag(), held=True).qps
    0
    """

    scale: float
    seeds: tuple[int, ...]  # of the runs: only as many as decide the median
    tenants: list[TenantOutcomes]  # of the deciding run: the weakest that held or the best that did not
    lag: SendLag  # of the worst run
    held: bool

    @property
    def qps(self) -> float:
        """Served, all tenants together."""
        return sum(t.served / (t.window_ns / 1e9) for t in self.tenants if t.window_ns)


def describe_cliff(best: Probe | None, above: Probe | None) -> str | None:
    """Where the load just above the peak misses a tenant's percentile by far: such a peak may not be found again.

    best, above: the highest load that held, and the lowest that did not, if there were any.

    >>> describe_cliff(Probe(3.0, (1,), [], SendLag(), held=True), None)
    """
    if best is None or above is None or above.scale > best.scale * (1 + 2 * WIDTH) or not above.tenants:
        return None
    worst = min(above.tenants, key=lambda tenant: (tenant.qos_rate or 0.0) - tenant.percentile)
    rate = worst.qos_rate or 0.0
    if rate >= worst.percentile - CLIFF:
        return None
    return (
        f"the peak is unstable: x {best.scale:.3f} held, and at x {above.scale:.3f} {worst.name} was in time for "
        f"{rate * 100:.1f} %, wanted {worst.percentile * 100:g} %; another search may find another peak"
    )


def bisect_scale(width: float = WIDTH) -> Generator[float, bool, float | None]:
    """Yield the factor to try, receive whether it held, return the highest that did (None: not even LOWEST).

    From 1 it doubles (or halves) until the result changes, then halves the bracket down to `width`.
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


async def find_peak(
    measure: Callable[[float, int], Awaitable[LoadRun]],
    settle: Callable[[], Awaitable[None]],
    seeds: Sequence[int],
) -> AsyncIterator[Probe]:
    """Yield the probes as they end; the peak is the probe of the highest factor that held.

    Each factor is tried with the same seeds in the same order, so that two factors differ only in the rate; most of the
    runs must hold.

    Args:
        measure: runs the load once, at a scale and with a seed.
        settle: awaited after every probe that did not hold.
        seeds: one run each.
    """
    search = bisect_scale()
    scale = next(search)
    while True:
        held: list[LoadRun] = []
        missed: list[LoadRun] = []
        for seed in seeds:
            run = await measure(scale, seed)
            (held if run.held else missed).append(run)
            if 2 * len(held) > len(seeds) or 2 * len(missed) >= len(seeds):
                break
        holds = 2 * len(held) > len(seeds)
        by_margin = attrgetter("margin")
        deciding = min(held, key=by_margin) if holds else max(missed, key=by_margin)
        runs = held + missed
        worst = max((run.lag for run in runs), key=lambda lag: (lag.late_share, lag.max_ns))
        yield Probe(scale, tuple(seeds[: len(runs)]), deciding.tenants, worst, holds)
        if not holds:
            await settle()
        try:
            scale = search.send(holds)
        except StopIteration:
            return

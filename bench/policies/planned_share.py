"""The share of each target that a policy plans with, so that the rest is left for what it cannot foresee."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

from veltair.loadgen.peak import bisect_scale
from veltair.simulation.peak_search import RateTrial

SHARES = (1.0, 0.8, 0.65, 0.5)  # of each target, tried
FIXED = {"prema", "veltair"}  # one takes all cores, the other leaves a part of the target unplanned itself
SEEDS = (101,)  # disjoint from those that score a policy
QUERIES = 300  # of one run
WIDTH = 0.05  # of the final bracket, relative to its lower end
Steps: TypeAlias = Generator[float, bool, Any]  # factors on the rates to try; gets whether each held
# (planned share, seeds, queries, factors) -> the best trial that held
Search: TypeAlias = Callable[[float, Sequence[int], int, Steps], RateTrial | None]


def choose_share(policy: str, search: Search) -> tuple[float, float, dict[str, float]]:
    """Returns the share of each target that suits the policy best, the factor on the rates at which it held then, and
    the peaks in QPS by share that were tried. Other seeds choose than those that score."""
    trials: dict[str, float] = {}

    def trial(share: float) -> float:
        held = search(share, SEEDS, QUERIES, bisect_scale(WIDTH))
        trials[str(share)] = held.qps if held else 0.0
        return held.scale if held else 0.0

    share, near = (1.0, trial(1.0)) if policy in FIXED else best_share(trial)
    return share, near, trials


def best_share(trial: Callable[[float], float]) -> tuple[float, float]:
    """Returns the planned share with the highest peak, and that peak: from the two in the middle towards the better."""
    tried = {share: trial(share) for share in SHARES[1:3]}
    step = 1 if tried[SHARES[2]] > tried[SHARES[1]] else -1
    last = SHARES[3] if step == 1 else SHARES[0]
    tried[last] = trial(last)
    best = max(tried, key=tried.__getitem__)
    return best, tried[best]

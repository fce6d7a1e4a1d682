"""Selects the candidates of a layer that become its code versions (VELTAIR sec. 4.1, Alg. 1). Pure; no TVM.

Where the paper is silent or its text is wrong: the layer's share of the QoS goes by profiled time instead of by
operation count (which is next to nothing for an embedding), and a product that serves single queries must not lose
its best solo code to a trade-off, so the fastest candidate at every core count is always among the versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import Point

VERSIONS = 5  # V of Alg. 1
MAX_LOSS = 0.10  # sec. 4.1, last step: a version whose absence costs at most this is dropped


@dataclass(frozen=True, slots=True)
class Candidate:
    """One measured point of a layer's design space.

    >>> Candidate({"tile": 8}, block_size=4096, parallelism=16, run_ns=(900, 500)).best_ns
    500
    """

    point: Point
    block_size: int  # bytes of working set of one parallel task
    parallelism: int  # parallel extent x unroll
    run_ns: tuple[int, ...]  # on 1, 2, … cores; at least one
    origin: str = field(default="", compare=False)  # how the search found it, in words

    @property
    def best_ns(self) -> int:
        """The time at the best core count; time is not monotonic in cores."""
        return min(self.run_ns)


def layer_qos_ns(best_ns: Sequence[int], qos_ns: int) -> list[float]:
    """Each layer's share of the model's target, by the time of its best candidate (Alg. 1 l. 3, corrected)."""
    total = sum(best_ns)
    return [qos_ns * best / total for best in best_ns]


def extract_dominant(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the Pareto frontier of block size and parallelism, by ascending block size (l. 6, 14-29).

    Of candidates equal in both, only the fastest is kept.
    """
    fastest: dict[tuple[int, int], Candidate] = {}
    for candidate in candidates:
        key = (candidate.block_size, candidate.parallelism)
        if key not in fastest or candidate.best_ns < fastest[key].best_ns:
            fastest[key] = candidate
    kept: list[Candidate] = []
    least = float("inf")  # parallelism among strictly smaller block sizes
    for _, group in groupby(sorted(fastest), key=itemgetter(0)):
        keys = list(group)
        kept += [fastest[key] for key in keys if key[1] <= least]
        least = min(least, keys[0][1])
    return kept


def pick_evenly(frontier: Sequence[Candidate], count: int) -> list[Candidate]:
    """Pick `count` candidates at even steps, both ends included, none twice (l. 8-10); all where there are fewer."""
    steps = np.linspace(0, len(frontier) - 1, count).round().astype(int) if frontier else ()
    return [frontier[step] for step in dict.fromkeys(steps)]


def fastest_at_each_core_count(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The fastest candidate of each core count, without duplicates.

    Candidates may have times for different numbers of cores (measured on other machines).
    """
    found: dict[int, Candidate] = {}
    for column in range(max(len(c.run_ns) for c in candidates)):
        at, best = min(
            ((i, c) for i, c in enumerate(candidates) if column < len(c.run_ns)),
            key=lambda pair: pair[1].run_ns[column],
        )
        found[at] = best
    return list(found.values())


def select_versions(candidates: Sequence[Candidate], qos_ns: float, limit: int = VERSIONS) -> list[Candidate]:
    """Select at most `limit` code versions of a layer, by ascending block size; never empty (Alg. 1 l. 5-10).

    The fastest at every core count is always kept, on the frontier or not; the frontier of those that meet the
    layer's QoS fills the rest. Where more candidates are fastest somewhere than the limit allows, those stay whose
    absence would cost most. Where no candidate meets the QoS, only the fastest are selected.
    """
    best = fastest_at_each_core_count(candidates)
    if len(best) > limit:
        columns = min(len(c.run_ns) for c in best)
        table = np.array([c.run_ns[:columns] for c in best], dtype=np.float64)
        best = [best[i] for i in drop_least_missed(table, limit)]
    meeting = [c for c in candidates if c.best_ns <= qos_ns]
    frontier = extract_dominant(meeting)
    chosen = best
    for count in range(limit, 1, -1):
        wanted = best + [c for c in pick_evenly(frontier, count) if c not in best]
        if len(wanted) <= limit:
            chosen = wanted
            break
    return sorted(chosen, key=lambda c: (c.block_size, c.parallelism, c.best_ns))


def prune_versions(
    latency_ns: NDArray[np.float64], protected: Iterable[int] = (), max_loss: float = MAX_LOSS
) -> list[int]:
    """Return the indices of the versions worth their storage, ascending (sec. 4.1, last step).

    Versions are dropped one by one, the one whose absence costs least first, while the best of the rest stays within
    `max_loss` of the best of all in every cell. Protected versions stay.

    Args:
        latency_ns: (versions, cells); a cell is a batch size, interference level and core count.
        protected: indices of versions to keep.
        max_loss: as a fraction; 0.1 is 10 %.
    """
    kept = list(range(len(latency_ns)))
    fixed = set(protected)
    best = latency_ns.min(axis=0)
    while len(kept) > 1:
        loss, least = min(
            ((_loss(latency_ns, [k for k in kept if k != i], best), i) for i in kept if i not in fixed),
            default=(float("inf"), -1),
        )
        if loss > max_loss:
            break
        kept.remove(least)
    return kept


def drop_least_missed(latency_ns: NDArray[np.float64], count: int) -> list[int]:
    """Return the `count` versions left after dropping those whose absence costs least, one by one; ascending."""
    kept = list(range(len(latency_ns)))
    best = latency_ns.min(axis=0)
    while len(kept) > count:
        kept.remove(min(kept, key=lambda i: _loss(latency_ns, [k for k in kept if k != i], best)))
    return kept


def _loss(latency_ns: NDArray[np.float64], kept: Sequence[int], best: NDArray[np.float64]) -> float:
    """How much slower the best of `kept` is in its worst cell; 0.1 is 10 %."""
    return float(((latency_ns[list(kept)].min(axis=0) - best) / best).max())  # in this order, 11 over 10 is 0.1 exactly

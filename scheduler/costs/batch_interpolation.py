"""Profiles of batch sizes between those that were timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from veltair.types import LatencyTable, ModelProfile

STEP = 1.4  # a batch is planned as one of at most this many times its samples, or of the next whole number


def interpolate_batches(by_batch: Sequence[ModelProfile]) -> Iterator[ModelProfile]:
    """The profiles, ascending, and between two with the same code versions as many more as `STEP` asks for.

    One core's time, operations and bytes are linear in the batch there, and so is the gain of more cores. Their times
    are not: a version whose tasks are as large as a batch in between runs it as one task, and the larger batch, which
    it splits, would dominate the result.
    """
    for low, high in pairwise(by_batch):
        yield low
        batch = max(low.batch + 1, int(low.batch * STEP))
        while batch < high.batch and _have_same_tables(low, high):
            yield _interpolate(low, high, batch)
            batch = max(batch + 1, int(batch * STEP))
    yield by_batch[-1]


def _have_same_tables(low: ModelProfile, high: ModelProfile) -> bool:
    """Whether each layer has the same versions, timed at the same levels and core counts."""
    return _extent(low) == _extent(high)


def _extent(profile: ModelProfile) -> object:
    return len(profile.layers), [
        [(v.latency.levels, [len(row) for row in v.latency.latency_ns]) for v in versions]
        for versions in profile.versions
    ]


def _interpolate(low: ModelProfile, high: ModelProfile, batch: int) -> ModelProfile:
    share = (batch - low.batch) / (high.batch - low.batch)

    def mixed(a: int, b: int) -> int:
        return round(a + share * (b - a))

    def table(a: LatencyTable, b: LatencyTable) -> LatencyTable:
        before, after = np.array(a.latency_ns), np.array(b.latency_ns)  # [level][cores - 1]
        one, other = before[:, :1], after[:, :1]
        gain = (1 - share) * (one / before) + share * (other / after)
        times = np.rint((one + share * (other - one)) / gain).astype(np.int64)
        return LatencyTable(a.levels, tuple(map(tuple, times.tolist())))

    layers = tuple(
        replace(a, flops=mixed(a.flops, b.flops), bytes=mixed(a.bytes, b.bytes))
        for a, b in zip(low.layers, high.layers, strict=True)
    )
    versions = tuple(
        tuple(replace(a, latency=table(a.latency, b.latency)) for a, b in zip(*pair, strict=True))
        for pair in zip(low.versions, high.versions, strict=True)
    )
    return replace(low, batch=batch, layers=layers, versions=versions)

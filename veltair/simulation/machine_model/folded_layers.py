"""Layers as VELTAIR counts them: convolutions and products, each with the memory-bound operators that follow it.

The paper counts 55 layers in ResNet-50, "53 conv and 2 GEMM" (section 3.2), with operator fusion switched on (section
4.1). A pool or an addition that is scheduled by itself, with a share of the target by its operations, is never in time
and asks for its fastest core count, which would decide what layer-wise policies do.

For the scheduler a folded layer is one layer, whose time is the sum of its operators'. The machine runs its operators
one after the other as before. What a folded layer has versions of is its convolution or product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from veltair.simulation.machine_model.layer_shapes import LayerShape, ModelShape
from veltair.types import CodeVersion, LatencyTable, ModelProfile


@dataclass(frozen=True, slots=True)
class FoldedLayer:
    """Operators [start, stop) of a model that are one layer to the scheduler.

    >>> FoldedLayer(start=1, stop=3, main=1, versions=(0, 2)).operator_versions(4)
    [4, 2]
    """

    start: int
    stop: int
    main: int  # the convolution or product
    versions: tuple[int, ...]  # of each operator the one that runs; that of the main operator is the layer's own

    def operator_versions(self, version: int) -> list[int]:
        """The versions of all its operators when the layer runs in this one."""
        chosen = list(self.versions)
        chosen[self.main - self.start] = version
        return chosen


def fold_layers(shape: ModelShape, profile: ModelProfile) -> tuple[FoldedLayer, ...]:
    """Returns the model's layers as the paper counts them. What comes before the first belongs to that.

    A memory-bound operator runs in the version that takes the least time alone, over all core counts.
    """
    mains = [i for i, layer in enumerate(shape.layers) if _counts(layer)] or [0]
    starts = [0, *mains[1:], len(shape.layers)]
    chosen = [_quickest(versions) for versions in profile.versions]
    return tuple(
        FoldedLayer(start, stop, main, tuple(chosen[start:stop]))
        for main, (start, stop) in zip(mains, pairwise(starts), strict=True)
    )


def fold_profile(profile: ModelProfile, folded: Sequence[FoldedLayer]) -> ModelProfile:
    """Returns the profile of the folded layers."""
    layers, versions = [], []
    for index, layer in enumerate(folded):
        operators = profile.layers[layer.start : layer.stop]
        flops, moved = sum(each.flops for each in operators), sum(each.bytes for each in operators)
        layers.append(replace(profile.layers[layer.main], index=index, flops=flops, bytes=moved))
        versions.append(tuple(_sum_version(profile, layer, index, version) for version in profile.versions[layer.main]))
    return replace(profile, layers=tuple(layers), versions=tuple(versions))


def _counts(layer: LayerShape) -> bool:
    """Whether the paper counts it: a convolution, depthwise ones included, or a product."""
    return layer.m > 0 or layer.op == "depthwise_conv2d"


def _quickest(versions: Sequence[CodeVersion]) -> int:
    times = [sum(version.latency.latency_ns[0]) for version in versions]
    return times.index(min(times))


def _sum_version(profile: ModelProfile, layer: FoldedLayer, index: int, version: CodeVersion) -> CodeVersion:
    chosen = layer.operator_versions(version.index)
    operators = zip(profile.versions[layer.start : layer.stop], chosen, strict=True)
    times = np.sum([versions[at].latency.latency_ns for versions, at in operators], axis=0)
    table = LatencyTable(version.latency.levels, tuple(map(tuple, times.tolist())))
    return replace(version, layer=index, latency=table)

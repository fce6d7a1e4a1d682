"""Whole models against the sums of their layers."""

from __future__ import annotations

import pytest
from example_manifest import make_manifest

from veltair.profiles.artifact.manifest import LayerEntry, Manifest, VersionEntry
from veltair.profiles.runtime import whole_model_timing


@pytest.fixture
def manifest() -> Manifest:
    """Two layers, timed at two batches, two levels and on two cores."""

    def version(symbol: str, ns: int) -> VersionEntry:
        rows = tuple(((ns * b, ns * b // 2), (ns * b * 2, ns * b)) for b in (1, 3))
        return VersionEntry(symbol, (), 64, 8, {}, rows)

    layers = tuple(
        LayerEntry(name, "conv2d", (), (), (1, 3), (1, 3), tuple(version(f"{name}{ns}", ns) for ns in times))
        for name, times in (("first", (1000, 800)), ("second", (200,)))
    )
    return make_manifest(
        model="two",
        max_batch=3,
        batches=(1, 3),
        levels=(1.0, 2.0),
        layers=layers,
        environment={"cpu": "mine"},
    )


def test_layers_add_up_to_the_whole(manifest: Manifest) -> None:
    assert whole_model_timing.sum_layer_times(manifest) == ((1000, 500), (3000, 1500))
    whole = ((1500, 800), (3000, 3000))
    scaled = whole_model_timing.scale_latencies(manifest, whole)
    assert whole_model_timing.sum_layer_times(scaled) == whole
    slow, quick = scaled.layers[0].versions
    assert slow.latency_ns == (((1500, 800), (3000, 1600)), ((3000, 3000), (6000, 6000)))
    assert quick.latency_ns[0] == ((1200, 640), (2400, 1280))  # proportions of versions and levels stay
    assert scaled.environment == {"cpu": "mine", "times": whole_model_timing.IN_MODEL}


def test_the_same_whole_again_changes_nothing(manifest: Manifest) -> None:
    whole = ((1100, 700), (3500, 1800))
    once = whole_model_timing.scale_latencies(manifest, whole)
    assert whole_model_timing.scale_latencies(once, whole) == once

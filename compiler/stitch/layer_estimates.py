"""Estimated times of layers that stitched kernels compete with: `estimate_ns`."""

from __future__ import annotations

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.stitch.alternatives import stitched
from veltair.compiler.stitch.stitched_parameters import StitchedParameters
from veltair.compiler.stitch.stitched_space import StitchedSpace, point_ns

ANCHOR_RATIO = 1.0  # time of the layer norm of `kernels/rows` over that of its stitched program


def estimate_ns(spec: LayerSpec) -> float | None:
    """Time of a layer's best point at batch 1 on all cores; None for a layer that the cost model does not know."""
    if spec.op == "stitched":
        domains = spec.parameters_as(StitchedParameters).domains
        return point_ns(domains, StitchedSpace().points(spec, frozenset())[0])
    if spec.op == "layer_norm":
        same = [estimate_ns(layer) for layer in stitched(spec)]
        return ANCHOR_RATIO * same[0] if same and same[0] is not None else None
    return None

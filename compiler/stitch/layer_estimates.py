"""Estimated times of layers that stitched kernels compete with: `estimate_ns`."""

from __future__ import annotations

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.stitch.alternatives import stitched
from veltair.compiler.stitch.iteration_space import at_batch
from veltair.compiler.stitch.stitched_parameters import StitchedParameters
from veltair.compiler.stitch.stitched_space import StitchedSpace, point_ns

ANCHOR_RATIO = 1.0  # time of the layer norm of `kernels/rows` over that of its stitched program


def estimate_ns(spec: LayerSpec, batch: int) -> float | None:
    """Time of a layer's best point on all cores; None for a layer that the cost model does not know."""
    if spec.op == "stitched":
        domains = [at_batch(domain, batch) for domain in spec.parameters_as(StitchedParameters).domains]
        return min(point_ns(domains, point) for point in StitchedSpace().points(spec, frozenset()))
    if spec.op == "layer_norm":
        same = [estimate_ns(layer, batch) for layer in stitched(spec)]
        return ANCHOR_RATIO * same[0] if same and same[0] is not None else None
    return None

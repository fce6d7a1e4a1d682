"""What each kind of layer computes besides its tensors and weights: one typed class for each kind.

`base` holds the base class, `vision` the kinds on blocked feature maps. Patterns (`compiler/patterns`) make them;
kernels (`compiler/kernels`) and the references of tuning read them with `LayerSpec.parameters_as`.
"""

from veltair.compiler.graph.parameters.base import OUTSIDE_WORKLOAD, LayerParameters

__all__ = ["OUTSIDE_WORKLOAD", "LayerParameters"]

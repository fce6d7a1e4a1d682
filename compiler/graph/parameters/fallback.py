"""Parameters of layers that ONNX Runtime runs (`kernels/fallback`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from veltair.compiler.graph.parameters.base import OUTSIDE_WORKLOAD, LayerParameters


@dataclass(frozen=True, slots=True)
class OnnxRuntimeParameters(LayerParameters):
    """The model that the layer is.

    >>> OnnxRuntimeParameters("Einsum", "00c0ffee", False, "no way to compile Einsum").note
    'ONNX Runtime: no way to compile Einsum'
    """

    operators: str  # those of its nodes, for people
    model: str  # digest of the ONNX bytes: layers that share it share their sessions
    values_decide: bool  # whether values of its inputs decide shapes, or may be such that ONNX Runtime refuses them
    reason: str = field(metadata=OUTSIDE_WORKLOAD)  # why no kernel of ours computes it

    @property
    def note(self) -> str:
        return f"ONNX Runtime: {self.reason}"

"""Parameters of layers that ONNX Runtime runs (`kernels/fallback`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from veltair.compiler.graph.parameters.base import OUTSIDE_WORKLOAD, LayerParameters


@dataclass(frozen=True, slots=True)
class TextPlace:
    """Where the texts of an input lie in the packed buffers (`profiles.artifact.input_layout`).

    >>> TextPlace(0, 0, 1, 256).room
    256
    """

    first_end: int  # ends of a row before its own
    first_byte: int  # bytes of a row before its own
    width: int  # texts of a row
    room: int  # bytes of a row


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


@dataclass(frozen=True, slots=True)
class OnnxTextParameters(OnnxRuntimeParameters):
    """The model that a layer is whose inputs are the packed buffers of ends and bytes.

    >>> OnnxTextParameters("Tokenizer", "00c0ffee", True, "reads text", (TextPlace(0, 0, 1, 9),)).texts[0].room
    9
    """

    texts: tuple[TextPlace, ...]  # in the order of the model's inputs

"""The rewritings of a model in front of the search for patterns: operators in terms of others that layers compute."""

from __future__ import annotations

from collections.abc import Callable

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.patterns.einsum import einsums_as_products
from veltair.compiler.patterns.quantised.float_roundings import round_as_floats
from veltair.compiler.patterns.quantised.moved_steps import round_before_moves
from veltair.compiler.patterns.sequence.picked_positions import pick_positions_first
from veltair.compiler.patterns.vision.signals import signals_as_images
from veltair.compiler.patterns.vision.transposed import transposed_as_convolutions
from veltair.compiler.patterns.vision.volumes import volumes_as_images

# In order: each reads what those before it have written.
REWRITINGS: tuple[Callable[[ModelView], OnnxModel], ...] = (
    einsums_as_products,
    pick_positions_first,
    transposed_as_convolutions,
    volumes_as_images,
    signals_as_images,
    round_before_moves,
    round_as_floats,
)


def rewrite_model(model: OnnxModel, precision: str) -> OnnxModel:
    """The model behind all of them. precision: "fp32" or "bf16"."""
    for rewrite in REWRITINGS:
        model = rewrite(ModelView(model, precision))
    return model

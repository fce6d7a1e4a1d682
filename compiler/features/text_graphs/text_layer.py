"""Makes the layer that ONNX Runtime runs on the texts of a query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.features.feature_description import FeatureDescription
from veltair.compiler.features.feature_layout import FeatureLayout
from veltair.compiler.features.random_features import draw_buffers
from veltair.compiler.features.text_graphs.text_graph import TextGraph
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters import OUTSIDE_WORKLOAD
from veltair.compiler.graph.parameters.fallback import OnnxTextParameters, TextPlace
from veltair.profiles.artifact.manifest import ONNX_LAYER
from veltair.profiles.runtime.onnx_layers import frame_model

BUFFERS = ("ends", "bytes")


@dataclass(frozen=True, slots=True)
class TextLayerParameters(OnnxTextParameters):
    """The model that the layer is, and the texts that it reads; `text_layer` makes it. ::

    spec.parameters_as(TextLayerParameters).description.texts
    """

    description: FeatureDescription = field(metadata=OUTSIDE_WORKLOAD)

    def draw_inputs(self, batch: int, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Texts of words that the operators know, packed."""
        return draw_buffers(self.description, BUFFERS, batch, rng, self.description.texts)


def text_layer(graph: TextGraph, description: FeatureDescription, max_batch: int) -> LayerSpec:
    """The layer that gives the graph's outputs (B, …) from the packed texts. `description`: of all raw features.

    Raises ModelError for texts that do not fit in the greatest batch.
    """
    layout = FeatureLayout.from_description(description)
    layout.check_room(max_batch, description.path)
    rooms = {feature.name: feature.max_bytes for feature in layout.features}
    places = []
    for text in graph.inputs:
        first_end, first_byte = layout.starts[text.name]
        places.append(TextPlace(first_end, first_byte, text.width, rooms[text.name]))
    framed = frame_model(graph.model)
    return LayerSpec(
        name=f"{graph.outputs[0].name}/{ONNX_LAYER}",
        op=ONNX_LAYER,
        inputs=tuple(map(layout.activation, BUFFERS)),
        outputs=tuple(Activation(spec.name, spec.dtype, spec.shape) for spec in graph.outputs),
        weights={"model": framed},
        flops=0,  # nobody counts them; its share of the target follows from its time
        max_batch=max_batch,
        parameters=TextLayerParameters(
            operators=graph.operators,
            model=framed[:16].tobytes().hex(),
            values_decide=True,
            reason=f"no column takes what {graph.operators} make of text",
            texts=tuple(places),
            description=description,
        ),
    )

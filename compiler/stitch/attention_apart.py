"""Attention as layers of its own steps: two batched products, and between them a stitched softmax.

Heads are moved side by side before, and back behind. The kernel of `kernels/attention` keeps scores in the cache of a
core, and pays for it with small products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import make_node

from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.products import BatchedMatmulParameters
from veltair.compiler.graph.parameters.sequence import AttentionParameters
from veltair.compiler.kernels.attention.softmax import LOWEST, NO_KEY
from veltair.compiler.stitch.iteration_space import iteration_space
from veltair.compiler.stitch.operators.node_translation import translate_node
from veltair.compiler.stitch.operators.program_nodes import OPSET
from veltair.compiler.stitch.stitch_program import build_program
from veltair.compiler.stitch.stitched_layer import StitchedPart, stitched_layer
from veltair.types import TensorSpec

IN_ORDER = (0, 1, 2, 3)


def attention_apart(spec: LayerSpec) -> tuple[LayerSpec, ...]:
    """The layers of an attention's steps, with its input and output; none for other layers.

    None either for bfloat16, and for constant masks that repeat with the images.
    """
    if spec.op != "attention" or spec.inputs[0].dtype != "float32":
        return ()
    repeats = "mask" in spec.weights and spec.weights["mask"].shape[0] > 1
    return () if repeats else _AttentionSteps(spec).layers()


class _AttentionSteps:
    """Makes the layers of one attention. ::

    layers = _AttentionSteps(spec).layers()
    """

    def __init__(self, spec: LayerSpec) -> None:
        self.spec, self.parameters = spec, spec.parameters_as(AttentionParameters)
        (self.output,) = spec.outputs
        self.images = self.output.shape[0] // self.parameters.tokens

    def layers(self) -> tuple[LayerSpec, ...]:
        spec, parameters = self.spec, self.parameters
        names = ("query", "key", "value")
        query, key, value = sides = tuple(
            self._tensor(name, extent, parameters.width) for name, extent in zip(names, parameters.extents, strict=True)
        )
        scores = self._tensor("scores", parameters.tokens, parameters.keys)
        likely = self._tensor("likely", parameters.tokens, parameters.keys)
        mixed = self._tensor("mixed", parameters.tokens, parameters.width)
        softmax = self._softmax(scores, likely)
        if softmax is None:
            return ()
        heads = tuple(spec.inputs[place] for place in range(1 + max(place for place, _ in parameters.places)))
        split = LayerSpec(f"{spec.name}/split", "split_heads", heads, sides, {}, 0, spec.max_batch, parameters)
        merge = LayerSpec(
            f"{spec.name}/merge", "merge_heads", (mixed,), spec.outputs, {}, 0, spec.max_batch, parameters
        )
        return (
            split,
            self._product("scores", query, key, (0, 1, 3, 2), scores, parameters.scale),
            softmax,
            self._product("mixed", likely, value, IN_ORDER, mixed, 1.0),
            merge,
        )

    def _tensor(self, name: str, rows: int, columns: int) -> Activation:
        shape = (self.images, self.parameters.heads, rows, columns)
        return Activation(f"{self.output.name}/{name}", "float32", shape)

    def _product(
        self,
        name: str,
        left: Activation,
        right: Activation,
        right_order: tuple[int, ...],
        y: Activation,
        scale: float,
    ) -> LayerSpec:
        parameters = BatchedMatmulParameters(IN_ORDER, right_order, "", scale, "none")
        weights = {"bias": np.zeros(y.shape[-1], np.float32)}
        flops = 2 * int(np.prod(np.abs(y.shape))) * left.shape[-1]
        return LayerSpec(
            f"{self.spec.name}/{name}",
            "batched_matmul",
            (left, right),
            (y,),
            weights,
            flops,
            self.spec.max_batch,
            parameters,
        )

    def _softmax(self, scores: Activation, likely: Activation) -> LayerSpec | None:
        """What the kernel of `kernels/attention` computes: a row without any key is zeros."""
        name, added = likely.name, scores.name
        nodes: list[onnx.NodeProto] = []
        tensors = {scores.name: scores, name: likely}
        constants = {f"{name}/lowest": np.array(LOWEST, np.float32), f"{name}/least": np.array(NO_KEY, np.float32)}
        weights: dict[str, NDArray[Any]] = {}
        if self.parameters.masked:
            added, mask = f"{name}/masked", self._mask()
            if isinstance(mask, Activation):
                tensors[mask.name], mask_name = mask, mask.name
            else:
                mask_name = f"{name}/mask"
                weights = {mask_name: mask}
            nodes.append(make_node("Add", [scores.name, mask_name], [added]))
        nodes += [
            make_node("ReduceMax", [added], [f"{name}/most"], axes=[-1]),
            make_node("Max", [f"{name}/most", f"{name}/lowest"], [f"{name}/maximum"]),
            make_node("Sub", [added, f"{name}/maximum"], [f"{name}/below"]),
            make_node("Exp", [f"{name}/below"], [f"{name}/exponential"]),
            make_node("ReduceSum", [f"{name}/exponential", f"{name}/axes"], [f"{name}/sum"]),
            make_node("Max", [f"{name}/sum", f"{name}/least"], [f"{name}/total"]),
            make_node("Div", [f"{name}/exponential", f"{name}/total"], [name]),
        ]
        constants |= {f"{name}/axes": np.array([-1])} | weights
        row = (*scores.shape[:-1], 1)
        rows = {f"{name}/{end}" for end in ("most", "maximum", "sum", "total")}
        shapes = {made: row if made in rows else scores.shape for node in nodes for made in node.output}
        shapes |= {tensor.name: tensor.shape for tensor in tensors.values()}
        values = {key: TensorSpec(key, "float32", shape) for key, shape in shapes.items()}
        translated = [translate_node(node, values, constants, OPSET) for node in nodes]
        ops = [op for found in translated if found is not None for op in found]
        if None in translated:
            return None
        program = build_program(ops, shapes | {key: weight.shape for key, weight in weights.items()}, {name})
        if iteration_space(program) is None:
            return None
        return stitched_layer([StitchedPart(program, tensors, weights)], self.spec.max_batch)

    def _mask(self) -> Activation | NDArray[Any]:
        return self.spec.weights["mask"] if "mask" in self.spec.weights else self.spec.inputs[-1]

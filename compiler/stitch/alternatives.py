"""Other ways to compute a layer: what competes with it when a model is compiled (`tuning.implementation_choice`), and
`estimate_ns`, what a layer takes where nothing is measured.

Each way is a sequence of layers with the layer's own inputs and outputs:

- "apart": independent programs that one kernel packs, each in a kernel of its own;
- "stitched": the layer of a kernel of its own kind (an anchor), as a stitched program;
- "attention apart": an attention as two products, with a stitched softmax between them (`attention_apart`);
- "fused by TVM": the operators of a stitched program, as TVM's own fusion cuts them.

An alternative may have alternatives itself: of programs that are apart, each may be left to TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.sequence import LayerNormParameters
from veltair.compiler.kernels.generic.relax_layers import import_layers
from veltair.compiler.stitch.attention_apart import attention_apart
from veltair.compiler.stitch.iteration_space import at_batch, iteration_space
from veltair.compiler.stitch.operators.node_translation import translate_node
from veltair.compiler.stitch.operators.program_nodes import OPSET, ProgramNodes
from veltair.compiler.stitch.stitch_program import build_program
from veltair.compiler.stitch.stitched_layer import StitchedPart, parts_of, stitched_layer
from veltair.compiler.stitch.stitched_parameters import StitchedParameters
from veltair.compiler.stitch.stitched_space import StitchedSpace, point_ns
from veltair.errors import ModelError
from veltair.types import TensorSpec

Layers = tuple[LayerSpec, ...]
ANCHOR_RATIO = 1.0  # time of the layer norm of `kernels/rows` over that of its stitched program


def apart(spec: LayerSpec) -> Layers:
    """A kernel for each of the programs that a stitched layer packs; none where it has one program."""
    if spec.op != "stitched" or len(spec.parameters_as(StitchedParameters).domains) == 1:
        return ()
    return tuple(stitched_layer([part], spec.max_batch) for part in parts_of(spec))


def stitched(spec: LayerSpec) -> Layers:
    """The stitched kernel of a layer norm; none for other layers."""
    if spec.op != "layer_norm":
        return ()
    (x,), (y,) = spec.inputs, spec.outputs
    epsilon = spec.parameters_as(LayerNormParameters).epsilon
    names = (x.name, "scale", "shift")
    node = onnx.helper.make_node("LayerNormalization", names, [y.name], axis=-1, epsilon=epsilon)
    values = {tensor.name: TensorSpec(tensor.name, "float32", tensor.shape) for tensor in (x, y)}  # as it computes
    ops = translate_node(node, values, spec.weights, OPSET)
    if ops is None:
        return ()
    shapes = {x.name: x.shape} | {name: weight.shape for name, weight in spec.weights.items()}
    program = build_program(ops, shapes, {y.name})
    if iteration_space(program) is None:
        return ()
    return (stitched_layer([StitchedPart(program, {x.name: x, y.name: y}, spec.weights)], spec.max_batch),)


def fused_by_tvm(spec: LayerSpec) -> Layers:
    """TVM's own fusion of a stitched program; none where it cannot take its operators, or gives a view."""
    tensors = (*spec.inputs, *spec.outputs)
    if spec.op != "stitched" or any(tensor.dtype == "uint16" for tensor in tensors):  # it has no bfloat16 bits
        return ()
    part, *others = parts_of(spec)
    if others:  # TVM never packs: `apart` comes first
        return ()
    nodes = ProgramNodes(part, f"{spec.outputs[0].name}/tvm")
    try:
        region = import_layers(
            nodes.nodes, nodes.values, nodes.constants, nodes.inputs, nodes.outputs, spec.max_batch, OPSET
        )
    except ModelError:
        return ()
    return () if region.views else region.layers


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of `ALTERNATIVES`."""

    make: Callable[[LayerSpec], Layers]  # the layers in a layer's place; none where it has no such alternative
    estimated: bool  # whether `estimate_ns` knows the time of its layers


ALTERNATIVES: Mapping[str, Alternative] = {
    "apart": Alternative(apart, estimated=True),
    "stitched": Alternative(stitched, estimated=True),
    "attention apart": Alternative(attention_apart, estimated=False),
    "fused by TVM": Alternative(fused_by_tvm, estimated=False),  # no faster in any row of bench/kernels/stitching
}


def estimate_ns(spec: LayerSpec, batch: int) -> float | None:
    """Time of a layer's best point on all cores; None for a layer that the cost model does not know."""
    if spec.op == "stitched":
        domains = [at_batch(domain, batch) for domain in spec.parameters_as(StitchedParameters).domains]
        return min(point_ns(domains, point) for point in StitchedSpace().points(spec, frozenset()))
    if spec.op == "layer_norm":
        same = [estimate_ns(layer, batch) for layer in stitched(spec)]
        return ANCHOR_RATIO * same[0] if same and same[0] is not None else None
    return None

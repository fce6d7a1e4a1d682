"""Makes one layer of nodes that ONNX Runtime shall run: a model of their own, kept among the weights as bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.fallback import OnnxRuntimeParameters
from veltair.compiler.onnx.constants import captured_names
from veltair.compiler.onnx.folding.opaque_nodes import body_nodes, is_opaque
from veltair.compiler.onnx.node_evaluation import IR_VERSION
from veltair.errors import ModelError
from veltair.profiles.artifact.manifest import ONNX_LAYER
from veltair.profiles.runtime.onnx_layers import frame_model
from veltair.types import TensorSpec

MOST_BYTES = 1 << 30  # of a layer's constants: protobuf holds 2 GB, and each session a copy


def onnxruntime_layer(
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, TensorSpec],
    constants: Mapping[str, NDArray[Any]],
    inputs: Sequence[str],
    outputs: Sequence[str],
    max_batch: int,
    opset: int,
    other_opsets: Mapping[str, int],
    reason: str,
) -> LayerSpec:
    """The layer of a run of nodes; arguments are those of `kernels.generic.import_layers`.

    other_opsets: versions of operator sets beside ONNX's own, by domain.
    reason: why no kernel computes them, for `inspect`. Raises ModelError where it cannot be a layer.
    """
    whole_numbers = any(np.dtype(values[name].dtype).kind in "iu" for name in inputs)  # axes, sizes, indices, …
    values_decide = whole_numbers or any(map(is_opaque, nodes))
    nodes = [n for node in nodes for n in (body_nodes(node) if is_opaque(node) else _resize(node, values, constants))]
    used = dict.fromkeys(name for node in nodes for name in (*node.input, *captured_names(node)) if name in constants)
    if sum(constants[name].nbytes for name in used) > MOST_BYTES:
        raise ModelError(f"{reason}; its constants are too large for ONNX Runtime (expected at most 1 GB)")
    for name in used:
        if str(constants[name].dtype) != values[name].dtype:  # rows of a table that the file keeps narrower
            raise ModelError(reason)
    graph = onnx.helper.make_graph(
        list(nodes),
        "layer",
        [_value(values[name]) for name in inputs],
        [_value(values[name]) for name in outputs],
        initializer=[onnx.numpy_helper.from_array(np.asarray(constants[name]), name) for name in used],
    )
    opsets = [onnx.helper.make_opsetid("", opset)]
    opsets += [onnx.helper.make_opsetid(domain, version) for domain, version in sorted(other_opsets.items())]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    framed = frame_model(model.SerializeToString(deterministic=True))
    counts = Counter(node.op_type for node in nodes)
    return LayerSpec(
        name=f"{outputs[0]}/{ONNX_LAYER}",
        op=ONNX_LAYER,
        inputs=tuple(_activation(values[name]) for name in inputs),
        outputs=tuple(_activation(values[name]) for name in outputs),
        weights={"model": framed},
        flops=0,  # nobody counts them for any operator; its share of the target follows from its time
        max_batch=max_batch,
        parameters=OnnxRuntimeParameters(
            operators="+".join(f"{count}x{op}" if count > 1 else op for op, count in sorted(counts.items())),
            model=framed[:16].tobytes().hex(),
            values_decide=values_decide,
            reason=reason,
        ),
    )


def _resize(
    node: onnx.NodeProto, values: Mapping[str, TensorSpec], constants: Mapping[str, NDArray[Any]]
) -> list[onnx.NodeProto]:
    """The node; sizes of a Resize, in which 1 stands for the batch (`shape_arguments`), get it from the input."""
    if node.op_type != "Resize" or len(node.input) < 4 or node.input[3] not in constants:
        return [node]
    grows = np.array([dim < 0 for dim in values[node.output[0]].shape])
    if not grows.any() or constants[node.input[3]].shape != grows.shape:
        return [node]
    extents, mask, sizes = (f"{node.output[0]}/{what}" for what in ("extents", "grows", "sizes"))
    changed = onnx.NodeProto.FromString(node.SerializeToString())
    changed.input[3] = sizes
    return [
        onnx.helper.make_node("Shape", [node.input[0]], [extents]),
        onnx.helper.make_node("Constant", [], [mask], value=onnx.numpy_helper.from_array(grows)),
        onnx.helper.make_node("Where", [mask, extents, node.input[3]], [sizes]),
        changed,
    ]


def _activation(spec: TensorSpec) -> Activation:
    return Activation(spec.name, spec.dtype, spec.shape)


def _value(spec: TensorSpec) -> onnx.ValueInfoProto:
    """A port of the layer's model. Extents that vary have the multiple of the batch as their name."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return onnx.helper.make_tensor_value_info(spec.name, kind, [d if d >= 0 else f"batch_x{-d}" for d in spec.shape])

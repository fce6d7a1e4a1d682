"""One ONNX node by itself: the types of its outputs by ONNX's shape inference, their values by ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from veltair.compiler.onnx.node_attributes import attribute
from veltair.profiles.runtime.onnx_layers import TYPES

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]

IR_VERSION = 10  # any that ONNX Runtime reads
DATA_BYTES = 4096  # of values that shape inference is told: they may be shapes, axes or repeats
# Up to operator set 21, ONNX's inference counts windows that begin beyond a plane's end where ceil_mode rounds up;
# ONNX Runtime does not, whatever the set.
POOLS, LIKE_ONNXRUNTIME = ("MaxPool", "AveragePool", "LpPool"), 22


@dataclass(frozen=True, slots=True)
class TensorType:
    """An ONNX element type and a shape; None where the shape is not known.

    >>> TensorType(onnx.TensorProto.INT64, (2,)).elements
    2
    """

    kind: int
    shape: Shape | None

    @property
    def elements(self) -> int | None:
        return None if self.shape is None else math.prod(self.shape)

    def proto(self) -> onnx.TypeProto:
        return helper.make_tensor_type_proto(self.kind, self.shape)


def infer_node(
    node: onnx.NodeProto, opset: int, types: Mapping[str, TensorType], values: Mapping[str, Array]
) -> dict[str, TensorType]:
    """The type of each output that can be told from the types of the inputs and from their values, where known.

    types: of the node's inputs, and of what graphs inside it read. Raises what ONNX raises for inputs that do not fit.
    """
    if node.op_type in POOLS and not node.domain:
        opset = max(opset, LIKE_ONNXRUNTIME)
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    data = _told(node, values)
    given = {name: known.proto() for name, known in types.items()}
    opsets = [helper.make_opsetid(node.domain, opset)]
    found = _read(onnx.shape_inference.infer_node_outputs(schema, node, given, data, None, opsets, onnx.IR_VERSION))
    if node.op_type == "Resize":
        found = {name: _resized(node, known, types, values) for name, known in found.items()}
    if all(name in found and found[name].shape is not None for name in node.output if name):
        return found
    # An operator that ONNX defines by others has no inference of its own, but a graph of it has.
    inputs = [onnx.ValueInfoProto(name=name, type=known) for name, known in given.items() if name not in data]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs, list(data.values()))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=onnx.IR_VERSION)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return found | _read({value.name: value.type for value in inferred.graph.output})


def _resized(
    node: onnx.NodeProto, known: TensorType, types: Mapping[str, TensorType], values: Mapping[str, Array]
) -> TensorType:
    """What Resize gives by scales in ONNX Runtime, which multiplies in float32, and ONNX in float64."""
    scales = values.get(node.input[2]) if len(node.input) > 2 else None
    shape = types[node.input[0]].shape
    cropped = attribute(node, "coordinate_transformation_mode", b"") == b"tf_crop_and_resize"
    if scales is None or shape is None or len(scales) != len(shape) or cropped:
        return known
    return TensorType(known.kind, tuple(int(np.float32(d) * s) for d, s in zip(shape, scales, strict=True)))


def infer_foreign(
    node: onnx.NodeProto, opsets: Mapping[str, int], types: Mapping[str, TensorType], values: Mapping[str, Array]
) -> dict[str, TensorType]:
    """Types of the outputs of an operator that ONNX does not know, by ONNX Runtime's own inference; empty where that
    has none.

    opsets: versions of operator sets, by domain.
    """
    data = _told(node, values)
    inputs = [onnx.ValueInfoProto(name=name, type=known.proto()) for name, known in types.items() if name not in data]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs, list(data.values()))
    ids = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    session = _session(helper.make_model(graph, opset_imports=ids, ir_version=IR_VERSION).SerializeToString())
    found = {}
    for port in session.get_outputs() if session else ():
        if port.type in TYPES and all(isinstance(dim, int) for dim in port.shape):
            kind = helper.np_dtype_to_tensor_dtype(TYPES[port.type])
            found[port.name] = TensorType(kind, tuple(port.shape))
    return found


def measure_node(
    node: onnx.NodeProto, opsets: Mapping[str, int], types: Mapping[str, TensorType]
) -> dict[str, TensorType]:
    """Types of the outputs of an operator whose shapes no values decide, from a run of it on zeros; empty where ONNX
    Runtime does not run it, or an input is text.

    opsets: versions of operator sets, by domain.
    """
    if any(known.shape is None or known.kind == onnx.TensorProto.STRING for known in types.values()):
        return {}
    inputs = [onnx.ValueInfoProto(name=name, type=known.proto()) for name, known in types.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    ids = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(
        helper.make_graph([node], "node", inputs, outputs), opset_imports=ids, ir_version=IR_VERSION
    )
    session = _session(model.SerializeToString())
    if session is None:
        return {}
    feeds = {n: np.zeros(k.shape or (), helper.tensor_dtype_to_np_dtype(k.kind)) for n, k in types.items()}
    try:
        found = dict(zip((value.name for value in outputs), session.run(None, feeds), strict=True))
    except Exception:  # ONNX Runtime raises whatever its kernels raise
        return {}
    arrays = {name: np.asarray(value) for name, value in found.items() if isinstance(value, np.ndarray)}
    return {
        n: TensorType(helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in arrays.items() if a.dtype != object
    }


def _told(node: onnx.NodeProto, values: Mapping[str, Array]) -> dict[str, onnx.TensorProto]:
    """The values of inputs that inference is told."""
    return {
        name: numpy_helper.from_array(np.asarray(values[name]), name)
        for name in node.input
        if name in values and values[name].nbytes <= DATA_BYTES
    }


def _read(types: Mapping[str, onnx.TypeProto]) -> dict[str, TensorType]:
    found = {}
    for name, known in types.items():
        tensor = known.tensor_type
        if known.HasField("tensor_type") and tensor.elem_type:
            dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
            whole = tensor.HasField("shape") and -1 not in dims
            found[name] = TensorType(tensor.elem_type, tuple(dims) if whole else None)
    return found


@dataclass(frozen=True, slots=True)
class NodeEvaluator:
    """Runs single nodes in ONNX Runtime. Nodes that differ in names alone share a session.

    >>> node = helper.make_node("Concat", ["a", "b"], ["c"], axis=0)
    >>> NodeEvaluator(17).run(node, [np.array([2, 3]), np.array([-1])])[0].tolist()
    [2, 3, -1]
    """

    opset: int
    _sessions: dict[bytes, ort.InferenceSession | None] = field(default_factory=dict)

    def run(self, node: onnx.NodeProto, inputs: Sequence[Array | None]) -> list[Array] | None:
        """The node's outputs; None where ONNX Runtime cannot compute them.

        inputs: in the node's order; None for one that is left out. Graphs inside the node may read nothing outside.
        """
        model = self._model(node, inputs)
        key = model.SerializeToString(deterministic=True)
        if key not in self._sessions:
            self._sessions[key] = _session(key)
        session = self._sessions[key]
        if session is None:
            return None
        feeds = {
            f"i{place}": np.ascontiguousarray(a).reshape(a.shape) for place, a in enumerate(inputs) if a is not None
        }
        try:
            return list(session.run(None, feeds))
        except Exception:  # ONNX Runtime raises whatever its kernels raise
            return None

    def _model(self, node: onnx.NodeProto, inputs: Sequence[Array | None]) -> onnx.ModelProto:
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        del plain.input[:], plain.output[:]
        plain.ClearField("name")
        plain.ClearField("doc_string")
        del plain.metadata_props[:]
        plain.input.extend(f"i{place}" if a is not None else "" for place, a in enumerate(inputs))
        plain.output.extend(f"o{place}" if name else "" for place, name in enumerate(node.output))
        kinds = {f"i{p}": helper.np_dtype_to_tensor_dtype(a.dtype) for p, a in enumerate(inputs) if a is not None}
        ports = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
        results = [onnx.ValueInfoProto(name=name) for name in plain.output if name]
        graph = helper.make_graph([plain], "node", ports, results)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, self.opset)], ir_version=8)


def _session(model: bytes) -> ort.InferenceSession | None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # ONNX Runtime raises whatever its loader raises
        return None


def is_unfilled(node: onnx.NodeProto, types: Mapping[str, TensorType]) -> bool:
    """Whether a part of a Concat has no elements, but an extent along its axis, and others have elements.

    ONNX Runtime makes room for such a part and writes nothing there: what the memory held before is the result.
    """
    if node.op_type != "Concat" or any(name not in types or types[name].shape is None for name in node.input):
        return False
    shapes = [types[name].shape or () for name in node.input]
    axis = attribute(node, "axis", 0)
    return any(map(all, shapes)) and any(
        -len(shape) <= axis < len(shape) and 0 in shape and shape[axis] for shape in shapes
    )

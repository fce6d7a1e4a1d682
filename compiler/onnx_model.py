"""The way in: an ONNX file, checked, simplified and with every shape known.

ONNX Runtime at its basic level folds batch norms and constants and stays in standard operators. Tables (large
constants that only Gather reads) never pass through it: they stay mapped from the file that holds them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.errors import ModelError
from veltair.types import TensorSpec

OPSET = 17  # older models are converted up to it
TABLE_BYTES = 1 << 20  # a constant from here on, read by Gather alone, is a table
MAX_BATCH = 32  # of a dynamic batch, where neither the caller nor the model says
BATCHES = (7, 11)  # shapes are inferred at both: what grows with the batch is told from what does not
INPUT_TYPES = {"float32", "int64", "int32", "bool", "uint8", "int8"}


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A model ready to be lowered. Shapes are ONNX ones; -k stands for k times the batch."""

    path: Path
    name: str
    opset: int
    nodes: tuple[onnx.NodeProto, ...]  # topological order, every one named
    values: Mapping[str, TensorSpec]  # every tensor, constants included
    initializers: Mapping[str, NDArray[Any]]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int
    metadata: Mapping[str, str]


def load(path: Path, max_batch: int | None = None) -> OnnxModel:
    """Read a model. `max_batch` matters for a symbolic first dimension alone.

    Raises ModelError saying what was expected and where.
    """
    proto = _parse(path)
    tables = _take_tables(proto, path)
    proto = _up_to_date(proto, path)
    simple = _simplified(proto, path)
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    dynamic = _is_dynamic(simple, path)
    if not dynamic:
        limit = 1
    elif max_batch is not None:
        limit = max_batch
    else:
        stated = metadata.get("veltair.max_batch", str(MAX_BATCH))
        limit = int(stated) if stated.isdecimal() else 0
    if limit < 1:
        raise ModelError(f"{path}: expected a greatest batch of at least 1, got {limit}")
    values = _shapes(simple, dynamic, path)
    constants = {t.name: numpy_helper.to_array(t) for t in simple.graph.initializer} | tables
    for name, array in constants.items():
        values[name] = TensorSpec(name, str(array.dtype), array.shape)
    nodes = _named(simple, path)
    inputs = tuple(values[i.name] for i in simple.graph.input if i.name not in constants)
    outputs = tuple(values[o.name] for o in simple.graph.output)
    for spec in (*inputs, *outputs):
        if spec.dtype not in INPUT_TYPES:
            raise ModelError(f"{path}: tensor {spec.name!r} is {spec.dtype}; expected float32 or an integer type")
        if 0 in spec.shape or any(d < 0 for d in spec.shape[1:]) or any(d < -1 for d in spec.shape):
            raise ModelError(f"{path}: tensor {spec.name!r} has shape {spec.shape}; expected positive dimensions")
    opset = next(o.version for o in simple.opset_import if o.domain in ("", "ai.onnx"))
    return OnnxModel(path, path.stem, opset, nodes, values, constants, inputs, outputs, limit, metadata)


def _parse(path: Path) -> onnx.ModelProto:
    """The protobuf, external data not yet read, checked."""
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except Exception:
        raise ModelError(f"{path}: not an ONNX file (no ModelProto could be read from it)") from None
    if not proto.graph.node or not proto.opset_import:
        raise ModelError(f"{path}: not an ONNX model (it has no nodes or no operator set)")
    for tensor in _tensors(proto.graph):
        if tensor.data_location == TensorProto.EXTERNAL:
            _check_external(tensor, path)
    try:
        onnx.checker.check_model(str(path))
    except Exception as error:
        raise ModelError(f"{path}: {_first_line(error)}") from None
    return proto


def _tensors(graph: onnx.GraphProto) -> list[TensorProto]:
    """Initializers and constants of a graph and of the graphs inside its nodes."""
    found = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                found.append(attribute.t)
            if attribute.HasField("g"):
                found.extend(_tensors(attribute.g))
    return found


def _external(tensor: TensorProto, path: Path) -> tuple[Path, int, int]:
    """File, offset and length in bytes of a tensor's external data."""
    entry = {e.key: e.value for e in tensor.external_data}
    where = f"{path}: tensor {tensor.name!r}"
    location = Path(entry.get("location", ""))
    folder = path.resolve().parent
    file = (folder / location).resolve()
    if not entry.get("location") or location.is_absolute() or ".." in location.parts or folder not in file.parents:
        raise ModelError(f"{where}: external data at {str(location)!r} lies outside the model's folder")
    try:
        size = file.stat().st_size
        offset = int(entry.get("offset", 0))
        length = int(entry.get("length", size - offset))
    except OSError as error:
        raise ModelError(f"{where}: external data {str(location)!r}: {error.strerror}") from None
    except ValueError:
        raise ModelError(f"{where}: external data has an offset or length that is no number") from None
    if offset < 0 or length < 0 or offset + length > size:
        raise ModelError(f"{where}: external data ends at byte {offset + length} of {location}, which has {size}")
    return file, offset, length


def _check_external(tensor: TensorProto, path: Path) -> None:
    _, _, length = _external(tensor, path)
    if any(d < 0 for d in tensor.dims):
        raise ModelError(f"{path}: tensor {tensor.name!r} has a negative dimension: {list(tensor.dims)}")
    wanted = int(np.prod(tensor.dims, dtype=object)) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    if wanted != length:
        raise ModelError(
            f"{path}: tensor {tensor.name!r} of {list(tensor.dims)} takes {wanted} bytes, its external data has {length}"
        )


def _take_tables(proto: onnx.ModelProto, path: Path) -> dict[str, NDArray[Any]]:
    """Turn tables into inputs of the graph and return them, mapped; read every other external tensor."""
    graph = proto.graph
    users: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            users.setdefault(name, []).append((node, place))
    outputs = {o.name for o in graph.output}
    tables: dict[str, NDArray[Any]] = {}
    kept = []
    for tensor in graph.initializer:
        if tensor.name not in users and tensor.name not in outputs:
            continue  # read by nobody; ONNX Runtime stumbles over some of these
        size = int(np.prod(tensor.dims)) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        only_gather = all(node.op_type == "Gather" and place == 0 for node, place in users.get(tensor.name, []))
        external = tensor.data_location == TensorProto.EXTERNAL
        if size < TABLE_BYTES or not only_gather or tensor.name in outputs:
            if external:
                onnx.external_data_helper.load_external_data_for_tensor(tensor, str(path.resolve().parent))
                tensor.data_location = TensorProto.DEFAULT
            kept.append(tensor)
            continue
        if external:
            file, offset, _ = _external(tensor, path)
            dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            tables[tensor.name] = np.memmap(file, dtype, "r", offset, tuple(tensor.dims))
        else:
            tables[tensor.name] = numpy_helper.to_array(tensor)
        graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return tables


def _up_to_date(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """At least opset 17, and constants no longer listed as inputs."""
    version = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    if version < OPSET:
        try:
            proto = onnx.version_converter.convert_version(proto, OPSET)
        except Exception as error:
            raise ModelError(
                f"{path}: cannot be converted from opset {version} to {OPSET}: {_first_line(error)}"
            ) from None
    proto.ir_version = max(proto.ir_version, 8)  # below 4, a constant had to be an input as well
    constants = {t.name for t in proto.graph.initializer}
    inputs = [i for i in proto.graph.input if i.name not in constants]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    return proto


def _simplified(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory(prefix="veltair-") as folder:
        out = Path(folder) / "simple.onnx"
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(out)
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
            return onnx.load(str(out))
        except Exception as error:
            raise ModelError(f"{path}: {_first_line(error)}") from None


def _is_dynamic(proto: onnx.ModelProto, path: Path) -> bool:
    """Whether some input's first dimension is symbolic. No other dimension may be."""
    constants = {t.name for t in proto.graph.initializer}
    dynamic = False
    for value in proto.graph.input:
        if value.name in constants:
            continue
        if not value.type.HasField("tensor_type"):
            raise ModelError(f"{path}: input {value.name!r} is no tensor")
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                if axis:
                    raise ModelError(
                        f"{path}: input {value.name!r}: dimension {axis} is symbolic; only the first may be"
                    )
                dynamic = True
    return dynamic


def _shapes(proto: onnx.ModelProto, dynamic: bool, path: Path) -> dict[str, TensorSpec]:
    """Every tensor's type and shape."""
    small, large = (_inferred(proto, batch, path) for batch in (BATCHES if dynamic else (1, 1)))
    values: dict[str, TensorSpec] = {}
    for name, (dtype, shape) in small.items():
        dims = []
        for at_small, at_large in zip(shape, large[name][1], strict=True):
            if at_small == at_large:
                dims.append(at_small)
            elif at_small * BATCHES[1] == at_large * BATCHES[0] and at_small % BATCHES[0] == 0:
                dims.append(-(at_small // BATCHES[0]))
            else:
                raise ModelError(f"{path}: tensor {name!r}: a dimension grows with the batch, but not in proportion")
        values[name] = TensorSpec(name, dtype, tuple(dims))
    return values


def _inferred(proto: onnx.ModelProto, batch: int, path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Types and shapes with the batch set to a number."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    del fixed.graph.value_info[:]
    for value in fixed.graph.input:
        for dim in value.type.tensor_type.shape.dim[:1]:
            if not dim.HasField("dim_value"):
                dim.dim_value = batch
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        found = onnx.shape_inference.infer_shapes(fixed, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        raise ModelError(f"{path}: {_first_line(error)}") from None
    known: dict[str, tuple[str, tuple[int, ...]]] = {}
    for value in (*found.graph.value_info, *found.graph.input, *found.graph.output):
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            raise ModelError(f"{path}: the shape of tensor {value.name!r} cannot be told")
        if any(not dim.HasField("dim_value") for dim in tensor.shape.dim):
            raise ModelError(f"{path}: the shape of tensor {value.name!r} depends on the values of the inputs")
        dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        known[value.name] = (dtype, tuple(dim.dim_value for dim in tensor.shape.dim))
    for node in found.graph.node:
        for name in node.output:
            if name and name not in known:
                raise ModelError(f"{path}: node {node.name!r}: {node.op_type}: the shape of {name!r} cannot be told")
    return known


def _named(proto: onnx.ModelProto, path: Path) -> tuple[onnx.NodeProto, ...]:
    """Nodes of the standard domain, each with a name of its own."""
    seen: set[str] = set()
    for index, node in enumerate(proto.graph.node):
        if node.domain not in ("", "ai.onnx"):
            raise ModelError(f"{path}: node {node.name!r}: operator {node.domain}.{node.op_type} is not supported")
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}_{index}"
        seen.add(node.name)
    return tuple(proto.graph.node)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__

"""The constants of an ONNX file: checks before any allocation, and access to external data.

Models are untrusted. What a tensor declares (type, dimensions, place) is compared with the data that exists, and no
file outside the model's folder is ever opened.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.errors import ModelError

MAPPED_BYTES = 1 << 20  # constants from here on stay in files
TABLE_BYTES = 1 << 20  # a constant from here on, read by Gather alone, is a table
TYPES = frozenset(
    {
        *("float32", "float64", "float16", "bfloat16", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    }
)


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes and, recursively, those of the graphs inside them."""
    for node in nodes:
        yield node
        for graph in inner_graphs(node):
            yield from all_nodes(graph.node)


def type_name(data_type: int) -> str:
    """numpy's name of an ONNX element type; "string" and "type 99" for what numpy has none."""
    try:
        dtype = helper.tensor_dtype_to_np_dtype(data_type)
    except KeyError:
        return f"type {data_type}"
    return "string" if dtype.kind == "O" else str(dtype)


def state_constants(graph: onnx.GraphProto) -> None:
    """Give constants that are listed as inputs the type and the shape of their values, whatever the file states."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for value in graph.input:
        if value.name in tensors:
            tensor = tensors[value.name]
            value.CopyFrom(helper.make_tensor_value_info(value.name, tensor.data_type, list(tensor.dims)))


def check_tensors(proto: onnx.ModelProto, path: Path) -> None:
    """Check every constant of the model, those of inner graphs and functions included. Raises ModelError."""
    if proto.graph.sparse_initializer:
        raise ModelError(f"{path}: sparse initializers are not supported")
    for tensor in all_tensors(proto):
        _check(tensor, path)


def table_of(tensor: TensorProto, path: Path) -> NDArray[Any]:
    """A constant's values, mapped where they are external. Raises ModelError as `check_tensors`."""
    _check(tensor, path)
    return _table(tensor, path)


def four_bit_values(tensor: TensorProto, path: Path) -> NDArray[Any]:
    """The values of an INT4 or UINT4 constant in int8 or uint8, wherever they are stored. Raises ModelError."""
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(f"{path}: tensor {tensor.name!r} has a negative dimension: {list(tensor.dims)}")
    held = tensor
    if tensor.data_location == TensorProto.EXTERNAL:
        file, offset, length = _place(tensor, path)
        with file.open("rb") as stream:
            stream.seek(offset)
            held = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            held.raw_data = stream.read(length)
    return _table(held, path).astype(np.int8 if tensor.data_type == TensorProto.INT4 else np.uint8)


def _check(tensor: TensorProto, path: Path) -> None:
    where = f"{path}: tensor {tensor.name!r}"
    dtype = type_name(tensor.data_type)
    if dtype not in TYPES:
        raise ModelError(f"{where} is of {dtype}; expected floats of 16 bits or more, integers or bool")
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(f"{where} has a negative dimension: {list(tensor.dims)}")
    if tensor.data_location == TensorProto.EXTERNAL:
        _, _, length = _place(tensor, path)
        if length != size_bytes(tensor):
            raise ModelError(
                f"{where} of {list(tensor.dims)} takes {size_bytes(tensor)} bytes, its external data has {length}"
            )


def size_bytes(tensor: TensorProto) -> int:
    """The size that its type and dimensions state, which may be untrue."""
    return int(math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def extract_tables(proto: onnx.ModelProto, path: Path, folder: Path) -> dict[str, NDArray[Any]]:
    """Turn tables into inputs of the graph and return them, mapped where they are external.

    Every other external tensor is read or, where it is large, copied into a file in the folder. Unused initializers
    are dropped, since ONNX Runtime fails on some of them. Call `check_tensors` first.
    """
    graph = proto.graph
    elsewhere = {o.name for o in graph.output} | {n for node in graph.node for n in captured_names(node)}
    used, looked_up = set(elsewhere), set[str]()
    for node in graph.node:
        for place, name in enumerate(node.input):
            used.add(name)
            (looked_up if node.op_type == "Gather" and place == 0 else elsewhere).add(name)
    inputs = {i.name for i in graph.input}
    tables: dict[str, NDArray[Any]] = {}
    kept: list[TensorProto] = []
    for tensor in graph.initializer:
        if tensor.name not in used or tensor.name in tables:
            continue
        if tensor.name not in looked_up - elsewhere or size_bytes(tensor) < TABLE_BYTES:
            kept.append(tensor)
            continue
        tables[tensor.name] = _table(tensor, path)
        if tensor.name not in inputs:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    del graph.initializer[:]
    graph.initializer.extend(kept)
    with (folder / "external.weights").open("wb") as copies:
        for tensor in all_tensors(proto):
            if tensor.data_location == TensorProto.EXTERNAL:
                _read(tensor, path, copies)
    return tables


def _table(tensor: TensorProto, path: Path) -> NDArray[Any]:
    if tensor.data_location == TensorProto.EXTERNAL:
        file, offset, _ = _place(tensor, path)
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return np.memmap(file, dtype, "r", offset, tuple(tensor.dims))
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError):
        raise ModelError(f"{path}: tensor {tensor.name!r}: its data does not fill {list(tensor.dims)}") from None


def _read(tensor: TensorProto, path: Path, copies: BinaryIO) -> None:
    file, offset, length = _place(tensor, path)
    del tensor.external_data[:]
    with file.open("rb") as stream:
        stream.seek(offset)
        if length < MAPPED_BYTES:
            tensor.raw_data = stream.read(length)
            tensor.data_location = TensorProto.DEFAULT
            return
        _refer_to_end(tensor, copies, length)
        for start in range(0, length, MAPPED_BYTES):
            copies.write(stream.read(min(MAPPED_BYTES, length - start)))


def _refer_to_end(tensor: TensorProto, copies: BinaryIO, length: int) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": Path(copies.name).name, "offset": copies.tell(), "length": length}.items():
        tensor.external_data.add(key=key, value=str(value))


def put_array(tensor: TensorProto, array: NDArray[Any], copies: BinaryIO) -> None:
    """Give a tensor other values, of a type of their own; where they are large, at the end of the file."""
    if array.nbytes < MAPPED_BYTES:
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        return
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor.CopyFrom(TensorProto(name=tensor.name, data_type=kind, dims=array.shape))
    _refer_to_end(tensor, copies, array.nbytes)
    copies.write(np.ascontiguousarray(array).data)


def _place(tensor: TensorProto, path: Path) -> tuple[Path, int, int]:
    """File, offset and length in bytes of a tensor's external data, checked to lie inside the file."""
    where = f"{path}: tensor {tensor.name!r}"
    entry = {e.key: e.value for e in tensor.external_data}
    text = entry.get("location", "")
    location, folder = Path(text), path.parent.resolve()
    if not text or "\0" in text:
        raise ModelError(f"{where}: external data names no file (location {text!r})")
    if location.is_absolute() or ".." in location.parts:
        raise ModelError(f"{where}: external data at {text!r} lies outside the model's folder")
    try:
        file = (folder / location).resolve(strict=True)  # follows symbolic links
        size = file.stat().st_size
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "a loop of symbolic links"
        raise ModelError(f"{where}: external data {text!r}: {reason}") from None
    if folder not in file.parents:
        raise ModelError(f"{where}: external data at {text!r} lies outside the model's folder")
    if not file.is_file():
        raise ModelError(f"{where}: external data {text!r} is not a regular file")
    try:
        offset = int(entry.get("offset") or 0)
        length = int(entry.get("length") or max(0, size - offset))
    except ValueError:
        raise ModelError(f"{where}: external data has an offset or length that is no number") from None
    if offset < 0 or length < 0 or offset + length > size:
        raise ModelError(
            f"{where}: external data is {length} bytes from byte {offset} of {text!r}, which has {size} bytes"
        )
    return file, offset, length


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def captured_names(node: onnx.NodeProto) -> set[str]:
    """The tensors from outside that the graphs inside a node read, down to the innermost."""
    return set[str]().union(*map(_captured, inner_graphs(node)))


def _captured(graph: onnx.GraphProto) -> set[str]:
    read = {name for node in graph.node for name in read_names(node)}
    return read.union(output.name for output in graph.output) - _own_names(graph)


def _own_names(graph: onnx.GraphProto) -> set[str]:
    return {each.name for each in (*graph.input, *graph.initializer)} | {n for node in graph.node for n in node.output}


def read_names(node: onnx.NodeProto) -> set[str]:
    """The tensors that a node reads, and the graphs inside it."""
    return {name for name in node.input if name} | captured_names(node)


def rename_tensors(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename what nodes read and make, down to the graphs inside them, except for names that those make themselves."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for inner in inner_graphs(node):
            own = _own_names(inner)
            rename_tensors(inner, {old: new for old, new in names.items() if old not in own})
            for output in inner.output:
                output.name = output.name if output.name in own else names.get(output.name, output.name)


def all_tensors(proto: onnx.ModelProto) -> Iterator[TensorProto]:
    """Initializers and constants of the graph, of the graphs inside its nodes, and of its functions."""
    yield from proto.graph.initializer
    functions = [node for function in proto.functions for node in function.node]
    for node in all_nodes([*proto.graph.node, *functions]):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for graph in inner_graphs(node):
            yield from graph.initializer


def named_tensors(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> dict[str, TensorProto]:
    """Initializers of a graph, and constants among the nodes, by name."""
    constants = {n.output[0]: n.attribute[0].t for n in nodes if n.op_type == "Constant" and n.attribute}
    return {tensor.name: tensor for tensor in graph.initializer} | constants


def needed_nodes(nodes: Sequence[onnx.NodeProto], outputs: Set[str]) -> list[onnx.NodeProto]:
    """The nodes that the outputs depend on."""
    wanted, kept = set(outputs), list[onnx.NodeProto]()
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update((*node.input, *captured_names(node)))
    return kept[::-1]

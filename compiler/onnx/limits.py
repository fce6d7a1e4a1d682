"""Bounds on what a small ONNX file can ask for: nodes that its functions become, and memory that its constants take.

Models are untrusted, and a hundred bytes can ask for terabytes. What a file may take grows with what it holds.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import onnx
import psutil
from onnx import TensorProto

from veltair.compiler.onnx.constants import all_nodes, all_tensors, size_bytes
from veltair.errors import ModelError
from veltair.machine.memory import memory_bytes

MOST_NODES = 1 << 16  # once functions stand where they are called
COLUMNS_DOMAIN = "ai.onnx.contrib"  # of the operators on text of TensorFlow's models
MOST_WITH_COLUMNS = 1 << 18  # before feature columns are taken out: TensorFlow's have some hundred each
MOST_DEPTH = 64  # of functions that call functions
LEAST_BYTES = 1 << 30  # that computed constants may take, whatever the file holds
TIMES = 8  # and as many times the bytes of the file's own constants
OTHER_BYTES = 1 << 30  # for what simplifies a model, its threads and its code

KnownShapes = dict[str, tuple[str, tuple[int, ...]]]  # type (numpy's name) and shape


def check_nodes(proto: onnx.ModelProto, path: Path, *, columns_taken: bool = False) -> None:
    """Refuse too many nodes, and functions that become too many or call each other in a circle. Raises ModelError.

    `columns_taken`: whether those of feature columns are no longer among them.
    """
    may_have_columns = not columns_taken and any(entry.domain == COLUMNS_DOMAIN for entry in proto.opset_import)
    most = MOST_WITH_COLUMNS if may_have_columns else MOST_NODES
    functions = {(function.domain, function.name): function for function in proto.functions}
    counts: dict[tuple[str, str], int] = {}

    def count(nodes: Iterable[onnx.NodeProto], depth: int) -> int:
        if depth > MOST_DEPTH:
            raise ModelError(f"{path}: functions call each other more than {MOST_DEPTH} deep, or in a circle")
        total = 0
        for node in nodes:
            key = node.domain, node.op_type
            if key in functions and key not in counts:
                counts[key] = count(all_nodes(functions[key].node), depth + 1)
            total += counts.get(key, 1)
        return total

    if (total := count(all_nodes(proto.graph.node), 0)) > most:
        raise ModelError(f"{path}: {total} nodes, those of its functions included; expected at most {most}")


def held_bytes(proto: onnx.ModelProto) -> int:
    """The size of the model and its external data, which `check_tensors` has found to be there."""
    external = (tensor for tensor in all_tensors(proto) if tensor.data_location == TensorProto.EXTERNAL)
    return int(proto.ByteSize()) + sum(map(size_bytes, external))


def check_sizes(proto: onnx.ModelProto, known: KnownShapes, held: int, path: Path) -> None:
    """Refuse tensors larger than memory, and constants that are computed from others and much larger than these,
    before anything computes them. `held`: see `held_bytes`. Raises ModelError."""
    check_memory({name: shape for name, (_, shape) in known.items()}, path)
    constant = {tensor.name for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if not set(node.input) <= constant | {""}:
            continue
        constant.update(node.output)
        for name in node.output:
            _, shape = known.get(name, ("", ()))
            if 4 * math.prod(shape) > (most := _most_bytes(held)):
                raise ModelError(
                    f"{path}: node {node.name!r:.80}: {node.op_type:.40} makes a constant of shape {shape}; expected at"
                    f" most {most >> 20} MB of a file of this size"
                )


def check_memory(shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Refuse tensors larger than this machine's memory. Raises ModelError."""
    memory = memory_bytes()
    for name, shape in shapes.items():
        if memory and 4 * math.prod(shape) > memory:
            raise ModelError(f"{path}: tensor {name!r:.80} of shape {shape} is larger than this machine's memory")


def _most_bytes(held: int) -> int:
    return max(LEAST_BYTES, TIMES * held)


@contextmanager
def bounded_memory(held: int, path: Path, what: str = "its constants") -> Iterator[None]:
    """Have the system refuse this process memory, meanwhile, beyond what a model with so many bytes may take.

    It holds for what no shape tells: sizes that are computed in a way that shape inference does not follow. Raises
    ModelError for a MemoryError, and for the text of one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = psutil.Process().memory_info().vms + _most_bytes(held) + OTHER_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    try:
        yield
    except (MemoryError, ModelError) as error:
        if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
            most = _most_bytes(held) >> 20
            raise ModelError(f"{path}: {what} take more than {most} MB of memory once computed") from None
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


_NO_MEMORY = ("bad_alloc", "bad allocation", "Failed to allocate memory", "Unable to allocate")

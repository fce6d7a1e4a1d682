"""Runs an artifact's layers with the TVM runtime alone; the compiler is never loaded here."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm_ffi
from numpy.typing import NDArray

from veltair.errors import ArtifactError
from veltair.machine.isa import cpu_features
from veltair.profiles.artifact.artifact_folder import CheckedArtifact
from veltair.profiles.artifact.manifest import ALIGNMENT, ONNX_LAYER, SLACK_BYTES, Buffer, LayerEntry
from veltair.profiles.runtime import onnx_layers
from veltair.profiles.runtime.block_runner import BoundBlock, BoundKernels, KernelTable
from veltair.profiles.runtime.huge_pages import map_memory, zeroed_memory
from veltair.profiles.runtime.tvm_runtime import load_library

MAX_BATCHES = 256  # batch sizes whose views are kept


def aligned_zeros(shape: Sequence[int], dtype: str) -> NDArray[Any]:
    """A zeroed array at a 64-byte boundary, as kernels need it (numpy aligns to 16); large arrays use huge pages."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.frombuffer(zeroed_memory(size + SLACK_BYTES), np.uint8, count=size)
    return raw.view(dtype).reshape(shape)


def aligned_copy(array: NDArray[Any]) -> NDArray[Any]:
    """A copy of an array at a 64-byte boundary."""
    copy = aligned_zeros(array.shape, str(array.dtype))
    copy[...] = array
    return copy


def writable_view(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory without numpy's read-only flag, which dlpack refuses; kernels only read their weights."""

    class Holder:
        base = array
        __array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}

    return np.asarray(Holder())


_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18


def permit_tiles() -> None:
    """Ask Linux for AMX's tile registers for all threads of this process; kernels without them die of SIGILL."""
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    if syscall(ctypes.c_long(_SYS_ARCH_PRCTL), ctypes.c_long(_ARCH_REQ_XCOMP_PERM), ctypes.c_long(_XTILEDATA)):
        raise ArtifactError(f"the kernel refuses AMX tiles: {os.strerror(ctypes.get_errno())}")


class Executor:
    """One model in one process: its kernels, its mapped weights and one arena.

    A sealed artifact must stay open until the executor is gone. Not re-entrant: the arena holds the activations of one
    query at a time. ::

        executor = Executor(load_artifact(path))
        run = executor.bind(batch, inputs, outputs)
        run.block(0, versions)()
    """

    def __init__(
        self,
        artifact: CheckedArtifact,
        pause: Callable[[], None] | None = None,
        *,
        beside: Executor | None = None,
    ) -> None:
        """`pause`: called between pieces of the weights while they are mapped. `beside`: of the same artifact in
        another bucket, with which it shares them."""
        manifest = artifact.manifest
        missing = set(manifest.features) - cpu_features()
        if missing:
            raise ArtifactError(
                f"{artifact.path}: built for {', '.join(sorted(missing))}, which this CPU lacks; compile it here"
            )
        if "amx_bf16" in manifest.features:
            permit_tiles()
        self.manifest = manifest
        self._library: Any = beside._library if beside else load_library(artifact.library)
        self._kernels = KernelTable(manifest.layers, self._library)
        self._weights: NDArray[np.uint8] = beside._weights if beside else _map_weights(artifact, pause)
        self._onnx_layers = [self._hold_onnx_layer(layer) for layer in manifest.layers if layer.op == ONNX_LAYER]
        self._arena = aligned_zeros((max(manifest.arena_bytes, 1),), "uint8")
        self._tensors: dict[int, dict[int, Any]] = {}  # batch -> buffer index -> tensor

    def _hold_onnx_layer(self, layer: LayerEntry) -> onnx_layers.OnnxLayer:
        (model,) = [
            self._view(buffer, 1)
            for buffer in (self.manifest.buffers[index] for index in layer.versions[0].arguments)
            if buffer.kind == "weight"
        ]
        held = onnx_layers.hold_layer(model)
        held.prepare()
        return held

    def bind(self, batch: int, inputs: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]) -> ModelRun:
        """Bind a query's arrays, in the order of the manifest's input tensors and outputs.

        The arrays must be contiguous and 64-byte aligned; they are not copied.
        """
        tensors = dict(self._at(batch))
        for index, buffer in enumerate(self.manifest.buffers):
            if buffer.kind == "input":
                tensors[index] = _tensor(inputs[buffer.offset].reshape(buffer.at(batch)))
            elif buffer.kind == "output":
                tensors[index] = _tensor(outputs[buffer.offset].reshape(buffer.at(batch)))
        return ModelRun(self._kernels.bind(tensors), tensors)

    def _at(self, batch: int) -> Mapping[int, Any]:
        """Tensors over weights and arena, which never move, so each batch size is bound once."""
        if batch not in self._tensors:
            if len(self._tensors) >= MAX_BATCHES:
                self._tensors.clear()
            self._tensors[batch] = {
                index: _tensor(self._view(buffer, batch), _alignment(buffer))
                for index, buffer in enumerate(self.manifest.buffers)
                if buffer.kind in ("weight", "arena")
            }
        return self._tensors[batch]

    def _view(self, buffer: Buffer, batch: int) -> NDArray[Any]:
        memory = self._weights if buffer.kind == "weight" else self._arena
        size = buffer.bytes_at(batch)
        flat = np.asarray(memory[buffer.offset : buffer.offset + size])
        return flat.view(buffer.dtype).reshape(buffer.at(batch))


def open_buckets(artifact: CheckedArtifact, pause: Callable[[], None] | None = None) -> Iterator[Executor]:
    """Executors of a model's buckets, one after the other, which share its kernels and weights. `pause`: as of
    `Executor`."""
    first = None
    for bucket in artifact.buckets():
        executor = Executor(bucket, pause, beside=first)
        first = first or executor
        yield executor


def _map_weights(artifact: CheckedArtifact, pause: Callable[[], None] | None) -> NDArray[np.uint8]:
    weights = artifact.open_weights()
    try:
        return map_memory(weights, pause=pause)
    finally:
        os.close(weights)


class ModelRun:
    """One query's bound tensors. Layers are called in order, each in any of its versions.

    `Executor.bind` makes it::

        executor.bind(batch, inputs, outputs).layer(0, version=1)
    """

    __slots__ = ("_bound", "_tensors")

    def __init__(self, bound: BoundKernels, tensors: dict[int, Any]) -> None:
        self._bound, self._tensors = bound, tensors

    def block(self, start: int, versions: Sequence[int]) -> BoundBlock:
        """Return a callable block: the layers from `start` on, one for each entry of `versions`."""
        return self._bound.block(start, versions)

    def layer(self, index: int, version: int) -> None:
        """Run one layer on the cores that the pinned threads are on."""
        self.block(index, (version,))()

    def buffer(self, index: int) -> NDArray[Any]:
        """A view of a buffer's current content."""
        return np.from_dlpack(self._tensors[index])


def _tensor(array: NDArray[Any], alignment: int = ALIGNMENT) -> Any:
    return tvm_ffi.from_dlpack(array, require_alignment=alignment, require_contiguous=True)


def _alignment(buffer: Buffer) -> int:
    """The alignment that a buffer's kernels expect: a slice of a row-major tensor may begin at any element."""
    return ALIGNMENT if buffer.offset % ALIGNMENT == 0 else np.dtype(buffer.dtype).itemsize

"""Runs kernels of a design space on physical arrays, in this process. Equal code is compiled once, on all cores."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from numpy.typing import NDArray
from tvm_ffi import StructuralKey

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_graph import LayerGraph
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.references.layer_reference import pack_activation, reference_outputs, unpack_activation
from veltair.compiler.shared_library import compile_function
from veltair.machine.isa import cpu_features, tvm_target
from veltair.machine.topology import usable_machine
from veltair.profiles.runtime.executor import aligned_copy, aligned_zeros, permit_tiles

OLDER_CPUS = {
    "haswell": frozenset({"avx2"}),
    "skylake-avx512": frozenset({"avx2", "avx512"}),
    "cooperlake": frozenset({"avx2", "avx512", "avx512_bf16"}),
}


KEPT = 100  # compiled functions
_compiler = ThreadPoolExecutor(len(usable_machine().cores))
_compiled: dict[tuple[StructuralKey, str], Future[Any]] = {}  # by structure and CPU, the last used at the end


def require_features(wanted: frozenset[str], what: str) -> None:
    """Skips the test where this CPU lacks an instruction set, and says which code it cannot run."""
    if not wanted <= cpu_features():
        pytest.skip(f"this CPU cannot run {what}: it lacks {', '.join(sorted(wanted - cpu_features()))}")


def require_bfloat16(kernel: Kernel) -> None:
    """Skips the test where LLVM would abort: it makes no code of bfloat16 for this CPU, nor does `veltair compile`."""
    if not cpu_features() & {"avx512_bf16", "amx_bf16"} and "bfloat16" in kernel.function.script():
        pytest.skip("this CPU has no bfloat16: it lacks avx512_bf16 and amx_bf16")


def build_kernel(spec: LayerSpec, point: Point, mcpu: str = "") -> tuple[Kernel, Future[Any]]:
    """A kernel and, once it is compiled, its function."""
    kernel = SPACES[spec.op].build(spec, point, OLDER_CPUS.get(mcpu, cpu_features()))
    require_bfloat16(kernel)
    target = tvm_target() | ({"mcpu": mcpu} if mcpu else {})
    key = StructuralKey(kernel.function), mcpu
    found = _compiled.pop(key, None) or _compiler.submit(
        lambda: compile_function(kernel.function, "main", target)["main"]
    )
    _compiled[key] = found
    if len(_compiled) > KEPT:
        del _compiled[next(iter(_compiled))]
    return kernel, found


def some_of(points: Sequence[Point], every: int = 0) -> Sequence[Point]:
    """Of a design space, the points with a value that none before has, or each `every`-th; in whole sweeps, all."""
    if "VELTAIR_WHOLE_SWEEPS" in os.environ:
        return points
    if every:
        return points[::every]
    seen: set[tuple[str, object]] = set()
    kept = []
    for point in points:
        kept += [point] if set(point.items()) - seen else []
        seen |= set(point.items())
    return kept


def compile_ahead(spec: LayerSpec, points: Sequence[Point], mcpu: str = "") -> Sequence[Point]:
    """The points; all are being compiled while the first is run."""
    assert len(points) <= KEPT
    for point in points:
        build_kernel(spec, point, mcpu)
    return points


def run_kernel(
    spec: LayerSpec, point: Point, inputs: Sequence[NDArray[Any]], batch: int = 1, mcpu: str = ""
) -> list[NDArray[Any]]:
    """Outputs in physical layout. `mcpu` makes code for an older CPU than this one."""
    require_features(OLDER_CPUS.get(mcpu, frozenset()), f"code for {mcpu}")
    kernel, function = build_kernel(spec, point, mcpu)
    if "amx_bf16" in cpu_features():
        permit_tiles()
    arrays = [aligned_copy(a) for a in (*inputs, *kernel.weights)]
    outputs = [aligned_zeros(t.at(batch), t.dtype) for t in spec.outputs]
    function.result()(*[tvm_ffi.from_dlpack(a) for a in (*arrays, *outputs)])
    return outputs


def between_guard_pages(array: NDArray[Any], alignment: int = 1) -> NDArray[Any]:
    """A copy between two pages that nobody may read, as near to the second as the alignment of its begin allows."""
    page, room = mmap.PAGESIZE, -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, room + 2 * page), np.uint8)
    for edge in (0, page + room):
        address = ctypes.c_void_p(memory.ctypes.data + edge)
        assert ctypes.CDLL(None).mprotect(address, ctypes.c_size_t(page), 0) == 0
    start = page + (room - array.nbytes) // alignment * alignment
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def run_and_compare(
    spec: LayerSpec, point: Point, values: Sequence[NDArray[Any]], batch: int = 1, mcpu: str = ""
) -> tuple[float, list[NDArray[Any]]]:
    """The greatest error relative to the greatest value, against the reference; and the outputs."""
    inputs = [pack_activation(tensor, value) for tensor, value in zip(spec.inputs, values, strict=True)]
    outputs = run_kernel(spec, point, inputs, batch, mcpu)
    expected = reference_outputs(spec, inputs)
    assert expected is not None
    errors = []
    for tensor, found, wanted in zip(spec.outputs, outputs, expected, strict=True):
        a, b = unpack_activation(tensor, found).astype(np.float64), unpack_activation(tensor, wanted).astype(np.float64)
        assert a.shape == b.shape
        errors.append(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-6)))
    return max(errors), outputs


def halo_is_zero(tensor: Activation, physical: NDArray[Any]) -> bool:
    """Whether everything outside the image is still zero."""
    outside = physical.copy()
    halo, (h, w) = tensor.halo, tensor.shape[2:]
    outside[:, :, halo.top : halo.top + h, halo.left : halo.left + w] = 0
    return not outside.any()


def within_room(values: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """What an output of that shape holds of its room."""
    return values.reshape(-1)[: math.prod(shape)].reshape(shape)


def run_graph(graph: LayerGraph, feeds: Mapping[str, NDArray[Any]], batch: int) -> list[NDArray[Any]]:
    """A lowered model's outputs, each layer in its default version."""
    memory = {port.name: aligned_copy(feeds[port.name]) for port in graph.inputs}

    def place(tensor: Activation) -> NDArray[Any]:
        base, offset = graph.owner(tensor.name)
        if base not in memory:
            whole = graph.activations[base]
            memory[base] = aligned_zeros(whole.at(batch), whole.dtype)
        shape = tensor.at(batch)
        size = int(np.prod(shape)) * np.dtype(tensor.dtype).itemsize
        return memory[base].reshape(-1).view(np.uint8)[offset : offset + size].view(tensor.dtype).reshape(shape)

    points = [compile_ahead(spec, SPACES[spec.op].points(spec, cpu_features())[:1])[0] for spec in graph.layers]
    for spec, point in zip(graph.layers, points, strict=True):
        results = run_kernel(spec, point, [place(tensor) for tensor in spec.inputs], batch)
        for tensor, result in zip(spec.outputs, results, strict=True):
            place(tensor)[...] = result
    return [place(graph.activations[port.name]) for port in graph.outputs]

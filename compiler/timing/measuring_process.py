"""The measuring process: loads libraries and runs their kernels, apart from the compiler, which survives a crash.

`veltair.compiler.timing.measure` starts it. It loads TVM's runtime alone, and reads and writes msgpack on the socket
whose descriptor is its first argument.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from veltair.compiler.timing.measuring_messages import (
    FileTensor,
    InlineTensor,
    KernelRan,
    KernelTimes,
    MeasurementFailed,
    Operand,
    OutputTensor,
    RandomTensor,
    RepeatedTensor,
    Request,
    Response,
    RunKernel,
    TensorSequence,
    TimeKernel,
)
from veltair.compiler.timing.operand_memory import OperandMemory
from veltair.machine.isa import cpu_features
from veltair.profiles.artifact.manifest import ALIGNMENT, SLACK_BYTES
from veltair.profiles.runtime.huge_pages import map_part

FEW_RUNS, MAX_RUNS = 3, 2000
LONG_NS = 25_000_000  # a measurement that takes longer than this makes do with FEW_RUNS: long runs differ little
# The first run is left out, since its code and data are not in the caches. One that takes longer than this counts: of
# 600 measurements of such kernels it took 1.01 times the median of the others, and nine in ten 0.87 to 1.15 times.
WARM_NS = 10_000_000
MAX_COPIES = 64
NORMALS = 1 << 17  # numbers that random floats repeat: to draw each took longer than to run most kernels
KEPT_BYTES = 64 << 20  # mappings from this size on are kept: to populate them takes longer than to measure


class _MeasuringProcess:
    """The state of the process: its threads, the library in use, mapped files."""

    def __init__(self, cores: tuple[int, ...]) -> None:
        from veltair.profiles.runtime import executor  # and with it what code of layers calls by name
        from veltair.profiles.runtime.pinned_threads import PinnedThreads

        if "amx_bf16" in cpu_features():
            executor.permit_tiles()
        self._empty, self._aligned, self._tensor = executor.aligned_zeros, executor.aligned_copy, executor._tensor
        self._writable = executor.writable_view
        self._memory = OperandMemory(executor.aligned_zeros)
        self._cores = cores
        self._threads = PinnedThreads(cores)
        self._loaded: tuple[str, Any] = ("", None)
        self._mapped: dict[FileTensor, NDArray[Any]] = {}
        self._rng = np.random.default_rng(0)
        self._normals = self._rng.standard_normal(NORMALS, np.float32)
        self._room: NDArray[np.uint8] = np.empty(0, np.uint8)  # for copies of weights; kept, since to fault it in costs

    def answer(self, request: Request) -> Response:
        kernel = self._kernel(request.library, request.symbol)
        self._memory.begin()
        arrays = [self._array(operand) for operand in request.operands]
        if isinstance(request, RunKernel):
            self._threads.move_to(self._cores[: request.count])
            kernel(*map(self._tensor, arrays))
            _write_results(request, arrays)
            return KernelRan()
        turns = self._turns(request, arrays)
        return KernelTimes(tuple(self._time(kernel, request, arrays, turns, count) for count in request.counts))

    def _kernel(self, library: str, symbol: str) -> Callable[..., None]:
        from tvm import runtime

        if self._loaded[0] != library:
            self._loaded = (library, runtime.load_module(library))
        kernel: Callable[..., None] = self._loaded[1][symbol]
        return kernel

    def _time(
        self,
        kernel: Callable[..., None],
        request: TimeKernel,
        arrays: Sequence[NDArray[Any]],
        turns: list[list[Any]],
        count: int,
    ) -> int:
        ids = [
            (array, operand)
            for array, operand in zip(arrays, request.operands, strict=True)
            if isinstance(operand, RandomTensor) and operand.high > operand.low
        ]
        drawn = [
            (array, np.memmap(operand.path, operand.dtype, "r", shape=(operand.count, *operand.shape)))
            for array, operand in zip(arrays, request.operands, strict=True)
            if isinstance(operand, TensorSequence)
        ]
        inputs = [
            a for a, o in zip(arrays, request.operands, strict=True) if isinstance(o, RandomTensor | TensorSequence)
        ]
        shared = [_every_other_page(array) for array in inputs] if count > 1 else []
        self._threads.move_to(self._cores[:count])

        def run(nth: int) -> int:
            for array, operand in ids:
                array[...] = self._rng.integers(operand.low, operand.high, array.shape, array.dtype, endpoint=True)
            for array, contents in drawn:
                array[...] = contents[nth % len(contents)]
            for pages in shared:
                np.bitwise_or(pages, 0, out=pages)
            arguments = turns[nth % len(turns)]
            before = time.perf_counter_ns()
            kernel(*arguments)
            return time.perf_counter_ns() - before

        with self._threads.kept_awake():  # as they are inside a block
            return median_ns(run, request)

    def _turns(self, request: TimeKernel, arrays: Sequence[NDArray[Any]]) -> list[list[Any]]:
        """Arguments for the runs in turn: the first on the arrays, the others on copies of the weights."""
        turns = [[self._tensor(array) for array in arrays]]
        weights = [i for i, operand in enumerate(request.operands) if isinstance(operand, InlineTensor | FileTensor)]
        size = sum(-(-arrays[i].nbytes // ALIGNMENT) * ALIGNMENT for i in weights)
        copies = min(MAX_COPIES, request.rotate_bytes // size) if size else 0
        if copies and len(self._room) < request.rotate_bytes:
            self._room = self._empty((request.rotate_bytes,), "uint8")
        at = 0
        for _ in range(copies):
            turn = list(turns[0])
            for i in weights:
                place = self._room[at : at + arrays[i].nbytes].view(arrays[i].dtype).reshape(arrays[i].shape)
                place[...] = arrays[i]
                turn[i] = self._tensor(place)
                at += -(-arrays[i].nbytes // ALIGNMENT) * ALIGNMENT
            turns.append(turn)
        return turns

    def _array(self, operand: Operand) -> NDArray[Any]:
        if isinstance(operand, FileTensor):
            array = self._mapped[operand] if operand in self._mapped else self._map(operand)
            if operand.lasting and array.nbytes >= KEPT_BYTES:
                self._mapped[operand] = array
            return array
        if isinstance(operand, OutputTensor):
            return self._memory.zeros(operand.shape, operand.dtype)
        if isinstance(operand, RepeatedTensor):
            return self._repeat(operand)
        array = self._memory.unset(operand.shape, operand.dtype)
        if isinstance(operand, InlineTensor):
            array[...] = np.frombuffer(operand.content, operand.dtype).reshape(operand.shape)
        elif isinstance(operand, TensorSequence):
            array[...] = np.memmap(operand.path, operand.dtype, "r", shape=operand.shape)
        else:
            self._draw(operand, array)
        return array

    def _repeat(self, operand: RepeatedTensor) -> NDArray[Any]:
        samples = self._array(operand.of)
        array = self._memory.unset((operand.part * len(operand.rows), *samples.shape[1:]), operand.of.dtype)
        for at, row in enumerate(operand.rows):
            array[at * operand.part :][: operand.part] = samples[row * operand.part :][: operand.part]
        return array

    def _draw(self, operand: RandomTensor, array: NDArray[Any]) -> None:
        """Random numbers in the region, zeros around it."""
        kind = np.dtype(operand.dtype).kind
        if kind == "f" or operand.dtype == "uint16":
            normals = self._normals[self._rng.integers(NORMALS // 2) :]  # from anywhere: x - y shall not be all zeros
            bfloat16 = operand.dtype == "uint16"
            few = (normals.view(np.uint32) >> 16).astype(np.uint16) if bfloat16 else normals.astype(operand.dtype)
            flat = array.reshape(-1)
            for start in range(0, flat.size, few.size):
                flat[start : start + few.size] = few[: flat.size - start]
        else:
            array[...] = self._rng.integers(operand.low, operand.high, array.shape, np.int64, endpoint=True)
        for axis, (start, stop) in enumerate(operand.region):
            before: tuple[slice, ...] = (slice(None),) * axis
            array[*before, :start] = 0
            array[*before, stop:] = 0

    def _map(self, operand: FileTensor) -> NDArray[Any]:
        """A read-only mapping with its pages present, so that no run pays for faults, and with slack behind it; copied
        where unaligned."""
        size = int(np.prod(operand.shape, dtype=np.int64)) * np.dtype(operand.dtype).itemsize
        with open(operand.path, "rb") as file:  # noqa: PTH123  a plain descriptor is wanted
            part = map_part(file.fileno(), operand.offset, size, SLACK_BYTES)
        array = part.view(operand.dtype).reshape(operand.shape)
        return self._aligned(array) if array.ctypes.data % ALIGNMENT else self._writable(array)


def median_ns(run: Callable[[int], int], request: TimeKernel) -> int:
    """The median of as many runs as were asked for. `run` is told how many count so far, and returns the ns of one."""
    times: list[int] = []
    begin = time.perf_counter_ns()
    if (first := run(0)) >= WARM_NS:
        times.append(first)
    else:
        begin = time.perf_counter_ns()
    while True:
        spent = time.perf_counter_ns() - begin
        enough = request.fewest_runs if spent < LONG_NS else min(request.fewest_runs, FEW_RUNS)
        hopeless = request.limit_ns and len(times) >= FEW_RUNS and min(times) > request.limit_ns
        if (len(times) >= enough and spent >= request.budget_ns) or len(times) >= MAX_RUNS or hopeless:
            return max(1, round(statistics.median(times)))
        times.append(run(len(times)))


def _write_results(request: RunKernel, arrays: Sequence[NDArray[Any]]) -> None:
    """Into the file of the run before, where there is one: its pages are there already."""
    descriptor = os.open(request.results, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for operand, array in zip(request.operands, arrays, strict=True):
            if isinstance(operand, OutputTensor):
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _every_other_page(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Half of an input, to be written by this thread before a run on several cores: what a layer reads was written by
    the layer before, on cores that shared the work otherwise, and must come from their caches."""
    flat = array.reshape(-1).view(np.uint8)
    pages = flat[: flat.size // 8192 * 8192].reshape(-1, 8192)
    return pages[:, :4096]


def main(descriptor: int, cores: tuple[int, ...]) -> None:
    """Response requests until the other side closes."""
    bench = _MeasuringProcess(cores)
    from veltair.profiles.runtime.onnx_layers import on_drawn_inputs

    decoder = msgspec.msgpack.Decoder(Request)
    with Connection(descriptor) as connection, on_drawn_inputs():
        while True:
            try:
                raw = connection.recv_bytes()
            except (EOFError, ConnectionResetError):
                return
            try:
                answer = bench.answer(decoder.decode(raw))
            except Exception as error:  # what a kernel raises is the answer, whatever it is
                answer = MeasurementFailed(f"{type(error).__name__}: {error}"[:500])
            try:
                connection.send_bytes(msgspec.msgpack.encode(answer))
            except BrokenPipeError:  # whoever asked was killed
                return


if __name__ == "__main__":
    os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")
    main(int(sys.argv[1]), tuple(map(int, sys.argv[2].split(","))))

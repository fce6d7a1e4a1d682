"""Runs candidates in a process of their own: one that crashes costs itself, not the compile."""

from __future__ import annotations

import hashlib
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec
from veltair.compiler.timing.measuring_messages import (
    FileTensor,
    InlineTensor,
    KernelRan,
    KernelTimes,
    MeasurementFailed,
    Operand,
    OutputTensor,
    RandomTensor,
    Request,
    Response,
    RunKernel,
    TensorSequence,
    TimeKernel,
)
from veltair.errors import InvariantError, VeltairError
from veltair.machine.scratch import ScratchFolder
from veltair.profiles.runtime.pinned_threads import kernel_environment
from veltair.types import CoreSet

Bounds = Mapping[str, tuple[int, int]]  # activation name -> least and greatest id, both inclusive

BUDGET_NS = 25_000_000  # of a measurement on one core count, beside its first run
FEWEST_RUNS = 5
PATIENCE_S = 120.0  # for one answer; a candidate that takes longer hangs
# Weights are cycled through copies of so much in all: between two runs of a layer, the rest of its model and the other
# tenants' pass through the caches. With hot weights a ResNet-50 in bfloat16 was predicted at two thirds of its time.
ROTATE_BYTES = 64 << 20
DRAWN = 3  # contents of a layer's inputs that are measured in turn
SPILL_BYTES = 64 << 10  # weights above this go through a file instead of the socket


class CandidateError(VeltairError):
    """A candidate crashed, hung or refused its tensors."""


class CandidateHangsError(CandidateError):
    """A candidate gave no result for as long as anybody waits."""


def interior_slices(activation: Activation, batch: int) -> tuple[slice, ...]:
    """Where the values are in the physical array: inside the halo."""
    shape, halo = activation.at(batch), activation.halo
    if not activation.block:
        return tuple(slice(0, dim) for dim in shape)
    n, blocks, height, width, lanes = shape
    rows, columns = slice(halo.top, height - halo.bottom), slice(halo.left, width - halo.right)
    return (slice(0, n), slice(0, blocks), rows, columns, slice(0, lanes))


def input_operands(spec: LayerSpec, batch: int, bounds: Bounds) -> list[Operand]:
    """Random inputs; integers without bounds are zeros, which every table has."""
    found: list[Operand] = []
    for activation in spec.inputs:
        low, high = bounds.get(activation.name, (0, 0))
        region = tuple((part.start, part.stop) for part in interior_slices(activation, batch))
        found.append(RandomTensor(activation.dtype, activation.at(batch), region, low, high))
    return found


def result_operands(spec: LayerSpec, batch: int) -> list[Operand]:
    return [OutputTensor(activation.dtype, activation.at(batch)) for activation in spec.outputs]


class Meter:
    """A measuring process, started when first needed and again after each candidate that killed it.

    ::

        with Meter(cores) as meter:
            run_ns = meter.time(library, symbol, operands, counts=[1, 2])  # median ns on 1 and on 2 cores
    """

    def __init__(self, cores: CoreSet, patience_s: float = PATIENCE_S) -> None:
        self.cores = cores
        self.patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._scratch = ScratchFolder("measure")
        self._spilled: dict[bytes, Path] = {}  # by the digest of the content
        self._spills = 0
        self._handed = False  # whether the file of `hand_over` is there
        self._drawn: dict[tuple[str, int], list[Operand]] = {}  # by a layer's symbol and batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stop()
        self._spilled.clear()
        self._scratch.close()

    def weights(self, kernel: Kernel) -> list[Operand]:
        """The kernel's packed constants as operands; large ones stay in, or go to, a file."""
        return [self._weight(array) for array in kernel.weights]

    def hand_over(self, arrays: Sequence[NDArray[Any]]) -> list[Operand]:
        """Arrays that a kernel reads, as operands that last until the next arrays; large ones lie in a file.

        On the way through the socket a tensor would be copied, and its pages faulted in, half a dozen times. The file
        is the same each time, since new pages cost as well.
        """
        found: list[Operand] = []
        with (self._scratch.path / "operands").open("r+b" if self._handed else "w+b") as file:
            self._handed = True
            for array in arrays:
                if array.nbytes <= SPILL_BYTES:
                    found.append(InlineTensor(str(array.dtype), array.shape, array.tobytes()))
                    continue
                at = -(-file.tell() // mmap.PAGESIZE) * mmap.PAGESIZE
                file.seek(at)
                write_chunks(array, file)
                found.append(FileTensor(str(array.dtype), array.shape, file.name, at, lasting=False))
        return found

    def inputs(self, spec: LayerSpec, batch: int, bounds: Bounds) -> list[Operand]:
        """Random inputs. Inputs that depend on each other are drawn by `LayerParameters.draw_inputs`."""
        if (spec.symbol, batch) not in self._drawn:
            rng = np.random.default_rng(0)
            first = spec.parameters.draw_inputs(batch, rng)
            if first is None:
                return input_operands(spec, batch, bounds)
            contents = [first, *(spec.parameters.draw_inputs(batch, rng) or [] for _ in range(DRAWN - 1))]
            self._drawn[spec.symbol, batch] = [self._draws(arrays) for arrays in zip(*contents, strict=True)]
        return self._drawn[spec.symbol, batch]

    def _draws(self, arrays: Sequence[NDArray[Any]]) -> Operand:
        self._spills += 1
        path = self._scratch.path / str(self._spills)
        with path.open("wb") as file:
            for array in arrays:
                write_chunks(array, file)
        return TensorSequence(str(arrays[0].dtype), arrays[0].shape, str(path), len(arrays))

    def time(
        self,
        library: Path,
        symbol: str,
        operands: Sequence[Operand],
        counts: Sequence[int] | None = None,
        limit_ns: int = 0,
        budget_ns: int = BUDGET_NS,
        fewest: int = FEWEST_RUNS,
    ) -> list[int]:
        """Median ns on each of `counts` cores (default: 1 … all), the first run left out unless it is long.

        `budget_ns` is that of each count, in which there are `fewest` at least, or three of a kernel that takes
        long. One slower than `limit_ns` is given up after three runs. Inputs are warm, weights are not (see
        ROTATE_BYTES), ids are new for each run.

        Raises CandidateError when the kernel crashes, hangs or refuses.
        """
        wanted = tuple(counts) if counts is not None else tuple(range(1, len(self.cores) + 1))
        request = TimeKernel(str(library), symbol, tuple(operands), wanted, fewest, budget_ns, limit_ns, ROTATE_BYTES)
        answer = self._ask(symbol, request)
        if not isinstance(answer, KernelTimes):
            raise InvariantError(f"the measuring process answered {type(answer).__name__} to TimeKernel")
        return list(answer.run_ns)

    def call(self, library: Path, symbol: str, operands: Sequence[Operand], count: int) -> list[NDArray[Any]]:
        """Run once on `count` cores; the contents of the `OutputTensor` operands, which last until the next call.

        Raises CandidateError as `time`.
        """
        path = self._scratch.path / "results"
        answer = self._ask(symbol, RunKernel(str(library), symbol, tuple(operands), count, str(path)))
        if not isinstance(answer, KernelRan):
            raise InvariantError(f"the measuring process answered {type(answer).__name__} to RunKernel")
        found: list[NDArray[Any]] = []
        at = 0
        for operand in operands:
            if not isinstance(operand, OutputTensor):
                continue
            if 0 in operand.shape:  # there is no mapping of nothing
                found.append(np.empty(operand.shape, operand.dtype))
            else:
                found.append(np.memmap(path, operand.dtype, "r", at, operand.shape))
            at += found[-1].nbytes
        return found

    def forget(self) -> None:
        """Drop the files that `weights` made; operands from before must not be used again."""
        for path in self._spilled.values():
            path.unlink(missing_ok=True)
        self._spilled.clear()

    def _ask(self, symbol: str, request: Request) -> Response:
        connection = self._connection or self._start()
        try:
            connection.send_bytes(msgspec.msgpack.encode(request))
            if not connection.poll(self.patience_s):
                raise CandidateHangsError(f"{symbol}: no result within {self.patience_s:g} s")
            answer: Response = msgspec.msgpack.decode(connection.recv_bytes(), type=Response)
        except (EOFError, ConnectionError):
            raise CandidateError(f"{symbol}: {self._cause()}") from None
        except BaseException:  # an interrupt too leaves an answer on its way that nobody would wait for
            self._stop()
            raise
        if isinstance(answer, MeasurementFailed):
            raise CandidateError(f"{symbol}: {answer.reason}")
        return answer

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "veltair.compiler.timing.measuring_process", str(theirs.fileno())]
            command.append(",".join(map(str, self.cores)))
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                env=os.environ | kernel_environment(),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the compiler's to handle
            )
        self._connection = Connection(ours.detach())
        return self._connection

    def _cause(self) -> str:
        """What ended the process, which is gone or going."""
        process = self._process
        code = process.wait(5) if process else 0
        self._stop()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"the measuring process ended with code {code}"

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()  # first: it would complain of a connection that closes while it answers
            self._process.wait()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _weight(self, array: NDArray[Any]) -> Operand:
        mapped = in_file(array)
        if mapped is not None:
            return mapped
        if array.nbytes <= SPILL_BYTES:
            return InlineTensor(str(array.dtype), array.shape, array.tobytes())
        digest = content_digest(array)
        if digest not in self._spilled:
            self._spills += 1  # never a name twice: the other process may still map the old file
            path = self._scratch.path / str(self._spills)
            with path.open("wb") as file:
                write_chunks(array, file)
            self._spilled[digest] = path
        return FileTensor(str(array.dtype), array.shape, str(self._spilled[digest]), 0)


def content_digest(array: NDArray[Any]) -> bytes:
    """A digest of the bytes alone: arrays of other shapes may share them."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()


def write_chunks(array: NDArray[Any], file: Any, chunk: int = 16 << 20) -> None:
    """Write an array's bytes, row-major, without a second copy of all of it."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, flat.size, chunk):
        file.write(flat[start : start + chunk].data)


def in_file(array: NDArray[Any]) -> FileTensor | None:
    """Where in a file the array lies, if it is a contiguous view of a mapped one."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and not isinstance(owner.base, mmap.mmap):
        owner = owner.base
    if not isinstance(owner, np.memmap) or owner.filename is None or not array.flags.c_contiguous or not array.size:
        return None
    offset = owner.offset + array.ctypes.data - owner.ctypes.data
    return FileTensor(str(array.dtype), array.shape, str(owner.filename), int(offset))

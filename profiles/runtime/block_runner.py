"""A block of layers as one native call: tables of prepared arguments that `block_runner.c` walks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.profiles.artifact.manifest import LayerEntry
from veltair.profiles.runtime import native

ANY = np.dtype([("type", np.int32), ("padding", np.uint32), ("value", np.uint64)])  # TVMFFIAny
STEP = np.dtype([("kernel", np.uint64), ("arguments", np.uint64), ("count", np.int64)])
_TENSOR = 70  # kTVMFFITensor


@dataclass(frozen=True, slots=True)
class Watch:
    """Where a block looks between two layers: addresses of two 8-byte words that stay mapped."""

    sequence: int  # changes when somebody wants the block's attention
    progress: int  # takes the layer in execution


class Program:
    """Every version of every layer, as rows of a table that only lacks the addresses of the tensors."""

    def __init__(self, layers: Sequence[LayerEntry], module: Any) -> None:
        entries = [version for layer in layers for version in layer.versions]
        self._kernels = [module[version.symbol] for version in entries]  # the table has their addresses alone
        self._run = native.library()["run"]
        self._arguments = np.array([a for version in entries for a in version.arguments], np.intp)
        self._steps = np.zeros(len(entries), STEP)
        self._steps["kernel"] = [kernel.__chandle__() for kernel in self._kernels]
        self._steps["count"] = [len(version.arguments) for version in entries]
        firsts = np.cumsum([0, *(len(layer.versions) for layer in layers)]).tolist()
        self.rows = [range(first, first + len(layer.versions)) for first, layer in zip(firsts, layers, strict=False)]

    def bind(self, tensors: Mapping[int, Any]) -> Bound:
        """The table for these tensors, by buffer."""
        handles = np.array([tensors[i].__chandle__() for i in range(len(tensors))], np.uint64)
        arguments = np.zeros(len(self._arguments), ANY)
        arguments["type"] = _TENSOR
        arguments["value"] = handles[self._arguments]
        steps = self._steps.copy()
        ends = np.cumsum(steps["count"])
        steps["arguments"] = arguments.ctypes.data + (ends - steps["count"]) * ANY.itemsize
        return Bound(self, tensors, arguments, steps)


class Bound:
    """A program on the tensors of one query."""

    __slots__ = ("_address", "_keep", "_program", "_run")

    def __init__(
        self, program: Program, tensors: Mapping[int, Any], arguments: NDArray[Any], steps: NDArray[Any]
    ) -> None:
        self._program, self._run = program, program._run
        self._address = steps.ctypes.data
        self._keep = (tensors, arguments, steps)  # the native side has their addresses

    def block(self, start: int, versions: Sequence[int]) -> Block:
        """Layers from `start` on, each in the version given. Raises IndexError for one that does not exist."""
        layers = self._program.rows[start : start + len(versions)]
        if len(layers) != len(versions):
            raise IndexError(f"layers {start} to {start + len(versions)} of {len(self._program.rows)}")
        return Block(self, start, np.array([rows[v] for rows, v in zip(layers, versions, strict=True)], np.int32))


class Block:
    """Layers ready to run, as often as one likes."""

    __slots__ = ("_address", "_bound", "_rows", "start", "stop")

    def __init__(self, bound: Bound, start: int, rows: NDArray[np.int32]) -> None:
        self._bound, self._rows, self._address = bound, rows, rows.ctypes.data
        self.start, self.stop = start, start + len(rows)

    def __call__(self) -> None:
        """All layers, undisturbed, on the thread pool's present core set. Raises what a kernel raises."""
        bound = self._bound
        bound._run(bound._address, self._address, self.start, self.start, self.stop, 0, 0, 0)

    def run(self, layer: int, watch: Watch, sequence: int) -> int:
        """From `layer` on until `watch.sequence` holds another value than `sequence`: the layer that is next."""
        bound = self._bound
        arguments = (self.start, layer, self.stop, watch.sequence, sequence, watch.progress)
        return int(bound._run(bound._address, self._address, *arguments))

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
    """Two words of shared memory that a block looks at between two layers: addresses of 8 bytes that stay mapped.

    >>> Watch(sequence=0x1000, progress=0x1008).progress
    4104
    """

    sequence: int  # changes when the scheduler wants the block's attention
    progress: int  # takes the layer in execution


class KernelTable:
    """Every version of every layer, as rows of a table in which only the addresses of the tensors are missing. ::

    table = KernelTable(manifest.layers, load_library(artifact.library))
    table.bind(tensors).block(0, versions)()
    """

    def __init__(self, layers: Sequence[LayerEntry], module: Any) -> None:
        entries = [version for layer in layers for version in layer.versions]
        self._kernels = [module[version.symbol] for version in entries]  # the table has only their addresses
        self._run = native.library()["run"]
        self._arguments = np.array([a for version in entries for a in version.arguments], np.intp)
        self._steps = np.zeros(len(entries), STEP)
        self._steps["kernel"] = [kernel.__chandle__() for kernel in self._kernels]
        self._steps["count"] = [len(version.arguments) for version in entries]
        firsts = np.cumsum([0, *(len(layer.versions) for layer in layers)]).tolist()
        self.rows = [range(first, first + len(layer.versions)) for first, layer in zip(firsts, layers, strict=False)]

    def bind(self, tensors: Mapping[int, Any]) -> BoundKernels:
        """The table for these tensors, by buffer."""
        handles = np.array([tensors[i].__chandle__() for i in range(len(tensors))], np.uint64)
        arguments = np.zeros(len(self._arguments), ANY)
        arguments["type"] = _TENSOR
        arguments["value"] = handles[self._arguments]
        steps = self._steps.copy()
        ends = np.cumsum(steps["count"])
        steps["arguments"] = arguments.ctypes.data + (ends - steps["count"]) * ANY.itemsize
        return BoundKernels(self, tensors, arguments, steps)


class BoundKernels:
    """The kernels on the tensors of one query.

    ::

        bound = table.bind(tensors)
        bound.block(2, versions=(0, 1))()  # layers 2 and 3
    """

    __slots__ = ("_address", "_keep", "_run", "_table")

    def __init__(
        self, table: KernelTable, tensors: Mapping[int, Any], arguments: NDArray[Any], steps: NDArray[Any]
    ) -> None:
        self._table, self._run = table, table._run
        self._address = steps.ctypes.data
        self._keep = (tensors, arguments, steps)  # the native side has their addresses

    def block(self, start: int, versions: Sequence[int]) -> BoundBlock:
        """Layers from `start` on, each in the version given. Raises IndexError for one that does not exist."""
        layers = self._table.rows[start : start + len(versions)]
        if len(layers) != len(versions):
            raise IndexError(f"layers {start} to {start + len(versions)} of {len(self._table.rows)}")
        return BoundBlock(self, start, np.array([rows[v] for rows, v in zip(layers, versions, strict=True)], np.int32))


class BoundBlock:
    """Layers that are ready to run, any number of times.

    ::

        block = table.bind(tensors).block(0, versions)
        block()  # all layers
        stopped_at = block.run(0, watch, sequence)  # until the scheduler wants attention
    """

    __slots__ = ("_address", "_bound", "_rows", "start", "stop")

    def __init__(self, bound: BoundKernels, start: int, rows: NDArray[np.int32]) -> None:
        self._bound, self._rows, self._address = bound, rows, rows.ctypes.data
        self.start, self.stop = start, start + len(rows)

    @property
    def addresses(self) -> tuple[int, int]:
        """For native code: of the table of its kernels and of its rows there, valid while the block lives."""
        return self._bound._address, self._address

    def __call__(self) -> None:
        """Run all layers, without a watch, on the present core set of the pinned threads. Raises a kernel's errors."""
        bound = self._bound
        bound._run(bound._address, self._address, self.start, self.start, self.stop, 0, 0, 0)

    def run(self, layer: int, watch: Watch, sequence: int) -> int:
        """Run from `layer` on until `watch.sequence` differs from `sequence`; return the layer that is next."""
        bound = self._bound
        begin, end = self.start, self.stop
        return int(
            bound._run(bound._address, self._address, begin, layer, end, watch.sequence, sequence, watch.progress)
        )

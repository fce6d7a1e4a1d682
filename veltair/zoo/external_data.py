"""Weights too many to hold: external data in one file beside the model, drawn and written in chunks.

Each tensor starts at a multiple of 4096 bytes so that it can be mapped and used in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

ALIGNMENT = 4096
CHUNK_BYTES = 16 << 20

Progress = Callable[[int, int], None]  # bytes written, bytes in all
Built = tuple[onnx.ModelProto, list["External"]]  # a model, and the tensors that it does not hold


@dataclass(frozen=True, slots=True)
class External:
    """A float32 tensor to draw: uniform in ±bound, or normal of a deviation."""

    name: str
    dims: tuple[int, ...]
    bound: float = 0.0
    deviation: float = 0.0

    @property
    def bytes(self) -> int:
        return 4 * int(np.prod(self.dims, dtype=np.int64))

    def draw(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.float32]:
        """The next `count` values; the same ones whatever the counts of the calls."""
        if not self.bound:
            values = rng.standard_normal(count, dtype=np.float32)
            values *= np.float32(self.deviation)
            return values
        values = rng.random(count, dtype=np.float32)
        values *= np.float32(2 * self.bound)
        values -= np.float32(self.bound)
        return values


def references(tensors: Sequence[External], location: str) -> list[TensorProto]:
    """The tensors as initializers whose values lie in the file `location` beside the model."""
    found = []
    for tensor, offset in zip(tensors, _offsets(tensors), strict=True):
        proto = TensorProto(name=tensor.name, data_type=TensorProto.FLOAT, dims=tensor.dims,
                            data_location=TensorProto.EXTERNAL)  # fmt: skip
        for key, value in {"location": location, "offset": offset, "length": tensor.bytes}.items():
            proto.external_data.add(key=key, value=str(value))
        found.append(proto)
    return found


def write(file: BinaryIO, seed: int, tensors: Sequence[External], progress: Progress) -> None:
    """Streams all tensors into a fresh file, each from a child of the seed; holds one chunk at a time."""
    children = np.random.SeedSequence(seed).spawn(len(tensors))
    total, written = sum(t.bytes for t in tensors), 0
    for tensor, offset, child in zip(tensors, _offsets(tensors), children, strict=True):
        file.seek(offset)
        rng, end = np.random.default_rng(child), written + tensor.bytes
        while written < end:
            chunk = tensor.draw(rng, min(CHUNK_BYTES, end - written) // 4)
            written += file.write(chunk.data.cast("B"))
            progress(written, total)


def _offsets(tensors: Sequence[External]) -> list[int]:
    """Of each tensor in the file, in bytes."""
    ends = np.cumsum([-(-tensor.bytes // ALIGNMENT) * ALIGNMENT for tensor in tensors])
    return [0, *(int(end) for end in ends)][: len(tensors)]


def beside(path: Path) -> Path:
    """Where the external data of the model at `path` lies."""
    return path.with_name(path.name + ".data")

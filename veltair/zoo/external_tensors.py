"""Tensors too large to hold in memory: external data in one file beside the model, drawn and written in chunks.

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

WriteProgress = Callable[[int, int], None]  # gets the bytes written and their total
BuiltModel = tuple[onnx.ModelProto, list["ExternalTensor"]]  # a model, and the tensors that it does not hold


@dataclass(frozen=True, slots=True)
class ExternalTensor:
    """A float32 tensor to draw: uniform in ±bound, or normal with a deviation.

    >>> ExternalTensor("table", (1000, 16), bound=0.5).bytes
    64000
    """

    name: str
    dims: tuple[int, ...]
    bound: float = 0.0
    deviation: float = 0.0

    @property
    def bytes(self) -> int:
        return 4 * int(np.prod(self.dims, dtype=np.int64))

    def draw(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.float32]:
        """Draws the next `count` values; how calls divide a tensor does not change its values."""
        if not self.bound:
            values = rng.standard_normal(count, dtype=np.float32)
            values *= np.float32(self.deviation)
            return values
        values = rng.random(count, dtype=np.float32)
        values *= np.float32(2 * self.bound)
        values -= np.float32(self.bound)
        return values


def external_initializers(tensors: Sequence[ExternalTensor], location: str) -> list[TensorProto]:
    """Returns the tensors as initializers whose values lie in the file `location` beside the model."""
    found = []
    for tensor, offset in zip(tensors, _offsets(tensors), strict=True):
        proto = TensorProto(
            name=tensor.name,
            data_type=TensorProto.FLOAT,
            dims=tensor.dims,
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in {"location": location, "offset": offset, "length": tensor.bytes}.items():
            proto.external_data.add(key=key, value=str(value))
        found.append(proto)
    return found


def write_tensors(file: BinaryIO, seed: int, tensors: Sequence[ExternalTensor], progress: WriteProgress) -> None:
    """Writes all tensors to a new file, each drawn from a child of the seed; holds one chunk at a time."""
    children = np.random.SeedSequence(seed).spawn(len(tensors))
    total, written = sum(t.bytes for t in tensors), 0
    for tensor, offset, child in zip(tensors, _offsets(tensors), children, strict=True):
        file.seek(offset)
        rng, end = np.random.default_rng(child), written + tensor.bytes
        while written < end:
            chunk = tensor.draw(rng, min(CHUNK_BYTES, end - written) // 4)
            written += file.write(chunk.data.cast("B"))
            progress(written, total)


def _offsets(tensors: Sequence[ExternalTensor]) -> list[int]:
    """Offset of each tensor in the file, in bytes."""
    ends = np.cumsum([-(-tensor.bytes // ALIGNMENT) * ALIGNMENT for tensor in tensors])
    return [0, *(int(end) for end in ends)][: len(tensors)]


def data_path(path: Path) -> Path:
    """Returns the path of the external data of the model at `path`."""
    return path.with_name(path.name + ".data")

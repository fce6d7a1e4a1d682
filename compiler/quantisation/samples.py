"""Samples of a model's inputs, from a file of numpy arrays or from memory, checked against the model's file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray

from veltair.errors import DataError
from veltair.profiles.array_file import read_arrays

TEXT = "text"  # the type of inputs of strings
SampleSource: TypeAlias = str | Path | Mapping[str, ArrayLike]


@dataclass(frozen=True, slots=True)
class ModelInput:
    """An input as the ONNX file declares it. An extent of 0 is open.

    >>> ModelInput("x", "float32", (0, 3)).rows
    1
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def rows(self) -> int:
        """How many rows of the samples one run takes: the fixed batch of the file, or one."""
        return self.shape[0] or 1

    def __str__(self) -> str:
        return f"{self.dtype} of shape ({', '.join(['samples', *(str(dim or 'any') for dim in self.shape[1:])])})"


@dataclass(frozen=True, slots=True)
class Samples:
    """Arrays by the name of an input; their first dimension counts samples.

    >>> samples = Samples((ModelInput("x", "float32", (0, 2)),), {"x": np.zeros((3, 2), np.float32)}, runs=3)
    >>> [feed["x"].shape for feed in samples.feeds()]
    [(1, 2), (1, 2), (1, 2)]
    """

    inputs: tuple[ModelInput, ...]
    arrays: Mapping[str, NDArray[Any]]
    runs: int  # of the model, each at its batch or at one

    def feeds(self) -> Iterator[dict[str, NDArray[Any]]]:
        """What each run takes, in order."""
        for run in range(self.runs):
            yield {
                each.name: np.ascontiguousarray(self.arrays[each.name][run * each.rows : (run + 1) * each.rows])
                for each in self.inputs
            }


def model_inputs(graph: onnx.GraphProto) -> tuple[ModelInput, ...]:
    """The inputs of a graph without its constants."""
    constants = {tensor.name for tensor in graph.initializer}
    found = []
    for value in graph.input:
        if value.name not in constants:
            kind = value.type.tensor_type
            text = kind.elem_type == onnx.TensorProto.STRING
            dtype = TEXT if text else str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)))
            found.append(ModelInput(value.name, dtype, tuple(dim.dim_value for dim in kind.shape.dim)))
    return tuple(found)


def read_samples(source: SampleSource, inputs: Sequence[ModelInput]) -> Samples:
    """The samples of a file that `numpy.savez` wrote, or of arrays by name.

    Raises DataError where a name, type or shape is not the model's, there is no sample, or a number is not finite.
    """
    where = str(source) if isinstance(source, str | Path) else "samples"
    names = [each.name for each in inputs]
    if isinstance(source, str | Path):
        arrays = read_arrays(Path(source))
    else:
        arrays = {name: np.asarray(value) for name, value in source.items()}
    if set(arrays) != set(names):
        found = ", ".join(arrays) or "none"
        raise DataError(f"{where}: expected an array for each input ({', '.join(names)}), found {found}")
    runs: dict[str, int] = {}
    for each in inputs:
        array, place = arrays[each.name], f"{where}: array {each.name!r}"
        if each.dtype == TEXT and array.dtype.kind in "USO":
            array = arrays[each.name] = _as_texts(array, place)
        fits = array.ndim == len(each.shape) > 0 and all(
            want in (0, found) for want, found in zip(each.shape[1:], array.shape[1:], strict=True)
        )
        if array.dtype != (object if each.dtype == TEXT else each.dtype) or not fits:
            kind = TEXT if array.dtype == object else array.dtype
            raise DataError(f"{place}: expected {each}, found {kind} of shape {array.shape}")
        if len(array) == 0 or array.size == 0:
            raise DataError(f"{place}: expected at least one sample, found shape {array.shape}")
        if len(array) % each.rows:
            raise DataError(
                f"{place}: expected a multiple of {each.rows} samples, the model's batch, found {len(array)}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DataError(f"{place}: expected finite numbers, found NaN or infinity")
        runs[each.name] = len(array) // each.rows
    if len(set(runs.values())) > 1:
        counts = ", ".join(f"{name!r} {count}" for name, count in runs.items())
        raise DataError(f"{where}: expected as many samples of every input, found {counts}")
    return Samples(tuple(inputs), arrays, next(iter(runs.values()), 0))


def _as_texts(array: NDArray[Any], place: str) -> NDArray[Any]:
    """The strings of an array as ONNX Runtime takes them. Raises DataError for what is none."""
    values = array.reshape(-1).tolist()
    if wrong := next((value for value in values if not isinstance(value, str | bytes)), None):
        raise DataError(f"{place}: expected texts, found {wrong!r:.40}")
    texts = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values]
    found = np.empty(len(texts), object)
    found[:] = texts
    return found.reshape(array.shape)

"""How a query's outputs lie in the tensors that kernels write.

Most outputs are such a tensor. One whose extents the values of the inputs decide (the detections in an image) is two:
room for its values, and its extents, which say how much of the room is used. One of text, such as the label of a class,
is the labels' numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.errors import RequestError
from veltair.profiles.artifact.manifest import Manifest

NO_DIMENSION = -1  # stands behind the extents of an output that has fewer dimensions for some values


def read_outputs(manifest: Manifest, tensors: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The outputs by name: numbers as views of the `tensors`, and texts as objects of `str`. The tensors are in the
    order of `Manifest.output_tensors`.

    Raises RequestError where an output is larger than its room.
    """
    found = read_numbers(manifest, tensors)
    for port in manifest.outputs:
        if port.labels:
            found[port.name] = labels_at(port.labels, found[port.name])
    return found


def labels_at(labels: Sequence[str], numbers: NDArray[Any]) -> NDArray[Any]:
    """The labels with these numbers.

    >>> labels_at(("no", "yes"), np.array([[1], [0]]))
    array([['yes'],
           ['no']], dtype=object)
    """
    return np.array([labels[number] for number in numbers.reshape(-1).tolist()], object).reshape(numbers.shape)


def numbers_of(labels: Sequence[str], texts: NDArray[Any]) -> NDArray[np.int64]:
    """The numbers of these labels; -1 of a text that is none.

    >>> numbers_of(("no", "yes"), np.array(["yes", "maybe"], object))
    array([ 1, -1])
    """
    known = {label: number for number, label in enumerate(labels)}
    return np.array([known.get(text, -1) for text in texts.reshape(-1).tolist()], np.int64).reshape(texts.shape)


def read_numbers(manifest: Manifest, tensors: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """`read_outputs` with the numbers of labels in place of texts."""
    left, found = iter(tensors), {}
    for port in manifest.outputs:
        values = next(left)
        if port.room:
            extents = [int(extent) for extent in next(left)]
            while extents and extents[-1] == NO_DIMENSION:
                extents.pop()
            size = math.prod(extents)
            if min(extents, default=0) < 0 or size > values.size:
                raise RequestError(
                    f"{manifest.model}: output {port.name!r} has {size} elements (shape {tuple(extents)}) for these "
                    f"inputs; the model was compiled for at most {values.size}"
                )
            values = values.reshape(-1)[:size].reshape(extents)
        found[port.name] = values
    return found


def write_tensors(manifest: Manifest, outputs: Sequence[NDArray[Any]], batch: int) -> list[NDArray[Any]]:
    """What kernels write for these outputs, in the order of `Manifest.output_tensors`; labels are given as numbers."""
    found = list[NDArray[Any]]()
    for port, output in zip(manifest.outputs, outputs, strict=True):
        if not port.room:
            found.append(output)
            continue
        values = np.zeros(port.room * batch, output.dtype)
        kept = output.reshape(-1)[: values.size]
        values[: kept.size] = kept
        missing = [NO_DIMENSION] * (len(port.shape) - output.ndim)
        found += [values.reshape(-1, port.room), np.array([*output.shape, *missing], np.int64)]
    return found

"""The dimension of a model that queries may choose beside the batch: a sequence's length, an image's width.

Kernels know fixed shapes. So an artifact holds the model at several extents of the dimension, its *buckets*, and a
query runs in the smallest one that takes it. What it lacks there is padding, which the compiler has proved to change
nothing; or there is one bucket, whose kernels get the extent as an input, and read no more than that of the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from veltair.errors import RequestError
from veltair.profiles.artifact.strings import Strings

EXTENT_INPUT = "veltair/extent"  # of kernels that get the extent


def bucket_name(name: str, bucket: int) -> str:
    """What the scheduler calls a tenant, or a model, at one of the extents that it was compiled at.

    >>> bucket_name("bert", 0), bucket_name("bert", 3)
    ('bert', 'bert[3]')
    """
    return f"{name}[{bucket}]" if bucket else name


def split_bucket(name: str) -> tuple[str, int]:
    """The name and the bucket that `bucket_name` was given.

    >>> split_bucket("bert[3]"), split_bucket("bert")
    (('bert', 3), ('bert', 0))
    """
    found = re.fullmatch(r"(.*)\[([1-9][0-9]*)\]", name)
    return (found[1], int(found[2])) if found else (name, 0)


class DynamicDimension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dimension beside the batch: its bounds, where it stands, and how a query is brought to the shapes of a bucket.

    >>> seq = DynamicDimension("seq", low=1, high=64, extents=(64, 32, 8), axes={"ids": (1,), "tokens": (1,)})
    >>> [seq.extents[seq.bucket_of(extent)] for extent in (1, 8, 9, 33, 64)]
    [8, 8, 32, 64, 64]
    """

    name: str  # as the model's file has it
    low: int
    high: int
    extents: tuple[int, ...]  # of the buckets, descending from `high`
    axes: dict[str, tuple[int, ...]]  # by input and output: the axes that have this extent
    pads: dict[str, int] = {}  # by input: what it is padded with, where that is not 0
    masks: tuple[str, ...] = ()  # inputs of 0 and 1, a 1 in each row: padding is proved for these alone
    exact: bool = False  # nothing is padded: kernels get the extent as EXTENT_INPUT
    reason: str = ""  # why that is so
    last: dict[str, bool] = {}  # tensors that are the last position, of each sample by EXTENT_INPUT: True keeps an axis
    surplus: dict[str, int] = {}  # by input: what its axes have more than the extent; of a decoder's mask, a new token

    def bucket_of(self, extent: int) -> int:
        """The index of the smallest bucket that takes a query of this extent."""
        return sum(each >= extent for each in self.extents) - 1

    def client_shape(self, name: str, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of an input or output with -1 where this dimension stands.

        >>> DynamicDimension("seq", 1, 8, (8,), {"ids": (1,)}).client_shape("ids", (-1, 8, 8))
        (-1, -1, 8)
        """
        axes = self.axes.get(name, ())
        return tuple(-1 if axis in axes else dim for axis, dim in enumerate(shape))

    def extent_of(self, model: str, shapes: Mapping[str, Sequence[int]]) -> int:
        """The extent that inputs of these shapes have. Raises RequestError where it is out of bounds, or two differ."""
        extent, first = 0, ""
        for name, shape in shapes.items():
            more = self.surplus.get(name, 0)
            for axis in self.axes.get(name, ()):
                if axis >= len(shape) or not self.low <= shape[axis] - more <= self.high:
                    raise RequestError(
                        f"{model}: input {name!r} has shape {list(shape)}; expected {self.low + more} to "
                        f"{self.high + more} along dimension {axis} ({self.length_of(name)})"
                    )
                extent, first = (extent, first) if extent else (shape[axis] - more, name)
                if shape[axis] - more != extent:
                    raise RequestError(
                        f"{model}: input {name!r} has {shape[axis]} along dimension {axis} ({self.length_of(name)}), "
                        f"{first!r} has {extent + self.surplus.get(first, 0)} ({self.length_of(first)})"
                    )
        return extent

    def length_of(self, name: str) -> str:
        """How long the axes of an input are, in words.

        >>> DynamicDimension("past", 1, 8, (8,), {"mask": (1,)}, surplus={"mask": 1}).length_of("mask")
        'past + 1'
        """
        more = self.surplus.get(name, 0)
        return f"{self.name} + {more}" if more else self.name

    def check_masks(self, model: str, inputs: Mapping[str, NDArray[Any] | Strings]) -> None:
        """Raises RequestError for a mask of other values than 0 and 1, or with a row of zeros."""
        for name in self.masks:
            mask = inputs[name]
            assert not isinstance(mask, Strings)
            if not ((mask == 0) | (mask == 1)).all():
                raise RequestError(f"{model}: input {name!r} is a mask; expected zeros and ones")
            if not mask.any(axis=-1).all():
                raise RequestError(f"{model}: input {name!r} is a mask; expected a one in each row")

    def fit(
        self, model: str, inputs: Mapping[str, NDArray[Any] | Strings]
    ) -> tuple[int, int, dict[str, NDArray[Any] | Strings]]:
        """A query's extent, its bucket, and its inputs as that one takes them. Raises RequestError as `extent_of`."""
        shapes = {name: value.shape for name, value in inputs.items() if not isinstance(value, Strings)}
        extent = self.extent_of(model, shapes)
        return extent, self.bucket_of(extent), self.bring_to_bucket(inputs, extent)

    def bring_to_bucket(
        self, inputs: Mapping[str, NDArray[Any] | Strings], extent: int
    ) -> dict[str, NDArray[Any] | Strings]:
        """A query's inputs as the kernels of its bucket take them."""
        whole = self.extents[self.bucket_of(extent)]
        found = {name: self._padded(name, value, whole - extent) for name, value in inputs.items()}
        if self.exact:
            found[EXTENT_INPUT] = np.array([extent], np.int64)
        if self.last:
            batch = max(len(value) for name, value in inputs.items() if self.axes.get(name))
            found[EXTENT_INPUT] = np.full(batch, extent, np.int64)
        return found

    def _padded(self, name: str, value: NDArray[Any] | Strings, missing: int) -> NDArray[Any] | Strings:
        axes = self.axes.get(name, ())
        if isinstance(value, Strings) or not axes or not missing:
            return value
        widths = [(0, missing if axis in axes else 0) for axis in range(value.ndim)]
        return np.pad(value, widths, constant_values=self.pads.get(name, 0))

    def cut(self, outputs: Mapping[str, NDArray[Any]], extent: int) -> dict[str, NDArray[Any]]:
        """A bucket's outputs, as far as they are the query's."""
        if self.exact:  # an output that has the dimension has its own extents
            return dict(outputs)
        return {name: self.first(name, value, extent) for name, value in outputs.items()}

    def first(self, name: str, value: NDArray[Any], extent: int) -> NDArray[Any]:
        """The part of an input or output that a query of this extent has."""
        axes, end = self.axes.get(name, ()), extent + self.surplus.get(name, 0)
        return value[tuple(slice(0, end) if axis in axes else slice(None) for axis in range(value.ndim))]

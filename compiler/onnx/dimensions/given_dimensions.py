"""`GivenDimensions`: what is said of the dimensions that a file leaves open, by their names.

One may be left to queries, within bounds. The others are fixed: the file then is one whose inputs have that extent.
A dimension without a name is called by its input and axis, `image:2`. Exporters that name each axis of each input
differently write one dimension under several names; these are joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import index
from pathlib import Path
from typing import TypeAlias

import onnx

from veltair.compiler.onnx.dimensions.fixed_extent import fix_dimension, inputs_of, require_dimension, surplus_over
from veltair.errors import ConfigError

MOST_EXTENT = 1 << 20
MOST_DIGITS = 20  # of both bounds
Bounds: TypeAlias = tuple[str, int, int]  # of a dimension: its name, the least and the greatest extent


@dataclass(frozen=True, slots=True)
class GivenDimensions:
    """Extents by the name of a dimension, and the bounds of the one that each query chooses.

    >>> GivenDimensions.of({"height": 640, "ids:1,mask:1": (1, 512)}, "dims").texts
    ('height=640', 'ids:1,mask:1=1..512')
    """

    extents: Mapping[str, int] = field(default_factory=dict)
    bounds: Bounds | None = None
    same: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # further names of a dimension

    @classmethod
    def of(cls, given: Mapping[str, int | Sequence[int]], option: str) -> GivenDimensions:
        """An extent, or the least and the greatest, of each; several names of one are joined by commas.

        Raises ConfigError, which names the option.
        """
        extents, bounds, same = dict[str, int](), list[Bounds](), dict[str, tuple[str, ...]]()
        for names, value in given.items():
            name, *others = names.split(",")
            if not (name and all(others)):
                raise ConfigError(f"{option}: expected the name of a dimension, found {names!r}")
            if others:
                same[name] = tuple(others)
            low, high = _numbers(value)
            fixed, found = (False, "..".join(map(str, value))) if isinstance(value, Sequence) else (True, str(value))
            if not (1 <= low <= high <= MOST_EXTENT and fixed == (low == high)):
                raise ConfigError(
                    f"{option}: {name}: expected an extent, or bounds of which the first is below the second, from 1 "
                    f"to {MOST_EXTENT}; found {found}"
                )
            if fixed:
                extents[name] = low
            else:
                bounds.append((name, low, high))
        if len(bounds) > 1:
            named = ", ".join(name for name, *_ in bounds)
            raise ConfigError(f"{option}: expected bounds of one dimension and extents of all others, found {named}")
        every = Counter(chain(extents, (name for name, *_ in bounds), *same.values()))
        if twice := next((name for name, count in every.items() if count > 1), None):
            raise ConfigError(f"{option}: {twice} is given twice")
        return cls(extents, bounds[0] if bounds else None, same)

    @classmethod
    def parse(cls, texts: Iterable[str], option: str) -> GivenDimensions:
        """What the command line has. Raises ConfigError.

        >>> GivenDimensions.parse(["seq=1..512"], "--dim").bounds
        ('seq', 1, 512)
        """
        given = dict[str, int | Sequence[int]]()
        for text in texts:
            names, found, bounds = text.rpartition("=")
            low, dots, high = bounds.partition("..")
            numbers = (low, high) if dots else (low,)
            digits = all(number.isascii() and number.isdecimal() for number in numbers)
            if not (found and names and digits and len(bounds) < MOST_DIGITS):
                raise ConfigError(
                    f"{option} {text}: expected NAME=EXTENT or NAME=LOW..HIGH, as in height=640 or seq=1..512"
                )
            if names in given:
                raise ConfigError(f"{option}: {names} is given twice")
            given[names] = (int(low), int(high)) if dots else int(low)
        return cls.of(given, option)

    @property
    def chosen(self) -> Bounds:
        """`bounds`, where there are some."""
        assert self.bounds is not None
        return self.bounds

    @property
    def texts(self) -> tuple[str, ...]:
        """As the command line would have them."""
        fixed = (f"{self._names(name)}={extent}" for name, extent in self.extents.items())
        chosen = () if self.bounds is None else (f"{self._names(self.bounds[0])}={self.bounds[1]}..{self.bounds[2]}",)
        return (*fixed, *chosen)

    def _names(self, name: str) -> str:
        return ",".join((name, *self.same.get(name, ())))

    def apply(self, proto: onnx.ModelProto, path: Path) -> None:
        """Join names and fix extents in the model. The dimension that has bounds stays open.

        Raises ModelError where no input has a dimension of a name.
        """
        open_dimensions(proto)
        for name in chain(self.extents, self.same, *self.same.values()):
            require_dimension(proto, name, path)
        if not (self.extents or self.same):
            return
        values = (*inputs_of(proto), *proto.graph.output)
        for name, others in self.same.items():
            for other in others:
                _rename(values, other, name)
        for name, extent in self.extents.items():
            fix_dimension(values, name, extent)
        del proto.graph.value_info[:]  # what it says of shapes holds for any extent, and is inferred again


NOTHING_GIVEN = GivenDimensions()


def open_dimensions(proto: onnx.ModelProto) -> None:
    """Open the dimensions with a negative extent, which ONNX Runtime takes for open ones; those of inputs, behind the
    batch, that have no name get that of the input and the axis."""
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                dim.ClearField("dim_value")
    for value in inputs_of(proto):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis and not dim.HasField("dim_value") and not dim.dim_param:
                dim.dim_param = f"{value.name}:{axis}"


def _numbers(value: int | Sequence[int]) -> tuple[int, int]:
    """The least and the greatest extent; (0, 0), which none is, for what are no whole numbers."""
    given = value if isinstance(value, Sequence) else (value, value)
    try:
        low, high = map(index, given)
    except (TypeError, ValueError):
        return 0, 0
    return low, high


def _rename(values: Iterable[onnx.ValueInfoProto], name: str, new: str) -> None:
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            if (more := surplus_over(dim.dim_param, name)) is not None:
                dim.dim_param = f"{new} + {more}" if more else new

"""What a layer computes besides its tensors and weights: one typed class for each kind of layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

OUTSIDE_WORKLOAD: Mapping[str, Any] = {"outside workload": True}  # metadata of a field that no tuning record names


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of one kind of layer; this base class is that of layers without any.

    The fields of a subclass are terms of the layer's workload, by which tuning records are found. A field that has a
    default is a term only where its value differs from it, so that a new field keeps the records of before. A field
    whose metadata is `OUTSIDE_WORKLOAD` is no term.

    >>> @dataclass(frozen=True, slots=True)
    ... class PoolParameters(LayerParameters):
    ...     kernel: tuple[int, int]
    ...     count_include_pad: bool = False
    >>> PoolParameters((3, 3)).terms()
    {'kernel': (3, 3)}
    """

    def terms(self) -> dict[str, Any]:
        """The fields that the time of the layer depends on, by name."""
        named = {field.name: (getattr(self, field.name), field) for field in fields(self)}
        return {
            name: value
            for name, (value, field) in named.items()
            if not field.metadata.get("outside workload") and (field.default is MISSING or value != field.default)
        }

    @property
    def note(self) -> str:
        """A remark about the layer that `veltair inspect` prints; empty for most layers."""
        return ""

    def weight_bytes_read(self, batch: int) -> int | None:
        """Bytes of weights that a query of this batch reads; None where op and shapes of the layer determine them.

        A layer whose parameters decide how many rows of its tables are read overrides this.
        """
        return None

    def draw_inputs(self, batch: int, rng: np.random.Generator) -> list[NDArray[Any]] | None:
        """Random inputs of the layer, in its order; None where every input can be drawn by itself.

        A layer whose inputs depend on each other, such as texts and their ends, overrides this.
        """
        return None

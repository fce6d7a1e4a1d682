"""What a layer of feature columns computes: `ColumnsParameters`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.codegen.bf16 import array_to_bf16
from veltair.compiler.features.feature_description import ColumnInput, FeatureDescription
from veltair.compiler.features.feature_layout import FeatureLayout
from veltair.compiler.features.kernel.column_table import ColumnTable
from veltair.compiler.features.random_features import draw_buffers
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.parameters import OUTSIDE_WORKLOAD, LayerParameters


@dataclass(frozen=True, slots=True)
class ColumnsParameters(LayerParameters):
    """The columns of one input of the model, and the computed tensors that the layer copies beside them.

    `columns_layer` and `concatenated_layer` make them; for any layer of columns::

        spec.parameters_as(ColumnsParameters).table.width
    """

    plan: str  # digest of `table`: all that code and time depend on
    table: ColumnTable = field(metadata=OUTSIDE_WORKLOAD)  # what the kernel reads
    description: FeatureDescription = field(metadata=OUTSIDE_WORKLOAD)
    joined: ColumnInput = field(metadata=OUTSIDE_WORKLOAD)  # the input that the columns give
    rows_by_table: Mapping[str, NDArray[Any]] = field(metadata=OUTSIDE_WORKLOAD)  # as they are stored
    # First number of the columns, then of each copied tensor, in a row of the output; () where nothing is copied.
    places: tuple[int, ...] = ()
    storage: str = "fp32"  # of the rows: one of `row_storage.STORAGES`
    copied: tuple[Activation, ...] = field(default=(), metadata=OUTSIDE_WORKLOAD)  # the last inputs of the layer

    @property
    def note(self) -> str:
        return self.table.note

    @property
    def buffers(self) -> tuple[str, ...]:
        """Packed buffers of raw features that the columns read: the first inputs of the layer."""
        return FeatureLayout.from_description(self.description).buffers_read(self._features_read)

    @property
    def _features_read(self) -> set[str]:
        return self.description.features_read_by(self.joined.columns)

    def weight_bytes_read(self, batch: int) -> int:
        """Bytes of the rows that a batch reads, at most all tables."""
        return min(self.table.tables.nbytes, batch * self.table.row_bytes)

    def draw_inputs(self, batch: int, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Raw features of the described kinds and sizes, packed, and normally distributed numbers to copy."""
        numbers = [rng.standard_normal(tensor.at(batch), np.float32) for tensor in self.copied]
        rounded = [array_to_bf16(n) if t.dtype == "uint16" else n for t, n in zip(self.copied, numbers, strict=True)]
        return [*draw_buffers(self.description, self.buffers, batch, rng, self._features_read), *rounded]

"""What candidates are generated for and measured on: one setting for all layers of a compile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from veltair.compiler.graph.layer_spec import Space
from veltair.compiler.timing.measure import Bounds


@dataclass(frozen=True, slots=True)
class Setting:
    """The machine, the code generator's options and the design spaces of a compile.

    >>> Setting({"kind": "llvm"}, frozenset({"avx2"}), "a CPU", "fp32", batch=1, bounds={}, spaces={}).precision
    'fp32'
    """

    target: Mapping[str, Any]  # TVM's
    features: frozenset[str]  # instruction sets that the code may use
    cpu: str
    precision: str  # "fp32" or "bf16"
    batch: int  # size of a dynamic batch that is timed
    bounds: Bounds
    spaces: Mapping[str, Space]  # by `LayerSpec.op`

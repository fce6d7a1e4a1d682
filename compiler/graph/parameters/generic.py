"""Parameters of layers of generated code (`kernels/generic`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from veltair.compiler.graph.parameters.base import OUTSIDE_WORKLOAD, LayerParameters


@dataclass(frozen=True, slots=True)
class GenericParameters(LayerParameters):
    """The function that a layer of generated code computes.

    >>> GenericParameters("fused_softmax", "00c0ffee", tir=None).terms()
    {'function': 'fused_softmax', 'structure': '00c0ffee'}
    """

    function: str  # TVM's name, without the number that makes it unique
    structure: str  # hash of the code, blind to names: layers that share it share their code
    tir: Any = field(metadata=OUTSIDE_WORKLOAD, repr=False)  # tvm.tirx.PrimFunc: inputs, constants, then outputs

"""A random network in 8-bit integers, as ONNX Runtime's tool makes one: in any of its ways, which the seed draws."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

SAMPLES = 3  # that a network is calibrated with, all of one batch
FORMATS = (QuantFormat.QDQ, QuantFormat.QOperator, None)  # None: scales are worked out as a query runs
TYPES = (QuantType.QInt8, QuantType.QUInt8)
Arrays = Mapping[str, NDArray[Any]]


class _Repeated(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Arrays) -> None:
        self._left = iter([dict(feeds)] * SAMPLES)

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._left, None)


def quantised(model: onnx.ModelProto, feeds: Arrays, seed: int) -> onnx.ModelProto | None:
    """The network with steps in place of floats wherever the tool has them; None where it has none.

    Raises what the tool raises: it does not take every network.
    """
    rng = np.random.default_rng(seed)
    form, activations, weights = (
        choices[int(rng.integers(len(choices)))]
        for choices in (FORMATS, TYPES, TYPES[:1] if rng.random() < 0.7 else TYPES)
    )
    by_channel, symmetric = bool(rng.integers(2)), bool(rng.integers(2))
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "floats.onnx"), Path(folder, "steps.onnx")
        onnx.save(model, str(before))
        if form is None:
            quantize_dynamic(before, after, per_channel=by_channel, weight_type=weights)
        else:
            quantize_static(
                *(before, after, _Repeated(feeds)),
                quant_format=form,
                per_channel=by_channel,
                activation_type=activations,
                weight_type=QuantType.QInt8,
                extra_options={"ActivationSymmetric": symmetric and activations == QuantType.QInt8},
            )
        made = onnx.load(str(after))
    kinds = {node.op_type for node in made.graph.node}
    return made if any(word in kind for kind in kinds for word in ("Quant", "QLinear", "Integer")) else None

"""What `verify` finds: errors of a model's outputs and layers, and a line for each that is too large."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.onnx.logits import OutputActivation
from veltair.compiler.tuning.correctness import largest_errors
from veltair.profiles.artifact.expected_answer import as_numbers

UNSETTLED = 0.05  # a spread from which on roundings decide what an output is


def is_settled(spread: float) -> bool:
    """Whether an output with this spread can be compared.

    >>> is_settled(1e-6), is_settled(0.96)
    (True, False)
    """
    return spread <= UNSETTLED


@dataclass(slots=True)
class VerificationReport:
    """How far the model's outputs are from ONNX Runtime's.

    Absolute and relative errors are the largest of all outputs; relative means relative to the output's largest
    magnitude. The cosine similarity is the smallest of all outputs; for probabilities it is that of their logits.

    >>> report = VerificationReport(tolerance=1e-3, layers=1, versions=1, batches=(1,), cores=1)
    >>> report.record_output(np.array([1.0, 2.0]), np.array([1.0, 2.5]), "output y")
    >>> report.ok, report.max_abs_err, report.max_rel_err
    (False, 0.5, 0.2)
    """

    tolerance: float
    layers: int
    versions: int
    batches: tuple[int, ...]
    cores: int
    extents: tuple[int, ...] = ()  # of the dimension that queries choose
    spread: float = 0.0  # of an output: how far ONNX Runtime's own moves with roundings of the inputs; relative
    max_abs_err: float = 0.0
    max_rel_err: float = 0.0
    min_cosine: float = 1.0
    max_table_err: float = 0.0  # of lookup layers, by storing rows in fewer bytes; relative
    max_layer_err: float = 0.0  # of a layer against its reference or its version 0; relative
    mismatches: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.mismatches

    def add(self, other: VerificationReport, where: str = "") -> None:
        """Take in what was found of a part: of the model at one of its extents, of its outputs at one batch size."""
        self.layers, self.versions = self.layers + other.layers, self.versions + other.versions
        self.batches, self.cores = other.batches, other.cores
        self.spread = max(self.spread, other.spread)
        self.max_abs_err = max(self.max_abs_err, other.max_abs_err)
        self.max_rel_err = max(self.max_rel_err, other.max_rel_err)
        self.min_cosine = min(self.min_cosine, other.min_cosine)
        self.max_table_err = max(self.max_table_err, other.max_table_err)
        self.max_layer_err = max(self.max_layer_err, other.max_layer_err)
        self.mismatches += [f"{where}: {mismatch}" if where else mismatch for mismatch in other.mismatches]

    def record_output(
        self,
        found: NDArray[Any],
        expected: NDArray[Any],
        where: str,
        activation: OutputActivation | None = None,
        spread: float = 0.0,
    ) -> None:
        """Record one output of the model.

        activation: the one that turns logits into this output.
        spread: how far ONNX Runtime's own output moves with roundings (`ReferenceModel.spread`).
        """
        if found.shape != expected.shape:
            self.mismatches.append(f"{where}: shape {found.shape}, expected {expected.shape}")
            return
        absolute, relative = largest_errors(as_numbers(found), as_numbers(expected))
        self.max_abs_err, self.max_rel_err = max(self.max_abs_err, absolute), max(self.max_rel_err, relative)
        self.spread = max(self.spread, spread)
        if activation:
            found, expected = activation.to_logits(found), activation.to_logits(expected)
        self.min_cosine = min(self.min_cosine, cosine_similarity(found, expected))
        allowed, own = max(self.tolerance, spread), ""
        if not is_settled(spread):
            allowed, own = self.tolerance, f"; ONNX Runtime's own moves by {spread:.3g} with roundings of the inputs"
        if not relative <= allowed:
            self.mismatches.append(f"{where}: off by {relative:.3g} of its largest value (allowed {allowed:g}){own}")

    def record_layer(self, found: NDArray[Any], expected: NDArray[Any], allowed: float, where: str) -> None:
        """Record one output of one version of a layer."""
        _, relative = largest_errors(as_numbers(found), as_numbers(expected))
        self.max_layer_err = max(self.max_layer_err, relative)
        if not relative <= allowed:
            self.mismatches.append(f"{where} by {relative:.3g} of its largest value (allowed {allowed:g})")


def cosine_similarity(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Cosine of the angle between two outputs as vectors; 1 where both are all zero, 0 where a value is NaN."""
    a, b = as_numbers(found).ravel(), as_numbers(expected).ravel()
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    if lengths == 0:
        return float(np.array_equal(a, b))
    return float(np.nan_to_num(a @ b / lengths))

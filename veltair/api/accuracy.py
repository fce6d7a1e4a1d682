"""`measure_accuracy`: how far a compiled model's outputs are from those of an ONNX file, on samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from veltair.api.in_process_model import load
from veltair.errors import ModelError
from veltair.profiles.artifact.artifact_folder import Artifact
from veltair.profiles.artifact.output_layout import numbers_of
from veltair.profiles.runtime.onnx_layers import exact_session

if TYPE_CHECKING:
    from veltair.compiler.quantisation.samples import SampleSource


@dataclass(frozen=True, slots=True)
class OutputAccuracy:
    """Errors of one output over all samples. Where `ok` is false, a value was NaN or infinite, and they mean nothing.

    >>> accuracy = OutputAccuracy("y", 8, True, 0.02, 0.01, 0.005, 0.004, 0.9999, 37.0, same_argmax=1.0)
    >>> accuracy.max_rel_err
    0.01
    """

    name: str
    samples: int
    ok: bool
    max_abs_err: float
    max_rel_err: float  # over the largest magnitude of the reference
    mean_abs_err: float
    mean_rel_err: float  # over the mean magnitude of the reference
    cosine: float  # of all values as one vector
    snr_db: float | None  # energy of the reference over that of the errors; none where there are no errors
    same_argmax: float | None  # share of samples with the same greatest score; none unless each has a row of scores


def measure_accuracy(artifact: Artifact | str | Path, model: str | Path, samples: SampleSource) -> list[OutputAccuracy]:
    """Compare an artifact with ONNX Runtime on an ONNX file, such as the float file that it was calibrated from.

    ::

        veltair.measure_accuracy("artifacts/resnet50-int8", "resnet50.onnx", {"input": images})[0].same_argmax

    samples: arrays by the name of an input, or an .npz file of them; their first dimension counts samples.

    Raises DataError for samples that are not the model's, ModelError for a file that cannot be run or has other inputs
    or outputs than the artifact.
    """
    import onnxruntime as ort

    from veltair.compiler.onnx.dimensions.given_dimensions import GivenDimensions
    from veltair.compiler.onnx.onnx_model import load_model, parse_model  # loads TVM's compiler
    from veltair.compiler.onnx.scikit_learn.session_answers import SessionAnswers
    from veltair.compiler.quantisation.samples import model_inputs, read_samples

    path = Path(model)
    with load(artifact) as ours:
        manifest = ours.artifact.manifest
        if manifest.dimension is None:
            dimensions = GivenDimensions.parse(manifest.given, str(ours.artifact.path))
            load_model(path, manifest.max_batch, given=dimensions)  # refuses what is unsafe to run
        inputs = model_inputs(parse_model(path).graph)
        if {each.name for each in inputs} != {port.name for port in manifest.client_inputs}:
            takes, wants = (", ".join(sorted(p.name for p in ports)) for ports in (inputs, manifest.client_inputs))
            raise ModelError(f"{path}: takes {takes}; the artifact {ours.artifact.path} takes {wants}")
        given = read_samples(samples, inputs)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        try:
            session = exact_session(str(path), options)
        except Exception as error:  # ONNX Runtime raises its own types
            raise ModelError(f"{path}: ONNX Runtime cannot load it: {error}") from None
        names, answers = [port.name for port in manifest.outputs], SessionAnswers(session, path)
        if missing := set(names) - answers.names:
            raise ModelError(f"{path}: expected an output {min(missing)!r}, which the artifact has")
        sums = {name: _Sums() for name in names}
        for feed in given.feeds():
            try:
                expected = answers.run(manifest.outputs, feed)
            except Exception as error:
                raise ModelError(f"{path}: ONNX Runtime cannot run it on the samples: {error}") from None
            found = ours({name: _as_rows(array) for name, array in feed.items()})
            for port, wanted in zip(manifest.outputs, expected, strict=True):
                value = numbers_of(port.labels, found[port.name]) if port.labels else found[port.name]
                if value.shape != wanted.shape:
                    raise ModelError(f"output {port.name!r}: shape {value.shape}, expected {wanted.shape} of {path}")
                sums[port.name].add(value.astype(np.float64), wanted.astype(np.float64))
        return [each.accuracy(name, given.runs) for name, each in sums.items()]


def _as_rows(array: NDArray[Any]) -> NDArray[Any]:
    """The array; one text for each row has shape (batch,) in some files, and (batch, 1) in an artifact."""
    return array[:, None] if array.dtype == object and array.ndim == 1 else array


@dataclass(slots=True)
class _Sums:
    """What is known of an output so far. Sums are over its values."""

    count: int = 0
    largest_error: float = 0.0
    largest: float = 0.0
    error: float = 0.0
    magnitude: float = 0.0
    squared_error: float = 0.0
    product: float = 0.0
    found_squared: float = 0.0
    wanted_squared: float = 0.0
    rows: int = 0
    same_rows: int = 0
    has_scores: bool = True
    finite: bool = True

    def add(self, found: NDArray[Any], wanted: NDArray[Any]) -> None:
        if not (np.isfinite(found).all() and np.isfinite(wanted).all()):
            self.finite = False
            return
        error = np.abs(found - wanted)
        self.count += error.size
        self.largest_error = max(self.largest_error, float(error.max(initial=0)))
        self.largest = max(self.largest, float(np.abs(wanted).max(initial=0)))
        self.error += float(error.sum())
        self.magnitude += float(np.abs(wanted).sum())
        self.squared_error += float((error**2).sum())
        self.product += float((found * wanted).sum())
        self.found_squared += float((found**2).sum())
        self.wanted_squared += float((wanted**2).sum())
        self.has_scores &= wanted.ndim == 2 and wanted.shape[1] > 1
        if self.has_scores:
            self.rows += len(wanted)
            self.same_rows += int((found.argmax(1) == wanted.argmax(1)).sum())

    def accuracy(self, name: str, samples: int) -> OutputAccuracy:
        lengths = math.sqrt(self.found_squared * self.wanted_squared)
        cosine = self.product / lengths if lengths else float(self.found_squared == self.wanted_squared)
        noise = self.squared_error / self.wanted_squared if self.wanted_squared else self.squared_error
        return OutputAccuracy(
            name,
            samples,
            self.finite,
            self.largest_error,
            self.largest_error / (self.largest or 1.0),
            self.error / max(self.count, 1),
            self.error / (self.magnitude or 1.0),
            min(cosine, 1.0),
            -10 * math.log10(noise) if noise else None,
            self.same_rows / self.rows if self.has_scores and self.rows else None,
        )

"""The model that an artifact is compared with: ONNX Runtime on the file that it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.features.feature_model import FeatureModel
from veltair.compiler.features.feature_reference import reference_inputs as columns_of
from veltair.compiler.features.from_onnx.standard_copy import ClassedValues, HashedIds, standard_copy
from veltair.compiler.features.random_features import RawValues
from veltair.compiler.onnx.scikit_learn.session_answers import SessionAnswers
from veltair.compiler.tuning.correctness import largest_errors
from veltair.compiler.verification_report import is_settled
from veltair.errors import ModelError
from veltair.profiles.artifact.dynamic_dimension import EXTENT_INPUT
from veltair.profiles.artifact.manifest import ONNX_LAYER, Manifest
from veltair.profiles.artifact.output_layout import write_tensors
from veltair.profiles.artifact.ragged_inputs import all_to_ragged
from veltair.profiles.artifact.strings import Strings
from veltair.profiles.runtime.onnx_layers import TYPES, exact_session

Arrays = list[NDArray[Any]]

# Times that inputs are moved: more where ONNX Runtime runs layers, since these choose by values, and a choice changes
# only now and then.
MOVES, CHOOSING_MOVES = 2, 8
# Of an input, relative: some times what the roundings of all layers amount to, so that a choice that kernels may make
# otherwise seldom stays the same in all moves.
ROUNDING = {"fp32": 2.0**-14, "bf16": 2.0**-9}


class ReferenceModel:
    """ONNX Runtime with the model's file. `front`: the feature columns that give some of its inputs. ::

    ReferenceModel(Path("m.onnx"), manifest, front=None).outputs({"x": x}, {}, batch=1)
    """

    def __init__(self, model: Path, manifest: Manifest, front: FeatureModel | None) -> None:
        import onnxruntime as ort

        self._model, self._manifest, self._front = model, manifest, front
        options = ort.SessionOptions()
        options.log_severity_level = 3
        copy = standard_copy(model)
        # Inputs that stand for hashes, which ONNX lacks, or for features whose texts are compared.
        self._hashed: list[HashedIds | ClassedValues] = copy[1] if copy else []
        given: str | bytes = str(model)
        if copy is not None:
            given = copy[0].SerializeToString()
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(model.parent))
        try:
            self._session: Any = exact_session(given, options)
        except Exception as error:  # ONNX Runtime raises its own types
            raise ModelError(f"{model}: ONNX Runtime cannot load it: {error}") from None
        self._answers = SessionAnswers(self._session, model)

    @property
    def chooses(self) -> bool:
        """Whether the model may choose by values, as layers of ONNX Runtime do."""
        return any(layer.op == ONNX_LAYER for layer in self._manifest.layers)

    def outputs(self, feeds: Mapping[str, NDArray[Any]], raw: Mapping[str, RawValues], batch: int) -> Arrays:
        """What `Manifest.output_tensors` hold. `raw`: the features that its other inputs are computed from."""
        plain = {name: value for name, value in feeds.items() if name != EXTENT_INPUT}
        given: dict[str, Any] = all_to_ragged(self._manifest.ragged, plain)
        if self._front:
            # A column's input may have the name of its feature.
            computed = dict(raw) | columns_of(self._front.description, raw, self._front.tables)
            for value in self._session.get_inputs():
                if value.name in computed:
                    given[value.name] = _as_onnx_input(value, computed[value.name])
            ranks = {value.name: len(value.shape) for value in self._session.get_inputs()}
            for ids in self._hashed:
                found = ids.values_in(raw)
                if found.ndim != ranks[ids.name]:
                    found = found.reshape((batch, 1)[: ranks[ids.name]])
                given[ids.name] = found
        return write_tensors(self._manifest, self.plain_outputs(given, batch), batch)

    def spread(
        self, expected: Arrays, feeds: Mapping[str, NDArray[Any]], raw: Mapping[str, RawValues], batch: int
    ) -> list[float]:
        """How far each output moves, relative to its largest value, where float inputs move by roundings.

        expected: the `outputs` of the inputs as they are.

        What an output does then, no kernel can be held to do better: where boxes are chosen by scores that are nearly
        the same, the choice is another one.
        """
        rng = np.random.default_rng(0)
        found = [0.0] * len(expected)
        for _ in range(CHOOSING_MOVES if self.chooses else MOVES):
            moved = {name: _move(value, ROUNDING[self._manifest.precision], rng) for name, value in feeds.items()}
            outputs = self.outputs(moved, raw, batch)
            errors = (largest_errors(a, b)[1] for a, b in zip(outputs, expected, strict=True))
            found = [max(pair) for pair in zip(found, errors, strict=True)]
            if not all(map(is_settled, found)):
                break
        return found

    def plain_outputs(self, given: Mapping[str, Any], batch: int) -> Arrays:
        """The model's outputs, in the manifest's order; numbers in place of labels."""
        feeds = self._empty_inputs(batch) | dict(given)
        try:
            return self._answers.run(self._manifest.outputs, feeds)
        except Exception as error:  # ONNX Runtime raises its own types
            raise ModelError(f"{self._model}: ONNX Runtime cannot run it at batch {batch}: {error}") from None

    def _empty_inputs(self, batch: int) -> dict[str, NDArray[Any]]:
        """Those without elements, which an artifact does not have (`folding.empty_tensors`)."""
        empty = (value for value in self._session.get_inputs() if 0 in value.shape and value.type in TYPES)
        return {
            value.name: np.zeros([dim if isinstance(dim, int) else batch for dim in value.shape], TYPES[value.type])
            for value in empty
        }


def _as_onnx_input(value: Any, given: NDArray[Any] | Strings) -> NDArray[Any]:
    """The array as ONNX Runtime takes it: in the input's shape and type, text as objects."""
    if isinstance(given, Strings):
        array = np.array([text.decode() for text in given.tolist()], object)
    else:
        array = given.astype(TYPES[value.type])
    return array.reshape(-1, *value.shape[1:])


def _move(value: NDArray[Any], share: float, rng: np.random.Generator) -> NDArray[Any]:
    if value.dtype.kind != "f":
        return value
    moved: NDArray[Any] = (value * (1 + share * rng.uniform(-1, 1, value.shape))).astype(value.dtype)
    return moved

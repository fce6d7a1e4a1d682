"""Tries operators on text: whether each row of a batch gets numbers of its own, and how many.

Queries of different clients share a batch. That an operator pads with a word, or takes rows out, no graph tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from veltair.errors import ModelError
from veltair.profiles.runtime.onnx_layers import TYPES
from veltair.types import TensorSpec

TRIED_BYTES = 1 << 26  # of an output, at once
SENTENCES, SEPARATORS = 24, (" ", ",", ";", "|", "-")  # of a batch on which the graph is tried


@dataclass(frozen=True, slots=True)
class TextInput:
    """An input of text: `TextInput("review", 1)`."""

    name: str
    width: int  # texts of a row


def try_texts(
    session: ort.InferenceSession, inputs: Sequence[TextInput], known: Sequence[str], path: Path
) -> tuple[TensorSpec, ...]:
    """The outputs' types and shapes, from sentences together and one by one, and from single words.

    Raises ModelError where these are not numbers for each row, which it gets by itself as well as in a batch.
    """
    feeds = _feeds(session, inputs, _sentences(known))
    together = _run(session, feeds, path)
    alone = [_run(session, {name: rows[i : i + 1] for name, rows in feeds.items()}, path) for i in range(SENTENCES)]
    found = []
    for place, (output, array) in enumerate(zip(session.get_outputs(), together, strict=True)):
        where, rows = f"{path}: tensor {output.name!r}", [row[place] for row in alone]
        if output.type not in TYPES:
            raise ModelError(f"{where}, computed of text, is {output.type}; expected numbers")
        wrong = [row for row in rows if row.shape != (1, *array.shape[1:])]
        if wrong or len(array) != SENTENCES:
            raise _uneven(where, array, SENTENCES, (wrong or rows)[0])
        if not np.array_equal(array, np.concatenate(rows), equal_nan=array.dtype.kind == "f"):
            raise ModelError(f"{where} is another one for a row of text in a batch than for the row by itself")
        found.append(TensorSpec(output.name, str(TYPES[output.type]), (-1, *array.shape[1:])))
    step = max(TRIED_BYTES // max(1, *(array.nbytes // SENTENCES for array in together)), 1)
    for begin in range(0, len(known), step):
        words = known[begin : begin + step]
        for spec, array in zip(found, _run(session, _feeds(session, inputs, words), path), strict=True):
            if array.shape != (len(words), *spec.shape[1:]):
                raise _uneven(f"{path}: tensor {spec.name!r}", array, len(words), alone[0][found.index(spec)])
    return tuple(found)


def _feeds(session: ort.InferenceSession, inputs: Sequence[TextInput], texts: Sequence[str]) -> dict[str, NDArray[Any]]:
    """A batch in whose rows each text stands once, at least."""
    feeds: dict[str, NDArray[Any]] = {}
    for number, (text, value) in enumerate(zip(inputs, session.get_inputs(), strict=True)):
        row = [texts[(place + number) % len(texts)] for place in range(len(texts)) for _ in range(text.width)]
        feeds[text.name] = np.array(row, object).reshape(len(texts), *value.shape[1:])
    return feeds


def _uneven(where: str, array: NDArray[Any], rows: int, row: NDArray[Any]) -> ModelError:
    return ModelError(
        f"{where} has shape {list(array.shape)} for {rows} rows of text, and {list(row.shape)} for one; expected as "
        "many numbers for each row"
    )


def _sentences(known: Sequence[str]) -> list[str]:
    """Texts of up to seven words, which may be separators, between separators that are common."""
    words = [*known, "a", "Text", "42"]
    rows = [[words[(7 * row + 3 * place) % len(words)] for place in range(row % 8)] for row in range(SENTENCES)]
    return [SEPARATORS[row % len(SEPARATORS)].join(parts) for row, parts in enumerate(rows)]


def _run(session: ort.InferenceSession, feeds: Mapping[str, Any], path: Path) -> list[NDArray[Any]]:
    try:
        return list(session.run(None, dict(feeds)))
    except Exception as error:  # ONNX Runtime raises its own types
        raise ModelError(f"{path}: operators on text: ONNX Runtime does not run them: {error!s:.300}") from None

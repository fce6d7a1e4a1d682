"""What a score for each class means: the class with the greatest, and the probabilities that the scores become."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.onnx.folding.expansion import PartsOfNode

# By ONNX's name of a `post_transform`: the operator, and its attributes.
TRANSFORMS: dict[bytes, tuple[str, dict[str, Any]]] = {
    b"NONE": ("Identity", {}),
    b"LOGISTIC": ("Sigmoid", {}),
    b"SOFTMAX": ("Softmax", {"axis": 1}),
}


def add_best_class(parts: PartsOfNode, scores: str, labels: NDArray[np.int64]) -> None:
    """Add the first output of a classifier: the label of the greatest score."""
    best = parts.add("ArgMax", [scores], axis=1, keepdims=0)
    parts.add("Gather", [parts.array(labels), best], parts.fused.output[0], axis=0)


def add_probabilities(parts: PartsOfNode, scores: str, after: bytes) -> None:
    """Add the second output of a classifier, if it has one. `after`: one of TRANSFORMS."""
    if len(parts.fused.output) > 1:
        kind, options = TRANSFORMS[after]
        parts.add(kind, [scores], parts.fused.output[1], **options)

"""Helpers of the tests: columns of an ONNX file, compared with what its operators give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import farmhash
import numpy as np

import veltair
from veltair.compiler.features.feature_model import join_features
from veltair.compiler.onnx.onnx_model import OnnxModel, load_model
from veltair.compiler.reference_model import ReferenceModel
from veltair.profiles.artifact.strings import Strings

TEXTS = [[b"Rome", b"", b"Oslo"], [b"", b"", b""], [b"Rome", b"Rome", "Zürich".encode()], [b"x" * 90, b"\0", b""]]


def bucket(text: bytes, buckets: int) -> int:
    return int(farmhash.fingerprint64(text) % buckets)


def columns_of(loaded: OnnxModel) -> dict[str, Any]:
    assert loaded.columns is not None
    return {column.feature: column for column in loaded.columns.description.columns}


def check(path: Path, folder: Path, feeds: dict[str, Any], want: np.ndarray[Any, Any]) -> OnnxModel:
    """That the artifact and the reference of `verify` give `want`. Returns the model as it was loaded."""
    artifact = veltair.compile(path, folder / "a", trials=0, levels="modelled", max_batch=8, precision="fp32")
    with veltair.load(artifact, threads=1) as compiled:
        for rows in (slice(0, 1), slice(1, 4), slice(0, len(want))):
            (found,) = compiled({name: value[rows] for name, value in feeds.items()}).values()
            np.testing.assert_allclose(found, want[rows], rtol=1e-5, atol=1e-6)
    loaded = load_model(path, 8)
    raw = {n: Strings.from_values(v.ravel()) if v.dtype.hasobject else v for n, v in feeds.items()}
    reference = ReferenceModel(path, artifact.manifest, join_features(loaded, None))
    found = reference.outputs({}, raw, len(want))[0].reshape(want.shape)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    return loaded

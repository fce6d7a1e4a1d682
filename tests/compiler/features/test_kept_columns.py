"""Columns as artifacts keep them: what is read back is what was compiled, whatever it was found in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import onnx
import pytest
from example_manifest import make_manifest
from features.column_nets import CITY, HISTORY, MEAN, STRING, Inputs, hashed, model, node
from features.compiled_columns import make_description
from features.every_column import COLUMNS, FEATURES, SHAPES
from onnx import TensorProto

from veltair.compiler.features.feature_description import FeatureDescription
from veltair.compiler.features.kept_columns import columns_of, keep_columns
from veltair.compiler.onnx.onnx_model import load_model
from veltair.errors import ArtifactError
from veltair.profiles.artifact import artifact_folder
from veltair.profiles.artifact.artifact_folder import Artifact

NETS: list[tuple[list[onnx.NodeProto], Inputs]] = [
    ([*CITY, node("Relu", ["city.rows"], "y")], {"city": (STRING, ["B"])}),
    (
        [*CITY, *HISTORY, *MEAN, node("Concat", ["mean", "plain", "city.rows"], "y", axis=1)],
        {"city": (STRING, ["B"]), "history": (STRING, ["B"]), "plain": (TensorProto.FLOAT, ["B", 2])},
    ),
    (
        [
            hashed("words", "word", "three"),
            node("Gather", ["cities", "word"], "rows"),
            node("Relu", ["rows"], "y"),
        ],
        {"words": (STRING, ["B"])},
    ),
    (
        [
            node("Bucketize", ["age"], "bucket", boundaries=[0.0, 0.5]),
            node("Gather", ["cities", "bucket"], "rows"),
            node("Relu", ["rows"], "y"),
        ],
        {"age": (TensorProto.FLOAT, ["B", 1])},
    ),
]


def kept(description: FeatureDescription, folder: Path) -> FeatureDescription:
    digest = keep_columns(description, folder)
    return columns_of(Artifact(folder, msgspec.structs.replace(make_manifest(), columns_digest=digest), ""))


def compare(description: FeatureDescription, read: FeatureDescription) -> None:
    for part in ("features", "columns", "inputs"):
        assert getattr(read, part) == getattr(description, part)
    tables = [(table.name, table.rows, table.dim) for table in description.tables]
    assert [(table.name, table.rows, table.dim) for table in read.tables] == tables


def test_a_description(tmp_path: Path) -> None:
    odd = {"feature": "f", "name": "odd", "boundaries": [-1e30, 0.1, float("inf")], "default": 2, "table": "t8"}
    description = make_description(FEATURES, [*COLUMNS, odd], **SHAPES)
    compare(description, kept(description, tmp_path))


@pytest.mark.parametrize(("nodes", "inputs"), NETS)
def test_columns_of_an_onnx_file(tmp_path: Path, nodes: Sequence[onnx.NodeProto], inputs: Inputs) -> None:
    found = load_model(model(tmp_path / "m.onnx", nodes, inputs, ["y"])).columns
    assert found is not None
    compare(found.description, kept(found.description, tmp_path))


def test_an_artifact_without_columns_and_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no feature columns"):
        columns_of(Artifact(tmp_path, make_manifest(), ""))
    assert keep_columns(None, tmp_path) == ""
    for content, message in ((b"\xff", "codec"), (b"features = 3", "features"), (b"a = [", "TOML|array|value")):
        (tmp_path / artifact_folder.COLUMNS).write_bytes(content)
        with pytest.raises(ArtifactError, match=message):
            columns_of(Artifact(tmp_path, msgspec.structs.replace(make_manifest(), columns_digest="0"), ""))

"""A description, its columns for training, and the artifact that serves them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
import tomli_w
from onnx import TensorProto, helper
from training_rows import DESCRIPTION, SERVED

import veltair
from veltair.api.training.training_features import TrainingFeatures
from veltair.profiles.artifact.artifact_folder import Artifact


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A description whose tables are unit matrices, and a model that gives what the columns give it: counts of ids."""
    path = tmp_path_factory.mktemp("training")
    for rows in (4, 7, 11):
        np.save(path / f"{rows}.npy", np.eye(rows, dtype=np.float32))
    (path / "features.toml").write_text(DESCRIPTION)
    served = tomllib.loads(DESCRIPTION)
    x, ids = [*SERVED, "scores"], ["items.ids", "items.length"]
    served["inputs"] = [{"name": "x", "columns": x}, {"name": "ids", "columns": ids}]
    served["columns"] = [c for c in served["columns"] if c.get("name", c["feature"]) in (*x, *ids)]
    (path / "served.toml").write_text(tomli_w.dumps(served))
    width = sum(SERVED.values()) + 2
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", width]),
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", 5]),
    ]
    outputs = [
        helper.make_tensor_value_info("counts", TensorProto.FLOAT, ["B", width]),
        helper.make_tensor_value_info("floats", TensorProto.FLOAT, ["B", 5]),
    ]
    nodes = [helper.make_node("Neg", ["x"], ["counts"]), helper.make_node("Cast", ["ids"], ["floats"], to=1)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path / "m.onnx")
    return path


@pytest.fixture(scope="package")
def artifact(folder: Path) -> Artifact:
    return veltair.compile(
        folder / "m.onnx", folder / "out", features=folder / "served.toml", trials=0, max_batch=4, precision="fp32"
    )


@pytest.fixture(scope="package")
def every_column(folder: Path) -> TrainingFeatures:
    return veltair.features(folder / "features.toml")

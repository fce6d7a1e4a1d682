"""A DLRM from raw features: strings, ids and numbers go in as they are, and the score comes out of one artifact.

    python examples/dlrm_from_raw_features.py
    python examples/dlrm_from_raw_features.py --trials 0     # compiles at once, without a search

The ONNX file has the dense part of the model alone: its input `x` is what the feature columns give. A TOML file states
how they come from raw features (docs/features.md); the compiler makes both into kernels. No preprocessing is left to
the client.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import veltair

DIM = 16  # of a vector: the three of a row are multiplied with each other, DLRM's interaction
FEATURES = f"""
[[features]]
name = "age"
kind = "float"

[[features]]
name = "user"
kind = "string"

[[features]]
name = "history"             # "i7;i42;i15"
kind = "tokens"
separator = ";"
truncate = 20

[[tables]]
name = "ages"
rows = 4
dim = {DIM}
seed = 1                     # random rows; those of a trained model are a file: see docs/features.md

[[tables]]
name = "users"
rows = 10_000
dim = {DIM}
seed = 2

[[tables]]
name = "items"
rows = 10_000
dim = {DIM}
seed = 3

[[columns]]
feature = "age"
boundaries = [18, 35, 65]
table = "ages"

[[columns]]
feature = "user"
hash = 10_000
table = "users"

[[columns]]
feature = "history"
hash = 10_000
combiner = "mean"
table = "items"

[[inputs]]
name = "x"
columns = ["age", "user", "history"]
"""


def interaction() -> onnx.ModelProto:
    """x float32 (n, 48) -> score (n, 1): the products of a row's three vectors, a dense layer, a sigmoid."""
    weight = np.random.default_rng(0).standard_normal((9, 1), dtype=np.float32)
    weights = [
        numpy_helper.from_array(np.array([-1, 3, DIM], np.int64), "vectors.shape"),
        numpy_helper.from_array(np.array([-1, 9], np.int64), "products.shape"),
        numpy_helper.from_array(weight, "weight"),
    ]
    nodes = [
        helper.make_node("Reshape", ["x", "vectors.shape"], ["vectors"]),
        helper.make_node("Transpose", ["vectors"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["vectors", "turned"], ["products"]),
        helper.make_node("Reshape", ["products", "products.shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["score"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3 * DIM])
    score = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n", 1])
    graph = helper.make_graph(nodes, "small_dlrm", [x], [score], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a DLRM that takes raw features.")
    parser.add_argument("--trials", type=int, help="candidates to measure of each layer (default: some)")
    trials = parser.parse_args().trials
    rows = {
        "age": np.array([[17.0], [44.0]], np.float32),
        "user": np.array([[b"ada"], [b"grace"]], object),
        "history": np.array([[b"i7;i42;i15"], [b""]], object),  # the second has none
    }
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        features = here / "small_dlrm.features.toml"
        features.write_text(FEATURES)
        artifact = veltair.compile(
            interaction(), here / "small_dlrm", features=features, max_batch=8, qos_ms=10, trials=trials
        )
        print(artifact.summary())
        with veltair.serve(artifact) as daemon:
            scores = daemon.client().infer("small_dlrm", rows)["score"]
            print("scores", " ".join(f"{score:.3f}" for score in scores.ravel()))


if __name__ == "__main__":
    main()

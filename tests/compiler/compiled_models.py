"""Helpers of the tests: small ONNX models to compile, a store of records in a folder, and the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from veltair.machine.isa import cpu_features
from veltair.profiles.records.tuning_records import RecordStore

CLI = [sys.executable, "-m", "veltair.cli"]
Told = Callable[..., tuple[int, str, str]]


def weights(rng: np.random.Generator, **shapes: tuple[int, ...]) -> list[TensorProto]:
    return [
        numpy_helper.from_array((rng.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(np.float32), name)
        for name, s in shapes.items()
    ]


def image_model(path: Path, seed: int = 0) -> Path:
    """Two equal convolutions (other weights), a residual sum, a global pool and a dense layer."""
    conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], "first", **conv),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], "second", **conv),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "third", **conv),
        helper.make_node("Add", ["c2", "r0"], ["s"]),
        helper.make_node("Relu", ["s"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], "dense", transB=1),
    ]
    shapes: dict[str, tuple[int, ...]] = {
        "w0": (32, 32, 3, 3),
        "w1": (32, 32, 3, 3),
        "w2": (32, 32, 3, 3),
        "w3": (10, 32),
    }
    constants = weights(np.random.default_rng(seed), **shapes, b0=(32,), b1=(32,), b2=(32,), b3=(10,))
    return write(path, nodes, constants, [("x", TensorProto.FLOAT, (1, 32, 9, 9))], [("y", (1, 10))])


def heads_model(path: Path) -> Path:
    """Two heads of a detector whose rows are joined: the second piece begins 1944 bytes into the whole."""
    nodes = []
    for i, stride in enumerate((1, 2)):
        nodes += [
            helper.make_node(
                "Conv", ["x", f"w{i}", f"b{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4, strides=[stride] * 2
            ),
            helper.make_node("Transpose", [f"c{i}"], [f"t{i}"], f"transpose{i}", perm=[0, 2, 3, 1]),
            helper.make_node("Reshape", [f"t{i}", "rows"], [f"r{i}"], f"reshape{i}"),
        ]
    nodes += [
        helper.make_node("Concat", ["r0", "r1"], ["r"], "join", axis=1),
        helper.make_node("Softmax", ["r"], ["y"], "scores", axis=2),
    ]
    constants = weights(np.random.default_rng(2), w0=(6, 32, 3, 3), w1=(6, 32, 3, 3), b0=(6,), b1=(6,))
    constants.append(numpy_helper.from_array(np.array([1, -1, 3], np.int64), "rows"))
    return write(path, nodes, constants, [("x", TensorProto.FLOAT, (1, 32, 9, 9))], [("y", (1, 212, 3))])


def bag_model(path: Path) -> Path:
    """Two embedding bags and a dense layer over a dynamic batch."""
    nodes = [
        helper.make_node("Gather", ["t0", "ids0"], ["g0"], "bag0"),
        helper.make_node("ReduceSum", ["g0", "axis"], ["e0"], keepdims=0),
        helper.make_node("Gather", ["t1", "ids1"], ["g1"], "bag1"),
        helper.make_node("ReduceSum", ["g1", "axis"], ["e1"], keepdims=0),
        helper.make_node("Concat", ["e0", "e1"], ["e"], axis=1),
        helper.make_node("Gemm", ["e", "w", "b"], ["y"], "dense", transB=1),
    ]
    constants = weights(np.random.default_rng(1), t0=(1000, 16), t1=(500, 16), w=(8, 32), b=(8,))
    constants.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    ids = [(f"ids{i}", TensorProto.INT64, ("n", 5)) for i in range(2)]
    return write(path, nodes, constants, ids, [("y", ("n", 8))])


def write(path: Path, nodes: list[Any], constants: list[TensorProto], inputs: list[Any], outputs: list[Any]) -> Path:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(*given) for given in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def records(folder: Path) -> RecordStore:
    return RecordStore(cpu_features(), user=folder / "records", shipped=folder / "none")


def run(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"XDG_DATA_HOME": str(folder / "xdg")}
    return subprocess.run([*CLI, *map(str, arguments)], capture_output=True, text=True, timeout=300, env=environment)

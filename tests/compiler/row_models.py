"""Helpers of the tests: a model of a few look-ups or sums, equal to ONNX Runtime, and the layers that it becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_nets import Arrays, run

random = np.random.default_rng(5)
ROWS = 7


def drawn(*shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape, dtype=np.float32)


def operators(tmp_path: Path, nodes: list[Any], feeds: Arrays, constants: Arrays) -> list[str]:
    """The layers' of a model that gives in `y` what ONNX Runtime gives; its batch is symbolic."""
    given = [
        helper.make_tensor_value_info(
            name, TensorProto.INT64 if array.dtype == np.int64 else TensorProto.FLOAT, ["n", *array.shape[1:]]
        )
        for name, array in feeds.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(op, reads.split(), [name], **more) for op, reads, name, more in nodes],
        "net",
        given,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    (found,), operators = run(path, feeds, "fp32", ROWS, max_batch=32)
    (wanted,) = ort.InferenceSession(str(path)).run(None, feeds)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    return operators


def ids(lookups: int, depth: int) -> NDArray[np.int64]:
    """Some of them outside of [-depth, depth)."""
    return random.integers(-depth - 3, depth + 3, (ROWS, lookups))

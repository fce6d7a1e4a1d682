"""One convolution and one matrix product: calls of compiled kernels in fp32 on one core, in their default versions.

python -m bench.micro.kernels -o FILE.json
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.kernels.compiled_graph import CompiledGraph
from bench.micro.runner import make_runner
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

IMAGE, FILTERS = (1, 64, 56, 56), (64, 64, 3, 3)
ROWS, WEIGHTS = (64, 512), (512, 512)


def compile_operator(op: str, shape: tuple[int, ...], weight: tuple[int, ...], **attributes: object) -> CompiledGraph:
    """Compiles a model of one operator with a random weight."""
    chance = np.random.default_rng(0)
    stored = numpy_helper.from_array(chance.standard_normal(weight, np.float32), "w")
    node = helper.make_node(op, ["x", "w"], ["y"], **attributes)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], op, [given], [made], [stored])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        return CompiledGraph(lower(load_model(path), "fp32"), {"x": chance.standard_normal(shape, np.float32)})


def main() -> None:
    os.environ["TVM_NUM_THREADS"] = "1"  # TVM reads it when its pool starts, with the first kernel
    runner = make_runner("bench.micro.kernels")
    conv = compile_operator("Conv", IMAGE, FILTERS, pads=[1, 1, 1, 1])
    product = compile_operator("MatMul", ROWS, WEIGHTS)
    runner.bench_func("conv2d 3x3, 64 to 64 channels, 56x56", conv)
    runner.bench_func("matmul 64x512 by 512x512", product)


if __name__ == "__main__":
    main()

"""Blocks of a computed tensor by constant ids: every kind of point equals numpy, and so does the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx_nets import Net, normal, run
from run_kernels import compile_ahead, run_and_compare

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.recommendation import BlockGatherParameters
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.errors import ModelError
from veltair.machine.isa import cpu_features

random = np.random.default_rng(8)
BLOCKS = 9


@pytest.mark.parametrize("mcpu", ["", "haswell"])
@pytest.mark.parametrize("dim", [69, 96])
def test_every_kind_of_point_equals_numpy(dim: int, mcpu: str) -> None:
    """Two samples, and two rows of blocks in each of them."""
    ids = random.integers(0, BLOCKS, 14).astype(np.int32)
    x, y = Activation("x", "float32", (-2 * BLOCKS, dim)), Activation("y", "float32", (-2 * len(ids), dim))
    parameters = BlockGatherParameters(picked=len(ids), blocks=BLOCKS)
    spec = LayerSpec("blocks", "block_gather", (x,), (y,), {"ids": ids}, 0, 2, parameters)
    points = SPACES["block_gather"].points(spec, cpu_features())
    kinds = {(p.get("level"), p.get("stores"), p["ahead"] == 0): p for p in points}
    dense = random.standard_normal((4 * BLOCKS, dim)).astype(np.float32)
    wanted = dense.reshape(4, BLOCKS, dim)[:, ids].reshape(-1, dim)
    for point in compile_ahead(spec, [*kinds.values()], mcpu):
        error, (found,) = run_and_compare(spec, point, [dense], 2, mcpu)
        assert error == 0 and np.array_equal(found, wanted), point


@pytest.mark.parametrize(("axis", "shape"), [(1, [BLOCKS, 4, 16]), (2, [3, BLOCKS, 64]), (-2, [3, BLOCKS, 65])])
def test_a_gather_of_blocks_is_one_layer(tmp_path: Path, axis: int, shape: list[int]) -> None:
    net = Net(x=["n", *shape])
    ids = random.integers(-BLOCKS, BLOCKS, 11)
    path = net.save(tmp_path / "net.onnx", net("Tanh", net("Gather", net("Tanh", "x"), ids, axis=axis)))
    feeds = {"x": normal(3, *shape)}
    (found,), operators = run(path, feeds, "fp32", 3)
    np.testing.assert_allclose(found, ort.InferenceSession(str(path)).run(None, feeds)[0], rtol=1e-5, atol=1e-6)
    assert operators.count("block_gather") == 1 and "generic" not in operators


def test_short_blocks_and_rows_of_the_batch_are_left_to_others(tmp_path: Path) -> None:
    for number, (axis, width) in enumerate(((1, 8), (0, 64))):
        net = Net(x=["n" if axis else 4, BLOCKS, width])
        path = net.save(tmp_path / f"{number}.onnx", net("Gather", net("Tanh", "x"), [1, 3], axis=axis))
        found = [layer.op for layer in lower(load_model(path), "fp32").layers]
        assert ("block_gather" in found) == (axis == 0)  # four fixed rows are no batch


@pytest.mark.parametrize("wrong", [BLOCKS, -BLOCKS - 1, 1 << 40])
def test_a_block_that_is_not_there_is_refused(tmp_path: Path, wrong: int) -> None:
    net = Net(x=["n", BLOCKS, 64])
    path = net.save(tmp_path / "net.onnx", net("Gather", net("Tanh", "x"), [0, wrong], axis=1))
    with pytest.raises(ModelError, match=rf"has the index {wrong}, and axis 1 of its input has {BLOCKS} entries"):
        lower(load_model(path), "fp32", fallback=False)

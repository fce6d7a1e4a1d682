"""Versions at a great batch: repeated samples find what is wrong there alone, and do not decide where they cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tvm.script.ir_builder import tirx as T

from veltair.compiler.build import compile_model
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec
from veltair.compiler.shared_library import ObjectFile, compile_objects, link_library
from veltair.compiler.stitch.stitched_space import StitchedSpace
from veltair.compiler.timing import measure
from veltair.compiler.timing.measure import Meter
from veltair.compiler.tuning.repeated_rows import may_repeat, repeats
from veltair.errors import VeltairError
from veltair.machine.isa import tvm_target

SAMPLES, BATCH, LATE = 3, 32, 20
X = Activation("x", "float32", (-2, 8))  # two rows a sample
TABLE = Activation("t", "float32", (8,))  # the same for each batch


def kernel(value: Callable[[Any, Any, Any, Any], Any]) -> Any:
    """Stores `value(x, t, row, column)` in `y`, and `t` in an output without a batch."""

    def body(x: Any, t: Any, y: Any, same: Any) -> None:
        with T.parallel(0, x.shape[0]) as row, T.serial(0, 8) as i:
            T.buffer_store(y, value(x, t, row, i), [row, i])
        with T.serial(0, 8) as i:
            T.buffer_store(same, t[i], [i])

    return build_prim_func([X, TABLE, X, TABLE], body)


def late(row: Any) -> Any:
    return T.Select(row >= LATE, T.float32(1), T.float32(0))


KERNELS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "apart": lambda x, t, row, i: x[row, i] + t[i],
    "late": lambda x, t, row, i: x[row, i] + t[i] + late(row),
    "flipped": lambda x, t, row, i: x[x.shape[0] - 1 - row, i],
    "halves": lambda x, t, row, i: x[row ^ 1, i] * t[i],  # the rows of a sample mix, samples do not
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    sources = [ObjectFile(kernel(value), name, folder / f"{name}.o") for name, value in KERNELS.items()]
    assert compile_objects(sources, tvm_target()) == [""] * len(sources)
    link_library([source.path for source in sources], folder / "kernels.so")
    return folder / "kernels.so"


@pytest.mark.parametrize(("name", "expected"), [("apart", True), ("late", False), ("flipped", False), ("halves", True)])
@pytest.mark.parametrize("spilled", [0, measure.SPILL_BYTES], ids=["in a file", "in the message"])
def test_samples_are_repeated(
    meter: Meter, library: Path, monkeypatch: pytest.MonkeyPatch, name: str, expected: bool, spilled: int
) -> None:
    monkeypatch.setattr(measure, "SPILL_BYTES", spilled)
    spec = LayerSpec("l", "op", (X, TABLE), (X, TABLE), {}, 0, max_batch=BATCH)
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((2 * SAMPLES, 8), np.float32), rng.standard_normal(8, np.float32)
    x[1, 3] = np.nan  # is the same as itself
    for cores in {1, len(meter.cores)}:
        assert repeats(meter, library, name, (), spec, [x, t], SAMPLES, BATCH, cores) == expected


def test_ids_and_samples_along_other_axes_are_not_repeated() -> None:
    def spec(*inputs: Activation) -> LayerSpec:
        return LayerSpec("l", "op", inputs, (X,), {}, 0, max_batch=BATCH)

    assert may_repeat(spec(X, TABLE))
    assert may_repeat(spec(Activation("b", "uint16", (-1, 20, 5, 6), block=16)))
    assert not may_repeat(spec(X, Activation("ids", "int64", (-1,))))
    assert not may_repeat(spec(Activation("x", "float32", (8, -1))))


def model(path: Path, op: str, **attributes: Any) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 8]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **attributes)], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_a_version_that_is_wrong_in_the_greatest_batch_alone_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(StitchedSpace):
        def build(self, spec: Any, point: Any, features: Any) -> Kernel:
            def body(x: Any, y: Any) -> None:
                with T.serial(0, x.shape[0]) as row, T.serial(0, 8) as i:
                    T.buffer_store(y, T.max(x[row, i], T.float32(0)) + late(row), [row, i])

            return Kernel(build_prim_func([*spec.inputs, *spec.outputs], body), (), 1, 1)

    monkeypatch.setitem(SPACES, "stitched", Late())
    wrong = rf"no version is right: .*y at batch {BATCH} on \d cores: off by"
    with pytest.raises(VeltairError, match=wrong):
        compile_model(model(tmp_path / "m.onnx", "Relu"), tmp_path / "out", trials=0, precision="fp32", max_batch=BATCH)


def test_a_layer_that_mixes_samples_has_versions(tmp_path: Path) -> None:
    made = model(tmp_path / "m.onnx", "Softmax", axis=0)
    artifact = compile_model(made, tmp_path / "out", trials=0, precision="fp32", max_batch=BATCH)
    assert all(layer.versions for layer in artifact.manifest.layers)

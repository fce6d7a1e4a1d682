"""`veltair compile --dump`: one readable file for each phase of the pipeline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from veltair.cli import main
from veltair.compiler.pipeline import PHASES

PHASE_FILES = [f"{number:02}-{phase.__name__.replace('_', '-')}.txt" for number, phase in enumerate(PHASES, 1)]


def save_model(path: Path) -> Path:
    """A convolution with an activation, and a residual sum."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((32, 32, 3, 3)), "b": rng.standard_normal(32)}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], "convolution", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["y"], "pool"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, 1, 1])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def compile_and_dump(folder: Path, dump: Path) -> int:
    model, out = save_model(folder / "net.onnx"), folder / "out"
    return main(["compile", str(model), "--out", str(out), "--trials", "0", "--precision", "fp32", "--dump", str(dump)])


@pytest.fixture
def own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))


@pytest.mark.usefixtures("own_records")
def test_every_phase_writes_a_numbered_file(tmp_path: Path) -> None:
    dump = tmp_path / "dump" / "new"
    assert compile_and_dump(tmp_path, dump) == 0
    assert sorted(file.name for file in dump.iterdir()) == PHASE_FILES
    nodes, graph, last = ((dump / PHASE_FILES[i]).read_text() for i in (0, 6, -1))
    assert "Conv convolution\n    in  x float32[1, 32, 8, 8]\n    in  w float32[32, 32, 3, 3] constant" in nodes
    assert "conv2d convolution: 1179648 flop" in graph
    assert "float32[1, 32, 8, 8] in blocks of 16 halo top 1 left 1 bottom 1 right 1" in graph
    assert "    with kernel = (3, 3)\n" in graph and "    with activation = relu\n" in graph
    assert "    weight weight float32[32, 32, 3, 3]\n" in graph and "output y float32[1, 32, 1, 1]\n" in graph
    assert "workload " not in graph
    assert "\nworkload conv2d " in last and "\nversion conv2d_" in last and "\nbuffer 0 input float32" in last


@pytest.mark.usefixtures("own_records")
def test_a_folder_that_cannot_be_written_is_refused_before_the_compile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    for dump in (file, file / "below"):
        assert compile_and_dump(tmp_path, dump) == 2
        assert f"--dump {dump}: cannot write there (" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

"""The zoo as files and as a command, and DLRM against ONNX Runtime."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from veltair.cli import main
from veltair.errors import ConfigError
from veltair.zoo import external_tensors, registry
from veltair.zoo.recommendation import dlrm
from veltair.zoo.recommendation.dlrm import DlrmShape
from veltair.zoo.registry import ZOO, write

TINY = DlrmShape(tables=3, rows=1000, dim=8, lookups=5, max_batch=16)


def session(source: Any) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def test_the_image_models_as_files(tmp_path: Path) -> None:
    paths = [write("mobilenet_v2", tmp_path / f"{i}.onnx", seed)[0] for i, seed in enumerate((1, 1, 2))]
    first, again, other = (path.read_bytes() for path in paths)
    assert first == again != other
    proto = onnx.load(paths[0])
    assert {p.key: p.value for p in proto.metadata_props} == {"veltair.qos_ms": "50"}
    assert [i.name for i in proto.graph.input] == ["input"] and [o.name for o in proto.graph.output] == ["logits"]


def test_dlrm_runs_at_any_batch_and_depends_on_every_input(tmp_path: Path) -> None:
    path, data = write("dlrm", tmp_path / "d.onnx", 3, TINY)
    onnx.checker.check_model(str(path), full_check=True)
    proto = onnx.load(path, load_external_data=False)
    properties = {p.key: p.value for p in proto.metadata_props}
    assert properties == {"veltair.qos_ms": "100", "veltair.max_batch": "16"}
    assert sum(math.prod(t.dims) for t in proto.graph.initializer if t.data_type == 1) == TINY.parameters
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {"dense": rng.standard_normal((16, 13)).astype(np.float32)}
    feeds |= {f"sparse_{i}": rng.integers(0, TINY.rows, (16, TINY.lookups)) for i in range(TINY.tables)}
    taken = session(str(path))
    (together,) = taken.run(None, feeds)
    assert together.shape == (16, 1) and ((together > 0) & (together < 1)).all() and together.std() > 0.02
    alone = np.concatenate([taken.run(None, {k: v[i : i + 1] for k, v in feeds.items()})[0] for i in range(16)])
    np.testing.assert_allclose(alone, together, rtol=1e-4)
    for name, value in feeds.items():
        changed = value + 1 if name == "dense" else (value + 1) % TINY.rows
        assert np.abs(taken.run(None, feeds | {name: changed})[0] - together).max() > 1e-3
    assert data.stat().st_size == 2 * -(-TINY.table_bytes // 4096) * 4096 + TINY.table_bytes


def test_dlrm_tables_lie_where_the_model_says(tmp_path: Path) -> None:
    path, data = write("dlrm", tmp_path / "d.onnx", 3, TINY)
    _, other = write("dlrm", tmp_path / "e.onnx", 4, TINY)
    again = write("dlrm", tmp_path / "d.onnx", 3, TINY)
    assert again == [path, data] and data.read_bytes() != other.read_bytes()
    tables = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer if "table" in t.name}
    spread = 1 / math.sqrt(TINY.lookups * math.sqrt(TINY.dim))
    for table in tables.values():
        assert table.shape == (TINY.rows, TINY.dim) and abs(table.std() / spread - 1) < 0.05
    assert not np.array_equal(tables["table_0"], tables["table_1"])
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            place = {e.key: e.value for e in tensor.external_data}
            assert place["location"] == data.name and int(place["offset"]) % 4096 == 0
            start = int(place["offset"])
            assert data.read_bytes()[start : start + int(place["length"])] == tables[tensor.name].tobytes()


def test_the_same_bytes_whatever_the_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[int, int]] = []
    whole = [p.read_bytes() for p in write("dlrm", tmp_path / "d.onnx", 3, TINY)]
    monkeypatch.setattr(external_tensors, "CHUNK_BYTES", 4096)
    paths = write("dlrm", tmp_path / "d.onnx", 3, TINY, lambda n, total: done.append((n, total)))
    assert [p.read_bytes() for p in paths] == whole
    assert len(done) == TINY.tables * 8 and done[-1] == (TINY.tables * TINY.table_bytes,) * 2


def test_the_shipped_dlrm_has_a_gigabyte_of_tables() -> None:
    shape = DlrmShape()
    assert shape.tables * shape.table_bytes == 1 << 30
    proto, tables = dlrm.build(0, shape, "tables")
    assert [t.dims for t in tables] == [(1 << 20, 32)] * 8
    assert ZOO["dlrm"].parameters == shape.parameters
    inputs = {i.name: [d.dim_value or d.dim_param for d in i.type.tensor_type.shape.dim] for i in proto.graph.input}
    assert inputs == {"dense": ["n", 13]} | {f"sparse_{i}": ["n", 80] for i in range(8)}


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_tensors, "CHUNK_BYTES", 4096)

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write("dlrm", tmp_path / "d.onnx", 3, TINY, stop)
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "d.onnx"
    sizes = ["--tables", "2", "--rows", "50", "--dim", "4", "--lookups", "3", "--max-batch", "2"]
    assert main(["zoo", "dlrm", "--out", str(path), "--seed", "5", *sizes, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "model": "dlrm",
        "seed": 5,
        "files": {str(p): p.stat().st_size for p in (path, external_tensors.data_path(path))},
    }
    before = path.read_bytes()
    assert main(["zoo", "dlrm", "--out", str(path), *sizes]) == 2
    assert capsys.readouterr().err == f"veltair zoo: {path}: is there already; --force overwrites it\n"
    assert path.read_bytes() == before
    assert main(["zoo", "dlrm", "--out", str(path), "--force", *sizes]) == 0
    assert str(path) in capsys.readouterr().out


def test_the_command_lists_the_zoo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[2:]}
    assert list(rows) == list(ZOO)
    assert "25,557,032" in rows["resnet50"] and "8.178" in rows["resnet50"] and "3x224x224" in rows["resnet50"]
    assert main(["zoo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bert_large"]["parameters"] == 334_094_338 and found["bert_large"]["input"] == "384 tokens"


def test_the_command_writes_here_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["zoo", "dlrm", "--tables", "1", "--rows", "10"]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dlrm.onnx", "dlrm.onnx.data"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vgg"], "no model 'vgg' in the zoo; there are resnet50, googlenet"),
        ([], "expected the NAME of the model to write: resnet50"),
        (["dlrm", "--rows", "0"], "rows must be at least 1, got 0"),
        (["dlrm", "--max-batch", "-1"], "max_batch must be at least 1"),
        (["mobilenet_v2", "--rows", "5"], "fixed shape"),
        (["mobilenet_v2", "--seed", "-1"], "seed must not be negative"),
    ],
)
def test_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(["zoo", *arguments, "--out", str(tmp_path / "m.onnx")]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_bad_places(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "m.onnx"):
        with pytest.raises(ConfigError, match="cannot be written"):
            write("dlrm", path, 0, TINY)
    with pytest.raises(ConfigError, match=r"no model 'vgg'.*resnet50"):
        registry.write("vgg", tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []

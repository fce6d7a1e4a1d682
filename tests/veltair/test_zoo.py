"""The zoo's models against what was published of them, and against ONNX Runtime."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from veltair.cli import main
from veltair.errors import ConfigError
from veltair.zoo import dlrm, models
from veltair.zoo.dlrm import DlrmShape
from veltair.zoo.models import IMAGE_MODELS, write

TINY = DlrmShape(tables=3, rows=1000, dim=8, lookups=5, max_batch=16)
STATISTICS = (".running_mean", ".running_var")


@pytest.fixture(scope="module", params=IMAGE_MODELS)
def image_model(request: pytest.FixtureRequest) -> onnx.ModelProto:
    return IMAGE_MODELS[request.param](7)


def learned(proto: onnx.ModelProto) -> int:
    tensors = [t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and t.dims]
    return sum(math.prod(t.dims) for t in tensors if not t.name.endswith(STATISTICS))


def shapes(proto: onnx.ModelProto) -> dict[str, list[int]]:
    graph = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph
    values = (*graph.value_info, *graph.input, *graph.output)
    return {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


def multiply_adds(proto: onnx.ModelProto) -> int:
    weights = {t.name: list(t.dims) for t in proto.graph.initializer}
    shape, total = shapes(proto), 0
    for node in proto.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            total += math.prod(shape[node.output[0]]) * math.prod(weights[node.input[1]][1:])
    return total


def session(source: Any) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def images(rng: np.random.Generator) -> list[NDArray[np.float32]]:
    """Noise; noise with the 1/f spectrum of photographs; the same kind, paler and tinted."""
    frequency = np.hypot(np.fft.fftfreq(224)[:, None], np.fft.fftfreq(224)) + 1 / 224
    found = [rng.standard_normal((1, 3, 224, 224)) for _ in range(3)]
    for i in (1, 2):
        found[i] = np.fft.ifft2(np.fft.fft2(found[i]) / frequency).real
    noise, photo, tinted = ((x - x.mean()) / x.std() for x in found)
    tinted = tinted / 2 + np.array([0.5, 0, -0.5])[:, None, None]
    return [x.astype(np.float32) for x in (noise, photo, tinted)]


@pytest.mark.parametrize(("name", "parameters", "macs"), [
    ("resnet50", 25_557_032, 4_089_184_256),  # torchvision: 25.6 M, 4.09 G
    ("mobilenet_v2", 3_504_872, 300_774_272),  # torchvision: 3.50 M, 0.30 G
])  # fmt: skip
def test_published_counts(name: str, parameters: int, macs: int) -> None:
    proto = IMAGE_MODELS[name](0)
    assert learned(proto) == parameters
    assert multiply_adds(proto) == macs


def test_published_shapes() -> None:
    resnet, mobile = shapes(IMAGE_MODELS["resnet50"](0)), shapes(IMAGE_MODELS["mobilenet_v2"](0))
    names = ("stem.conv", "stem.pool", "layer1.2.relu", "layer2.3.relu", "layer3.5.relu", "fc.flat")
    assert [resnet[n] for n in names] == [
        [1, 64, 112, 112], [1, 64, 56, 56], [1, 256, 56, 56], [1, 512, 28, 28], [1, 1024, 14, 14], [1, 2048]
    ]  # fmt: skip
    assert resnet["layer3.0.1.conv"] == [1, 256, 28, 28]  # v1.5: the stride is not on the 1x1
    assert resnet["layer3.0.2.conv"] == [1, 256, 14, 14]
    names = ("stem.conv", "block2.0.expand.conv", "block4.3.sum", "head.conv", "classifier.flat")
    assert [mobile[n] for n in names] == [
        [1, 32, 112, 112], [1, 96, 112, 112], [1, 64, 14, 14], [1, 1280, 7, 7], [1, 1280]
    ]  # fmt: skip


def test_activations_stay_sane_through_depth(image_model: onnx.ModelProto) -> None:
    onnx.checker.check_model(image_model, full_check=True)
    proto = onnx.ModelProto.FromString(image_model.SerializeToString())
    inner = [n.output[0] for n in proto.graph.node if n.op_type in ("BatchNormalization", "Add", "Relu", "Clip")]
    proto.graph.output.extend(onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in inner)
    taken, logits = session(proto.SerializeToString()), []
    for image in images(np.random.default_rng(0)):
        found, *activations = taken.run(None, {"input": image})
        logits.append(found[0])
        spreads = [a.std() for a in activations]
        assert min(spreads) > 0.2 and max(spreads) < 4
        assert np.isfinite(found).all() and 0.3 < found.std() < 3
        assert len(np.unique(found)) > 900
    for a, b in ((0, 1), (1, 2)):
        assert np.std(logits[a] - logits[b]) > np.std(logits[a]) / 5  # most of a logit is what all images share


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
    monkeypatch.setattr(dlrm, "CHUNK_BYTES", 4096)
    paths = write("dlrm", tmp_path / "d.onnx", 3, TINY, lambda n, total: done.append((n, total)))
    assert [p.read_bytes() for p in paths] == whole
    assert len(done) == TINY.tables * 8 and done[-1] == (TINY.tables * TINY.table_bytes,) * 2


def test_the_shipped_dlrm_has_a_gigabyte_of_tables() -> None:
    shape = DlrmShape()
    assert shape.tables * shape.table_bytes == 1 << 30
    proto = dlrm.build(0, shape, "tables")
    inputs = {i.name: [d.dim_value or d.dim_param for d in i.type.tensor_type.shape.dim] for i in proto.graph.input}
    assert inputs == {"dense": ["n", 13]} | {f"sparse_{i}": ["n", 80] for i in range(8)}


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlrm, "CHUNK_BYTES", 4096)

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
        "files": {str(p): p.stat().st_size for p in (path, dlrm.external_file(path))},
    }
    assert main(["zoo", "dlrm", "--out", str(path), *sizes]) == 0
    assert str(path) in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "words"), [
    (["dlrm", "--rows", "0"], "rows must be at least 1, got 0"),
    (["dlrm", "--max-batch", "-1"], "max_batch must be at least 1"),
    (["mobilenet_v2", "--rows", "5"], "fixed shape"),
    (["mobilenet_v2", "--seed", "-1"], "seed must not be negative"),
])  # fmt: skip
def test_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(["zoo", *arguments, "--out", str(tmp_path / "m.onnx")]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_bad_places(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "m.onnx"):
        with pytest.raises(ConfigError, match="cannot be written"):
            write("dlrm", path, 0, TINY)
    with pytest.raises(ConfigError, match=r"no model 'vgg'.*resnet50"):
        models.write("vgg", tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []

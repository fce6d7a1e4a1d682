"""Compiles small models for real: the artifact runs, agrees with ONNX Runtime, and appears whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from run_kernels import require_features

from veltair.cli import main
from veltair.compiler.build import compile_model
from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Kernel
from veltair.compiler.kernels.conv.conv2d import Conv2d
from veltair.compiler.pipeline import batch_sizes
from veltair.compiler.shared_library import ObjectFile
from veltair.compiler.timing import latency_tables
from veltair.compiler.tuning import code_versions
from veltair.errors import ArtifactError, ModelError, VeltairError
from veltair.machine.isa import ISAS, cpu_features
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import (
    KERNELS,
    MANIFEST,
    WEIGHTS,
    Artifact,
    file_digest,
    load_artifact,
    write_artifact,
)
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


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Told:
    """Runs a command in this process: its exit code, its output and what it said besides."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    return lambda *arguments: (main([str(a) for a in arguments]), *capsys.readouterr())


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Artifact]:
    """The folder, the ONNX file and the artifact of the image model."""
    folder = tmp_path_factory.mktemp("image")
    model = image_model(folder / "tiny.onnx")
    made = compile_model(model, folder / "out", trials=6, precision="fp32", store=records(folder))
    return folder, model, made


def test_the_artifact_is_complete_and_consistent(image: tuple[Path, Path, Artifact]) -> None:
    folder, model, made = image
    assert made == load_artifact(folder / "out")
    manifest = made.manifest
    assert (manifest.model, manifest.precision, manifest.batches) == ("tiny", "fp32", (1,))
    assert manifest.source_digest == file_digest(model)
    assert manifest.environment["cores"] == str(len(usable_machine().cores))
    assert manifest.levels[0] == 1.0
    layers = {layer.name: layer for layer in manifest.layers}
    assert [layers[name].op for name in ("first", "second", "third", "dense")] == ["conv2d"] * 3 + ["matmul"]
    assert layers["first"].flops == (2 * 81 * 32 * 32 * 9,)
    for layer in manifest.layers:
        assert 1 <= len(layer.versions) <= 5
        blocks = [version.block_size for version in layer.versions]
        assert blocks == sorted(blocks)
        for version in layer.versions:
            assert len(version.latency_ns[0]) == len(manifest.levels)
            assert {len(row) for row in version.latency_ns[0]} == {len(usable_machine().cores)}
    assert manifest.qos_ns > 0
    assert manifest.qos_ns % 1_000_000 == 0
    assert [entry.name for entry in folder.iterdir() if entry.name.startswith(".")] == []


def test_modelled_levels_are_labelled_and_older_manifests_still_load(
    image: tuple[Path, Path, Artifact], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, model, plain = image
    assert set(plain.manifest.level_sources) == {"measured"}
    monkeypatch.setattr(latency_tables, "distinct_levels", lambda slowdowns: [])  # as where co-runners cost nothing
    store = records(folder)
    made = compile_model(model, folder / "modelled", trials=6, precision="fp32", store=store, levels="modelled")
    levels = made.manifest.levels
    assert made.manifest.level_sources == ("measured", *["modelled"] * (len(levels) - 1))
    for layer in made.manifest.layers:
        for version in layer.versions:
            rows = np.array(version.latency_ns[0])
            assert (np.diff(rows, axis=0) >= 0).all()  # more pressure is never faster
    assert main(["inspect", str(folder / "modelled")]) == 0
    assert ("modelled" in capsys.readouterr().out) == (len(levels) > 1)

    facts = json.loads((folder / "modelled" / MANIFEST).read_text())
    del facts["level_sources"]
    (folder / "modelled" / MANIFEST).write_text(json.dumps(facts))
    assert load_artifact(folder / "modelled").manifest.level_sources == ()
    facts["level_sources"] = ["measured"] * (len(levels) + 1)
    (folder / "modelled" / MANIFEST).write_text(json.dumps(facts))
    with pytest.raises(ArtifactError, match="level_sources"):
        load_artifact(folder / "modelled")


def test_layers_of_equal_code_share_it_and_have_their_own_weights(image: tuple[Path, Path, Artifact]) -> None:
    first, second = (next(x for x in image[2].manifest.layers if x.name == name) for name in ("first", "second"))
    assert [v.symbol for v in first.versions] == [v.symbol for v in second.versions]
    assert all(a.arguments[1] != b.arguments[1] for a, b in zip(first.versions, second.versions, strict=True))


def test_weights_are_aligned_and_stand_in_the_file_once(image: tuple[Path, Path, Artifact]) -> None:
    manifest = image[2].manifest
    places = [b for b in manifest.buffers if b.kind == "weight"]
    assert all(b.offset % 64 == 0 for b in places)
    content = image[2].weights.read_bytes()
    parts = {b.offset: content[b.offset : b.offset + b.bytes_at(1)] for b in places}
    assert len(set(parts.values())) == len(parts)


def test_it_agrees_with_onnx_runtime(image: tuple[Path, Path, Artifact]) -> None:
    folder, model, made = image
    done = run(folder, "verify", folder / "out", model, "--json")
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["ok"], facts["mismatches"]) == (0, True, [])
    assert facts["layers"] == len(made.manifest.layers)
    assert facts["versions"] == sum(len(layer.versions) for layer in made.manifest.layers)
    assert 0 < facts["max_rel_err"] < 1e-4
    assert facts["cores"] == len(usable_machine().cores)


def test_pieces_of_a_whole_may_begin_anywhere(tmp_path: Path, told: Told) -> None:
    model = heads_model(tmp_path / "heads.onnx")
    made = compile_model(model, tmp_path / "out", trials=0, precision="fp32", store=records(tmp_path))
    assert any(b.kind == "arena" and b.offset % 64 for b in made.manifest.buffers)
    _, output, _ = told("verify", tmp_path / "out", model, "--json")
    facts = json.loads(output)
    assert facts["ok"], facts["mismatches"]


def test_other_weights_are_found_out(image: tuple[Path, Path, Artifact], told: Told) -> None:
    folder, _, _ = image
    other = image_model(folder / "other.onnx", seed=9)
    code, output, _ = told("verify", folder / "out", other, "--json")
    facts = json.loads(output)
    assert (code, facts["ok"]) == (1, False)
    assert facts["max_rel_err"] > 0.01
    assert any("off its reference" in text for text in facts["mismatches"])
    assert told("verify", folder / "out", other)[0] == 1


def test_one_wrong_version_is_found_out(image: tuple[Path, Path, Artifact], tmp_path: Path, told: Told) -> None:
    """A version of one layer is given the weights of another layer."""
    _, model, made = image
    manifest = made.manifest
    names = [layer.name for layer in manifest.layers]
    layers = list(manifest.layers)
    victim, donor = layers[names.index("second")], layers[names.index("first")]
    last = len(victim.versions) - 1
    swapped = list(victim.versions[last].arguments)
    swapped[1] = donor.versions[last].arguments[1]
    bad = msgspec.structs.replace(victim.versions[last], arguments=tuple(swapped))
    layers[names.index("second")] = msgspec.structs.replace(victim, versions=(*victim.versions[:last], bad))
    with write_artifact(tmp_path / "bad") as draft:
        (draft / MANIFEST).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, layers=tuple(layers))))
        for name in (KERNELS, WEIGHTS):
            (draft / name).write_bytes((made.path / name).read_bytes())
    _, output, _ = told("verify", tmp_path / "bad", model, "--json")
    facts = json.loads(output)
    assert not facts["ok"]
    assert any(text.startswith("layer second") for text in facts["mismatches"])
    assert not any(text.startswith("layer first") for text in facts["mismatches"])


def test_inspect_tells_every_version(image: tuple[Path, Path, Artifact], told: Told) -> None:
    folder, _, made = image
    facts = json.loads(run(folder, "inspect", folder / "out", "--json").stdout)
    assert facts["model"] == "tiny"
    assert facts["environment"]["cpu"] == made.manifest.environment["cpu"]
    for layer, entry in zip(facts["layers"], made.manifest.layers, strict=True):
        assert (layer["name"], layer["op"]) == (entry.name, entry.op)
        for line, version in zip(layer["versions"], entry.versions, strict=True):
            assert (line["block_size"], line["parallelism"]) == (version.block_size, version.parallelism)
            assert line["origin"] == version.origin != ""
            assert line["latency_ns"] == [[list(row) for row in rows] for rows in version.latency_ns]
    _, table, _ = told("inspect", folder / "out")
    assert all(entry.name in table for entry in made.manifest.layers)


def test_records_make_the_next_compile_search_nothing(
    image: tuple[Path, Path, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model, _ = image
    monkeypatch.setattr("veltair.compiler.tuning.search._measure", lambda *_: pytest.fail("it searches"))
    again = compile_model(
        model, tmp_path / "out", trials=6, precision="fp32", name="again", qos_ns=7, store=records(folder)
    )
    assert (again.manifest.model, again.manifest.qos_ns) == ("again", 7)


def test_a_dynamic_batch_is_timed_and_right_at_several_sizes(tmp_path: Path, told: Told) -> None:
    model = bag_model(tmp_path / "bags.onnx")
    done = run(tmp_path, "compile", model, "--out", tmp_path / "out", "--trials", 0, "--max-batch", 12, "--json")
    assert done.returncode == 0, done.stderr
    manifest = load_artifact(tmp_path / "out").manifest
    assert (manifest.max_batch, manifest.batches) == (12, (1, 2, 4, 8, 12))
    assert [(p.name, p.shape, p.low, p.high) for p in manifest.inputs] == [
        ("ids0", (-1, 5), 0, 999),
        ("ids1", (-1, 5), 0, 499),
    ]
    dense = next(layer for layer in manifest.layers if layer.op == "matmul")
    assert [flops / dense.flops[0] for flops in dense.flops] == [1, 2, 4, 8, 12]
    _, output, _ = told("verify", tmp_path / "out", model, "--json")
    facts = json.loads(output)
    assert facts["ok"], facts["mismatches"]
    assert facts["batches"] == [1, 3, 12]


@pytest.mark.parametrize("isa", ["avx512_bf16", "amx"])
def test_bf16_is_right_within_its_tolerance(isa: str, tmp_path: Path, told: Told) -> None:
    require_features(ISAS[isa], f"code for {isa}")
    model = image_model(tmp_path / "tiny.onnx")
    options = ("--isa", isa, "--precision", "bf16", "--trials", 0)
    code, _, errors = told("compile", model, "--out", tmp_path / "out", *options)
    assert code == 0, errors
    assert load_artifact(tmp_path / "out").manifest.features == tuple(sorted(ISAS[isa]))
    assert [p.stem for p in (tmp_path / "xdg").rglob("*.jsonl")] == [isa]
    _, output, _ = told("verify", tmp_path / "out", model, "--json")
    facts = json.loads(output)
    assert facts["ok"], facts["mismatches"]
    assert 1e-4 < facts["max_rel_err"] < 2e-2  # so it is bf16 indeed


@pytest.mark.parametrize("isa", ["avx2", "avx512", "amx"])
def test_an_artifact_asks_for_what_its_code_needs(isa: str, tmp_path: Path, told: Told) -> None:
    """An fp32 one made on a CPU with tiles runs on any with AVX-512, and `--isa avx2` on any with AVX2."""
    require_features(ISAS[isa], f"code for {isa}")
    model = image_model(tmp_path / "tiny.onnx")
    options = ("--isa", isa, "--precision", "fp32", "--trials", 0)
    code, _, errors = told("compile", model, "--out", tmp_path / "out", *options)
    assert code == 0, errors
    manifest = load_artifact(tmp_path / "out").manifest
    assert manifest.features == (("avx2",) if isa == "avx2" else ("avx2", "avx512"))
    assert manifest.target["mcpu"] == ("x86-64-v3" if isa == "avx2" else "x86-64-v4")
    assert [p.stem for p in (tmp_path / "xdg").rglob("*.jsonl")] == ["avx2" if isa == "avx2" else "avx512"]
    _, output, _ = told("verify", tmp_path / "out", model, "--json")
    facts = json.loads(output)
    assert facts["ok"], facts["mismatches"]


def test_a_version_with_wrong_results_is_left_out(
    image: tuple[Path, Path, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator that drops the bias at every point but one loses those points, not the layer."""
    folder, model, _ = image
    good: dict[str, Any] = {}

    class Faulty(Conv2d):
        def build(self, spec: Any, point: Any, features: Any) -> Kernel:
            kernel = super().build(spec, point, features)
            if point == good.setdefault(spec.workload, point):
                return kernel
            packed, bias = kernel.weights
            return Kernel(kernel.function, (packed, bias * 0), kernel.block_size, kernel.parallelism)

    monkeypatch.setitem(SPACES, "conv2d", Faulty())
    made = compile_model(model, tmp_path / "out", trials=6, precision="fp32", store=records(folder))
    convolutions = [layer for layer in made.manifest.layers if layer.op == "conv2d"]
    assert len(convolutions) == 3
    assert all([v.point for v in layer.versions] in [[point] for point in good.values()] for layer in convolutions)


def test_a_layer_without_a_right_version_fails_and_writes_nothing(
    image: tuple[Path, Path, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model, _ = image
    real = code_versions.Source

    def broken(function: Any, symbol: str, path: Path) -> ObjectFile:
        return real("no function" if symbol.startswith("matmul") else function, symbol, path)

    monkeypatch.setattr(code_versions, "Source", broken)
    with pytest.raises(VeltairError, match=r"layer dense .*no version is right"):
        compile_model(model, tmp_path / "out", trials=6, precision="fp32", store=records(folder))
    assert list(tmp_path.iterdir()) == []


def test_what_stands_in_the_way_is_left_alone(image: tuple[Path, Path, Artifact], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("dear")
    with pytest.raises(ArtifactError, match="left alone"):
        compile_model(image[1], tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "dear"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--trials", "-1"], "--trials: expected 0 or more"),
        (["--max-batch", "0"], "--max-batch: expected 1 or more"),
        (["--qos-ms", "0"], "--qos-ms: expected a positive number"),
        (["--qos-ms", "nan"], "--qos-ms: expected a positive number"),
        (["--isa", "avx3"], "isa: expected one of avx2, avx512, avx512_bf16, amx, found 'avx3'; this CPU has"),
        (
            ["--isa", "avx2", "--precision", "bf16"],
            "bf16 needs AVX-512-bf16 or AMX (avx512_bf16, amx_bf16), isa avx2 has",
        ),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, options: list[str], says: str, told: Told) -> None:
    code, output, errors = told("compile", "m.onnx", "--out", tmp_path / "out", *options)
    assert (code, output) == (2, "")
    assert says in errors
    assert list(tmp_path.iterdir()) == []


def test_no_onnx_no_artifact(tmp_path: Path, told: Told) -> None:
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    code, _, errors = told("compile", tmp_path / "m.onnx", "--out", tmp_path / "out")
    assert code == 2
    assert "m.onnx: not an ONNX" in errors
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.onnx"]
    with pytest.raises(ModelError):
        compile_model(tmp_path / "absent.onnx", tmp_path / "out")


def test_an_interrupt_ends_cleanly_and_keeps_the_measurements(tmp_path: Path) -> None:
    model = image_model(tmp_path / "tiny.onnx")
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path / "xdg")}
    command = [*CLI, "compile", str(model), "--out", str(tmp_path / "out"), "--precision", "fp32"]
    compiling = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    folder = tmp_path / "xdg" / "veltair" / "records"
    while compiling.poll() is None and not [p for p in folder.glob("*.jsonl") if b"\n" in p.read_bytes()]:
        pass
    compiling.send_signal(signal.SIGINT)
    _, errors = compiling.communicate(timeout=60)
    assert compiling.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["tiny.onnx", "xdg"]
    (kept,) = folder.glob("*.jsonl")
    assert kept.read_bytes().endswith(b"\n")


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (12, (1, 2, 4, 8, 12)),
        (16, (1, 2, 4, 8, 16)),
        (128, (1, 4, 16, 32, 128)),
        (100, (1, 4, 16, 32, 100)),
    ],
)
def test_batch_sizes_are_few_and_reach_the_greatest(most: int, sizes: tuple[int, ...]) -> None:
    assert batch_sizes(most) == sizes

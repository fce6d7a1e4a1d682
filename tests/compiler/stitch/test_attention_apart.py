"""Attention as two products with a stitched softmax between them gives ONNX Runtime's results."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.helper import make_node as node
from run_kernels import run_kernel
from stitch.region_case import Case, run

import veltair
from veltair.compiler.build import compile_model
from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_graph import ImportedLayers
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.sequence import AttentionParameters
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.compiler.references.layer_reference import reference_outputs
from veltair.compiler.stitch.alternatives import fused_by_tvm
from veltair.compiler.stitch.attention_apart import attention_apart
from veltair.compiler.tuning.search_plan import TVM
from veltair.compiler.verify import verify
from veltair.machine.environment import describe_environment
from veltair.machine.isa import ISAS, cpu_features
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.records.tuning_records import RecordStore, TuningRecord

Array = NDArray[np.float32]
BATCH, MOST = 3, 4
NODES = [
    node("Reshape", ["q", "tokens"], ["q1"]),
    node("Reshape", ["k", "keys"], ["k1"]),
    node("Reshape", ["v", "keys"], ["v1"]),
    node("Transpose", ["q1"], ["q2"], perm=[0, 2, 1, 3]),
    node("Transpose", ["k1"], ["k2"], perm=[0, 2, 3, 1]),
    node("Transpose", ["v1"], ["v2"], perm=[0, 2, 1, 3]),
    node("MatMul", ["q2", "k2"], ["product"]),
    node("Mul", ["product", "scale"], ["scores"]),
    node("Add", ["scores", "mask"], ["masked"]),
    node("Softmax", ["masked"], ["likely"], axis=-1),
    node("MatMul", ["likely", "v2"], ["mixed"]),
    node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
    node("Reshape", ["back", "merged"], ["y"]),
]


def case(heads: int, width: int, tokens: int, keys: int, mask: tuple[int, ...]) -> Case:
    total = heads * width
    constants = {
        "tokens": np.array([-1, tokens, heads, width]),
        "keys": np.array([-1, keys, heads, width]),
        "merged": np.array([-1, tokens, total]),
        "scale": np.array(width**-0.5, np.float32),
    }
    shapes = {"q": (-1, tokens, total), "k": (-1, keys, total), "v": (-1, keys, total), "mask": mask}
    return Case([onnx.NodeProto.FromString(n.SerializeToString()) for n in NODES], shapes, ["y"], constants)


def attention(heads: int, width: int, tokens: int, keys: int, mask: tuple[int, ...] = ()) -> LayerSpec:
    total = heads * width
    sides = zip("qkv", (tokens, keys, keys), strict=True)
    inputs = [Activation(name, "float32", (-count, total)) for name, count in sides]
    inputs += [Activation("mask", "float32", mask)] if mask else []
    places = ((0, 0), (1, 0), (2, 0))
    parameters = AttentionParameters(heads, width, tokens, keys, width**-0.5, places, bool(mask))
    y = Activation("y", "float32", (-tokens, total))
    return LayerSpec("attention", "attention", tuple(inputs), (y,), {}, 0, MOST, parameters)


def results_of(spec: LayerSpec, given: dict[str, Array]) -> Array:
    layers = ImportedLayers(attention_apart(spec), ())
    assert [layer.op for layer in layers.layers] == [
        "split_heads",
        "batched_matmul",
        "stitched",
        "batched_matmul",
        "merge_heads",
    ]
    (found,) = run(Case([], {t.name: t.shape for t in spec.inputs}, ["y"]), layers, given, BATCH)
    return np.asarray(found)


@pytest.mark.parametrize("seed", range(6))
def test_random_shapes_and_masks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    heads, width, tokens, keys = rng.integers(1, 5), rng.choice([16, 32, 48]), *rng.integers(1, 40, 2)
    extents = ((-1, 1), (heads, 1), (tokens, 1))
    mask = tuple(int(rng.choice(options)) for options in extents)
    shape = (int(heads), int(width), int(tokens), int(keys), (*mask, int(keys)))
    model = case(*shape)
    given = model.draw(BATCH, seed)
    hidden = rng.random(given["mask"].shape) < 0.3
    hidden[..., 0] = False  # ONNX Runtime gives NaN for a row without any key
    given["mask"] = np.where(hidden, rng.choice([-np.inf, -1e4, -3e38]), given["mask"]).astype(np.float32)
    (expected,) = model.expected(given, BATCH)
    rows = {name: a if name == "mask" else a.reshape(-1, a.shape[-1]) for name, a in given.items()}
    found = results_of(attention(*shape), rows)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=2e-5, atol=2e-5)


def test_a_row_without_any_key_is_zeros() -> None:
    spec = attention(2, 16, 5, 7, mask=(-1, 1, 5, 7))
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((BATCH * n, 32)).astype(np.float32) for n in (5, 7, 7)]
    mask = np.zeros((BATCH, 1, 5, 7), np.float32)
    mask[1, 0, 3] = -np.inf
    found = results_of(spec, dict(zip(("q", "k", "v", "mask"), (*rows, mask), strict=True)))
    assert not found[1 * 5 + 3].any()
    (other,) = run_kernel(spec, SPACES["attention"].points(spec, cpu_features())[0], [*rows, mask], BATCH)
    np.testing.assert_allclose(found, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("heads_first", [(True, True, False), (False, True, True)])
def test_heads_that_share_a_key(heads_first: tuple[bool, bool, bool]) -> None:
    heads, group, width, tokens, keys = 6, 3, 16, 9, 11
    inputs = []
    for name, count, of, first in zip("qkv", (tokens, keys, keys), (heads, 2, 2), heads_first, strict=True):
        inputs.append(Activation(name, "float32", (-count * of, width) if first else (-count, of * width)))
    places = ((0, 0), (1, 0), (2, 0))
    parameters = AttentionParameters(heads, width, tokens, keys, 0.2, places, False, group, heads_first)
    y = Activation("y", "float32", (-tokens, heads * width))
    spec = LayerSpec("attention", "attention", tuple(inputs), (y,), {}, 0, MOST, parameters)
    rng = np.random.default_rng(0)
    given = {t.name: rng.standard_normal(t.at(BATCH)).astype(np.float32) for t in inputs}
    expected = reference_outputs(spec, list(given.values()), BATCH)
    assert expected is not None
    np.testing.assert_allclose(results_of(spec, given), expected[0], rtol=2e-5, atol=2e-5)


def test_what_stays_in_one_kernel() -> None:
    x = Activation("x", "uint16", (-5, 96))
    parameters = AttentionParameters(2, 16, 5, 5, 0.25, ((0, 0), (0, 32), (0, 64)), False)
    y = Activation("y", "uint16", (-5, 32))
    assert attention_apart(LayerSpec("a", "attention", (x,), (y,), {}, 0, MOST, parameters)) == ()
    assert attention_apart(LayerSpec("a", "copy", (x,), (y,), {}, 0)) == ()
    windows = {"mask": np.zeros((4, 1, 5, 5), np.float32)}
    wide = [Activation(t.name, "float32", t.shape) for t in (x, y)]
    assert attention_apart(LayerSpec("a", "attention", (wide[0],), (wide[1],), windows, 0, MOST, parameters)) == ()


def test_a_model_is_served_in_the_way_whose_records_are_faster(tmp_path: Path) -> None:
    model = case(2, 16, 5, 7, (-1, 1, 1, 7))
    path = tmp_path / "model.onnx"
    proto = model.model()
    for port in (*proto.graph.input, *proto.graph.output):
        port.type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(proto, path)
    (whole,) = (layer for layer in lower(load_model(path, MOST), "fp32").layers if layer.op == "attention")
    used = cpu_features() & ISAS["avx512"]
    store = RecordStore(used, user=tmp_path / "records", shipped=tmp_path / "none")
    steps = attention_apart(whole)
    slow = [layer for step in steps for layer in fused_by_tvm(step)]  # an alternative of the softmax alone
    for layer, ns in ((whole, 9000), *((layer, 1000) for layer in steps), *((layer, 9000) for layer in slow)):
        point, cpu = SPACES[layer.op].points(layer, used)[0], describe_environment().cpu
        store.append(TuningRecord(layer.workload, 2, point, (ns,), 1, 1, tuple(sorted(used)), cpu, TVM))
    folder = tmp_path / "model"
    compile_model(path, folder, precision="fp32", trials=1, max_batch=MOST, store=store)
    artifact = load_artifact(folder)
    ops = [layer.op for layer in artifact.manifest.layers]
    assert "attention" not in ops
    assert ops.count("batched_matmul") == 2
    assert verify(artifact, path).ok  # layer by layer
    with veltair.load(folder) as served:
        for batch in (1, BATCH):
            given = model.draw(batch)
            (expected,) = model.expected(given, batch)
            np.testing.assert_allclose(served(given)["y"], expected, rtol=2e-5, atol=2e-5)

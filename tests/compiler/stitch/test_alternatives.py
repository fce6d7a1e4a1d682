"""Every way to compute a layer gives ONNX Runtime's results, at batches that no setting divides."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.helper import make_node as node
from stitch.region_case import Case, run

import veltair
from veltair.compiler.build import compile_model
from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_graph import ImportedLayers
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.sequence import LayerNormParameters
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.compiler.references.layer_reference import pack_activation, reference_outputs
from veltair.compiler.stitch.alternatives import ALTERNATIVES, apart, fused_by_tvm, stitched
from veltair.compiler.tuning.search_plan import TVM
from veltair.compiler.verify import verify
from veltair.machine.environment import describe_environment
from veltair.machine.isa import ISAS, cpu_features
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.records.tuning_records import RecordStore, TuningRecord

PACKED = Case(
    [
        node("Softmax", ["x"], ["s"], axis=-1),
        node("ReduceSum", ["z", "axes"], ["m"], keepdims=0),
        node("Gelu", ["w"], ["g"]),
        node("Greater", ["w", "v"], ["more"]),
        node("Where", ["more", "w", "v"], ["most"]),
        node("Expand", ["r", "wide"], ["e"]),
    ],
    {"x": (-1, 12, 40), "z": (-1, 7, 5), "w": (-1, 33), "v": (-1, 33), "r": (-1, 3, 1)},
    ["s", "m", "g", "most", "e"],
    {"axes": np.array([1]), "wide": np.array([1, 3, 6])},
)
BATCH, MOST = 3, 4


def outputs_of(case: Case, layers: tuple[LayerSpec, ...], place: int = 0) -> dict[str, NDArray[Any]]:
    names = [tensor.name for layer in layers for tensor in layer.outputs if tensor.name in case.outputs]
    part = Case(case.nodes, case.inputs, names, case.constants, case.dtypes)
    given = case.draw(BATCH)
    return dict(zip(names, run(part, ImportedLayers(layers, ()), given, BATCH, place), strict=True))


def assert_expected(found: dict[str, NDArray[Any]]) -> None:
    expected = dict(zip(PACKED.outputs, PACKED.expected(PACKED.draw(BATCH), BATCH), strict=True))
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=2e-5, atol=2e-5)


@pytest.fixture(scope="module")
def packed() -> LayerSpec:
    (layer,) = PACKED.region(MOST).layers
    return layer


@pytest.mark.parametrize("slices", [1, 4])
def test_slices_of_packed_programs(packed: LayerSpec, slices: int) -> None:
    points = SPACES["stitched"].points(packed, cpu_features())
    places = [place for place, point in enumerate(points) if point.get("slices") == slices]
    assert len(places) > 2  # each program with its best setting, and with the next
    for place in places[:2]:
        assert_expected(outputs_of(PACKED, (packed,), place))


def test_programs_apart(packed: LayerSpec) -> None:
    layers = apart(packed)
    assert [layer.outputs for layer in layers] == [(tensor,) for tensor in packed.outputs]
    assert not any(apart(layer) for layer in layers)
    found = outputs_of(PACKED, layers)
    assert found.keys() == set(PACKED.outputs)
    assert_expected(found)


def test_fusion_by_tvm(packed: LayerSpec) -> None:
    ways = [fused_by_tvm(layer) for layer in apart(packed)]
    assert fused_by_tvm(packed) == ()  # it never packs
    assert sum(map(bool, ways)) >= 4  # all but the sum whose axis is dropped, which is a view
    for layers in filter(None, ways):
        assert {layer.op for layer in layers} == {"generic"}
        assert_expected(outputs_of(PACKED, layers))


def test_renamed_results_are_those_of_their_places(packed: LayerSpec) -> None:
    """A graph renames tensors after their import: what a program calls `s` may be the tensor `s/view`."""
    rows = PACKED.draw(BATCH)
    inputs = [rows[tensor.name] for tensor in packed.inputs]
    tensors = tuple(Activation(f"{t.name}/view", t.dtype, t.shape) for t in packed.outputs)
    renamed = LayerSpec(
        packed.name, packed.op, packed.inputs, tensors, packed.weights, 0, packed.max_batch, packed.parameters
    )
    for spec in (renamed, *apart(renamed)):
        found = reference_outputs(spec, [rows[tensor.name] for tensor in spec.inputs], BATCH)
        assert found is not None
        for tensor, values in zip(spec.outputs, found, strict=True):
            wanted = reference_outputs(packed, inputs, BATCH)
            assert wanted is not None
            np.testing.assert_array_equal(values, wanted[tensors.index(tensor)])


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("uint16", "uint16"), ("float32", "uint16")])
def test_a_stitched_layer_norm_is_the_anchors(dtypes: tuple[str, str]) -> None:
    rng = np.random.default_rng(0)
    x, y = (Activation(name, dtype, (-5, 37)) for name, dtype in zip("xy", dtypes, strict=True))
    weights = {name: rng.standard_normal(37).astype(np.float32) for name in ("scale", "shift")}
    anchor = LayerSpec("norm", "layer_norm", (x,), (y,), weights, 0, MOST, LayerNormParameters(1e-5))
    (other,) = stitched(anchor)
    rows = pack_activation(x, rng.standard_normal((5 * BATCH, 37)).astype(np.float32))
    case = Case([], {"x": (-5, 37)}, ["y"])
    found = [run(case, ImportedLayers((layer,), ()), {"x": rows}, BATCH)[0] for layer in (anchor, other)]
    expected = reference_outputs(anchor, [rows], BATCH)
    assert expected is not None
    assert found[1].dtype == y.dtype
    for values in found:
        if y.dtype == "uint16":
            assert np.abs(values.astype(int) - expected[0].astype(int)).max() <= 1  # neighbours
        else:
            np.testing.assert_allclose(values, expected[0], rtol=2e-5, atol=2e-5)
    assert (fused_by_tvm(other) == ()) == ("uint16" in dtypes)


def test_other_layers_have_no_alternatives() -> None:
    x = Activation("x", "float32", (-1, 8))
    layer = LayerSpec("copy", "copy", (x,), (x,), {}, 0)
    assert not any(alternative.make(layer) for alternative in ALTERNATIVES.values())


def test_a_model_is_served_in_the_way_whose_records_are_faster(tmp_path: Path) -> None:
    """From an ONNX file to answers: the packed layer gives way to kernels apart, one of them TVM's."""
    case = Case([node("Softmax", ["x"], ["s"]), node("Exp", ["z"], ["e"])], {"x": (-1, 24), "z": (-1, 7)}, ["s", "e"])
    path = tmp_path / "model.onnx"
    model = case.model()
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(model, path)
    (together,) = lower(load_model(path, 3), "fp32").layers
    exponent, softmax = sorted(apart(together), key=lambda layer: layer.outputs[0].name)
    used = cpu_features() & ISAS["avx512"]
    store = RecordStore(used, user=tmp_path / "records", shipped=tmp_path / "none")
    times = [(together, 9000), (softmax, 3000), (exponent, 4000)]
    times += [*((layer, 5000) for layer in fused_by_tvm(softmax)), *((layer, 100) for layer in fused_by_tvm(exponent))]
    for layer, ns in times:
        point, cpu = SPACES[layer.op].points(layer, used)[0], describe_environment().cpu
        store.append(TuningRecord(layer.workload, 2, point, (ns,), 1, 1, tuple(sorted(used)), cpu, TVM))
    folder = tmp_path / "model"
    compile_model(path, folder, precision="fp32", trials=1, max_batch=3, store=store)
    artifact = load_artifact(folder)
    assert sorted(layer.op for layer in artifact.manifest.layers) == ["generic", "stitched"]
    assert verify(artifact, path).ok  # layer by layer
    with veltair.load(folder) as served:
        for batch in (1, 3):
            given = case.draw(batch)
            for name, expected in zip(case.outputs, case.expected(given, batch), strict=True):
                np.testing.assert_allclose(served(given)[name], expected, rtol=2e-5, atol=2e-5)

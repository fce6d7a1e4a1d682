"""Layers as the paper counts them."""

from __future__ import annotations

import pytest
from scheduler_builders import make_profile
from small_models import small_machine, small_model

from veltair.simulation.machine_model.execution_rate import ExecutionRate
from veltair.simulation.machine_model.folded_layers import FoldedLayer, fold_layers, fold_profile
from veltair.simulation.machine_model.layer_shapes import LayerShape, ModelShape, load_model_shape
from veltair.types import ModelProfile

STREAM = LayerShape("pool", "pool2d", flops=10, inputs=1, weights=0, outputs=1)
CONV = LayerShape("conv", "conv2d", flops=100, inputs=1, weights=1, outputs=1, m=1, n=1, k=1)
NET = ModelShape("m", "", (STREAM, CONV, STREAM, STREAM, CONV))


@pytest.fixture
def profile() -> ModelProfile:
    """NET on two cores: the pools' second version is the quicker one over both counts, convolutions have two."""
    pool, conv = [[[9, 9]], [[8, 3]]], [[[40, 20]], [[44, 18]]]
    return make_profile([pool, conv, pool, [[[5, 5]]], conv], flops=(10, 100, 10, 10, 100), nbytes=64)


def test_memory_bound_operators_belong_to_the_product_before_them(profile: ModelProfile) -> None:
    assert fold_layers(NET, profile) == (
        FoldedLayer(0, 4, main=1, versions=(1, 0, 1, 0)),  # what comes before the first product belongs to that
        FoldedLayer(4, 5, main=4, versions=(0,)),
    )


def test_a_folded_layer_takes_and_does_what_its_operators_do(profile: ModelProfile) -> None:
    folded = fold_profile(profile, fold_layers(NET, profile))
    assert [(layer.index, layer.op, layer.flops, layer.bytes) for layer in folded.layers] == [
        (0, "generic", 130, 256),
        (1, "generic", 100, 64),
    ]
    # 8 + 40 + 8 + 5 on one core, 3 + 20 + 3 + 5 on two; the versions are the convolution's
    assert [[v.latency.latency_ns for v in versions] for versions in folded.versions] == [
        [((61, 31),), ((65, 29),)],
        [((40, 20),), ((44, 18),)],
    ]
    assert [[(v.layer, v.index) for v in versions] for versions in folded.versions] == [
        [(0, 0), (0, 1)],
        [(1, 0), (1, 1)],
    ]


@pytest.mark.parametrize(
    ("model", "operators", "layers"),
    [
        ("resnet50", 57, 54),  # 53 convolutions and a product; the paper counts 55 (section 3.2)
        ("mobilenet_v2", 55, 53),  # depthwise convolutions are convolutions
        ("tiny_yolov2", 17, 9),
        ("bert_large", 174, 121),
    ],
)
def test_the_papers_models(model: str, operators: int, layers: int) -> None:
    shape = load_model_shape(model)
    one_version = make_profile([[[[1]]]] * len(shape.layers))
    folded = fold_layers(shape, one_version)
    assert (len(shape.layers), len(folded)) == (operators, layers)
    assert [layer.start for layer in folded] == [0, *(layer.stop for layer in folded[:-1])]
    assert folded[-1].stop == operators


def test_the_machine_runs_the_operators_and_reports_the_layers() -> None:
    machine = small_machine()
    work = small_model(machine, "csksc").work
    folded = (FoldedLayer(0, 2, 0, (0, 1)), FoldedLayer(2, 4, 2, (0, 0)), FoldedLayer(4, 5, 4, (0,)))
    whole = ExecutionRate(work, machine).segment(0, (1, 1, 0, 0, 1), 4, 1)
    segment = ExecutionRate(work, machine, folded).segment(0, (1, 0, 1), 4, 1)
    for pressures in ((0, 0), (5, 3)):
        ends = whole.timeline(*pressures)
        assert segment.timeline(*pressures) == [0.0, ends[2], ends[4], ends[5]]
    assert segment.demand(0) == whole.demand(0)
    part = ExecutionRate(work, machine, folded).segment(1, (0, 1), 4, 1)
    assert len(part.timeline(0, 0)) == 3

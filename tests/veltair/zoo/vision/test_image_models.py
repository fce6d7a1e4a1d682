"""The zoo's image models against what was published of them, and run by ONNX Runtime."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from veltair.zoo import moments
from veltair.zoo.moments import TensorMoments
from veltair.zoo.registry import ZOO

STATISTICS = (".running_mean", ".running_var")
# Parameters, and GFLOPs of one image in the digits that were published.
PUBLISHED = {
    "resnet50": (25_557_032, "4.09"),  # torchvision, which counts a multiply-add as one, as all of its do
    "googlenet": (6_624_904, "1.50"),  # torchvision
    "efficientnet_b0": (5_288_548, "0.39"),  # torchvision
    "mobilenet_v2": (3_504_872, "0.30"),  # torchvision
    "ssd300": (35_641_826, "34.858"),  # torchvision
    "ssd_mobilenet": (6_819_839, "2.47"),  # MLPerf: 2.47 GOPS; Howard et al. 2017, table 13: 6.8 M parameters
    # darknet: 6.97 BFLOPs; its file of weights has 63,471,556 bytes: 16 of header and 4 for each of these, and for
    # each of the 6112 running statistics
    "tiny_yolov2": ((63_471_556 - 16) // 4 - 6112, "6.97"),
}
COUNTED_TWICE = ("ssd_mobilenet", "tiny_yolov2")
SHAPES = {
    "resnet50": {
        "stem.conv": [1, 64, 112, 112],
        "stem.pool": [1, 64, 56, 56],
        "layer1.2.relu": [1, 256, 56, 56],
        "layer2.3.relu": [1, 512, 28, 28],
        "layer3.5.relu": [1, 1024, 14, 14],
        "fc.flat": [1, 2048],
        # v1.5: the stride is not on the 1x1
        "layer3.0.1.conv": [1, 256, 28, 28],
        "layer3.0.2.conv": [1, 256, 14, 14],
    },
    "googlenet": {  # Szegedy et al. 2014, table 1
        "conv1.conv": [1, 64, 112, 112],
        "pool1": [1, 64, 56, 56],
        "pool2": [1, 192, 28, 28],
        "inception3a": [1, 256, 28, 28],
        "inception3b": [1, 480, 28, 28],
        "inception4a": [1, 512, 14, 14],
        "inception4d": [1, 528, 14, 14],
        "inception4e": [1, 832, 14, 14],
        "inception5b": [1, 1024, 7, 7],
    },
    "efficientnet_b0": {  # Tan and Le 2019, table 1
        "stem.conv": [1, 32, 112, 112],
        "block1.0.project.norm": [1, 16, 112, 112],
        "block2.1.sum": [1, 24, 56, 56],
        "block3.1.sum": [1, 40, 28, 28],
        "block4.2.sum": [1, 80, 14, 14],
        "block5.2.sum": [1, 112, 14, 14],
        "block6.3.sum": [1, 192, 7, 7],
        "block6.0.se.squeeze": [1, 28, 1, 1],
        "head.conv": [1, 1280, 7, 7],
    },
    "mobilenet_v2": {
        "stem.conv": [1, 32, 112, 112],
        "block2.0.expand.conv": [1, 96, 112, 112],
        "block4.3.sum": [1, 64, 14, 14],
        "head.conv": [1, 1280, 7, 7],
        "classifier.flat": [1, 1280],
    },
    "ssd300": {  # Liu et al. 2015, figure 2
        "conv4_norm": [1, 512, 38, 38],
        "fc6": [1, 1024, 19, 19],
        "fc7": [1, 1024, 19, 19],
        "conv8_2": [1, 512, 10, 10],
        "conv9_2": [1, 256, 5, 5],
        "conv10_2": [1, 256, 3, 3],
        "conv11_2": [1, 256, 1, 1],
        "boxes": [1, 8732, 4],
        "scores": [1, 8732, 91],
    },
    "ssd_mobilenet": {
        "conv0.conv": [1, 32, 150, 150],
        "conv11.pointwise.clip": [1, 512, 19, 19],
        "conv13.pointwise.clip": [1, 1024, 10, 10],
        "conv14.2.clip": [1, 512, 5, 5],
        "conv17.2.clip": [1, 128, 1, 1],
        "boxes": [1, 1917, 4],
        "scores": [1, 1917, 91],
    },
    "tiny_yolov2": {
        "pool1": [1, 16, 208, 208],
        "pool5": [1, 256, 13, 13],
        "pool6": [1, 512, 13, 13],
        "conv8.conv": [1, 1024, 13, 13],
        "grid": [1, 125, 13, 13],
    },
}
IMAGE_MODELS = [name for name, model in ZOO.items() if callable(model.definition) and model.input.startswith("3x")]
# Two images' outputs differ by at least this share of an output's deviation: most of a logit is what all share.
DIFFERENCE = {"resnet50": 0.2, "mobilenet_v2": 0.2, "googlenet": 0.3, "efficientnet_b0": 0.2}


@pytest.fixture(scope="module", params=IMAGE_MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def proto(name: str) -> onnx.ModelProto:
    build = ZOO[name].definition
    assert callable(build)
    return build(7)


def test_published_counts_and_shapes(name: str, proto: onnx.ModelProto) -> None:
    onnx.checker.check_model(proto, full_check=True)
    graph = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True).graph
    values = (*graph.value_info, *graph.input, *graph.output)
    shape = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    floats = {t.name: list(t.dims) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT and t.dims}
    learned = sum(math.prod(dims) for tensor, dims in floats.items() if not tensor.endswith(STATISTICS))
    multiply_adds = sum(
        math.prod(shape[node.output[0]]) * math.prod(floats[node.input[1]][1:])
        for node in graph.node
        if node.op_type in ("Conv", "Gemm")
    )
    parameters, gflops = PUBLISHED[name]
    assert learned == parameters
    flops = multiply_adds * (2 if name in COUNTED_TWICE else 1)
    assert f"{flops / 1e9:.{len(gflops.partition('.')[2])}f}" == gflops
    assert ZOO[name].parameters == learned and ZOO[name].gflops == round(2 * multiply_adds / 1e9, 3)
    assert {tensor: shape[tensor] for tensor in SHAPES[name]} == SHAPES[name]
    assert ZOO[name].input == "x".join(str(d) for d in shape["input"][1:])


def images(rng: np.random.Generator, size: int) -> list[NDArray[np.float32]]:
    """Noise; noise with the 1/f spectrum of photographs; the same kind, paler and tinted."""
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.fftfreq(size)) + 1 / size
    found = [rng.standard_normal((1, 3, size, size)) for _ in range(3)]
    for i in (1, 2):
        found[i] = np.fft.ifft2(np.fft.fft2(found[i]) / frequency).real
    noise, photo, tinted = ((x - x.mean()) / x.std() for x in found)
    tinted = tinted / 2 + np.array([0.5, 0, -0.5])[:, None, None]
    return [x.astype(np.float32) for x in (noise, photo, tinted)]


def test_activations_stay_sane_through_depth(name: str, proto: onnx.ModelProto) -> None:
    known = [o.name for o in proto.graph.output]
    watched = ("BatchNormalization", "Add", "Relu", "LeakyRelu", "Clip", "MaxPool")
    inner = [n.output[0] for n in proto.graph.node if n.op_type in watched and "clipped" not in n.output[0]]
    extended = onnx.ModelProto.FromString(proto.SerializeToString())
    extended.graph.output.extend(onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in inner)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(extended.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs = []
    for image in images(np.random.default_rng(0), proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value):
        found = session.run(None, {"input": image})
        outputs.append(found[: len(known)])
        spreads = [a.std() for a in found[len(known) :]]
        assert min(spreads) > 0.15 and max(spreads) < 5
        for output, values in zip(known, outputs[-1], strict=True):
            assert np.isfinite(values).all() and len(np.unique(values)) > 0.9 * values.size
            if output != "scores":
                assert 0.2 < values.std() < 3
            elif name == "ssd300":
                np.testing.assert_allclose(values.sum(axis=-1), 1, rtol=1e-5)
                assert 0.1 < values.max(axis=-1).mean() < 0.5
            else:
                assert 0.2 < values.std() < 0.4 and values.min() >= 0 and values.max() <= 1
    for a, b in ((0, 1), (1, 2)):
        for one, other in zip(outputs[a], outputs[b], strict=True):
            assert np.std(one - other) > DIFFERENCE.get(name, 0.9) * np.std(one)


def test_moments_are_those_of_samples() -> None:
    """In closed form and by quadrature against two hundred thousand draws for each of three channels."""
    rng = np.random.default_rng(0)
    x = TensorMoments("x", np.array([-0.7, 0.0, 1.2]), np.array([0.5, 1.0, 2.0]))
    y = TensorMoments("y", np.array([1.0, -2.0, 0.3]), np.array([0.1, 0.4, 1.5]))

    def draw(value: TensorMoments, *more: int) -> NDArray[np.float64]:
        return value.mean + np.sqrt(value.var) * rng.standard_normal((*more, 200_000, value.channels))

    def holds(found: TensorMoments, samples: NDArray[np.float64]) -> None:
        np.testing.assert_allclose(found.mean, samples.mean(axis=0), atol=0.02)
        np.testing.assert_allclose(found.var, samples.var(axis=0), rtol=0.02, atol=0.01)

    samples = draw(x)
    holds(moments.relu_moments(x, "r"), np.maximum(samples, 0))
    holds(moments.leaky_relu_moments(x, "l", 0.1), np.where(samples > 0, samples, 0.1 * samples))
    holds(moments.silu_moments(x, "s"), samples / (1 + np.exp(-samples)))
    holds(moments.sigmoid_moments(x, "g"), 1 / (1 + np.exp(-samples)))
    holds(moments.product_moments(x, y, "p"), samples * draw(y))
    holds(moments.max_moments(moments.relu_moments(x, "r"), "m", 9), np.maximum(draw(x, 9), 0).max(axis=0))

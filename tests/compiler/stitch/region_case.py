"""ONNX regions through the stitcher and its kernels, next to ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import run_kernels
from numpy.typing import NDArray

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_graph import ImportedLayers
from veltair.compiler.stitch.regions import import_region
from veltair.compiler.tuning.correctness import HUGE
from veltair.machine.isa import cpu_features
from veltair.types import TensorSpec

Array = NDArray[Any]
Shapes = Mapping[str, Sequence[int]]


class Case:
    """A model of some nodes. A dimension given as -k is k times the batch."""

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Shapes,
        outputs: Sequence[str],
        constants: Mapping[str, Array] | None = None,
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        for i, node in enumerate(nodes):
            node.name = f"n{i}"
        self.nodes, self.inputs, self.outputs = list(nodes), inputs, list(outputs)
        self.constants, self.dtypes = constants or {}, dtypes or {}

    def region(self, max_batch: int = 1) -> ImportedLayers:
        return import_region(self.nodes, self._values(), self.constants, list(self.inputs), self.outputs, max_batch, 20)

    def model(self, batch: int = 1) -> onnx.ModelProto:
        def info(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
            kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(self.dtypes.get(name, "float32")))
            return onnx.helper.make_tensor_value_info(name, kind, [-d * batch if d < 0 else d for d in shape])

        graph = onnx.helper.make_graph(
            self.nodes,
            "region",
            [info(name, shape) for name, shape in self.inputs.items()],
            [onnx.ValueInfoProto(name=name) for name in self.outputs],
            [onnx.numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)

    def _values(self) -> dict[str, TensorSpec]:
        """Shapes at two batch sizes tell which dimensions depend on it."""
        once, twice = ({v.name: v for v in _infos(self.model(batch))} for batch in (1, 2))
        found = {}
        for name, value in once.items():
            dims = zip(*(_dims(side[name]) for side in (once, twice)), strict=True)
            dtype = str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
            found[name] = TensorSpec(name, dtype, tuple(a if a == b else -a for a, b in dims))
        return found | {n: TensorSpec(n, str(a.dtype), a.shape) for n, a in self.constants.items()}

    def draw(self, batch: int = 1, seed: int = 0) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        given = {}
        for name, shape in self.inputs.items():
            dtype = self.dtypes.get(name, "float32")
            values = rng.standard_normal([-d * batch if d < 0 else d for d in shape])
            given[name] = (values > 0 if dtype == "bool" else values * (100 if "int" in dtype else 1)).astype(dtype)
        return given

    def expected(self, given: Mapping[str, Array], batch: int = 1) -> list[Array]:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        session = ort.InferenceSession(
            self.model(batch).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results: list[Array] = session.run(self.outputs, dict(given))
        return results


def run(
    case: Case, region: ImportedLayers, given: Mapping[str, Array], batch: int = 1, place: int = 0, mcpu: str = ""
) -> list[Array]:
    """The region's outputs, each stitched layer at one place of its space."""
    known = dict(given)
    bases = {view.name: (view.shape, base) for view, base in region.views}

    def value(name: str) -> Array:
        if name not in known:
            shape, base = bases[name]
            known[name] = value(base).reshape([-d * batch if d < 0 else d for d in shape])
        return known[name]

    for layer in region.layers:
        features = run_kernels.OLDER_CPUS.get(mcpu, cpu_features())
        points = SPACES[layer.op].points(layer, features)
        outputs = run_kernels.run_kernel(
            layer, points[place % len(points)], [value(t.name) for t in layer.inputs], batch, mcpu
        )
        known |= {t.name: array for t, array in zip(layer.outputs, outputs, strict=True)}
    return [value(name) for name in case.outputs]


def assert_right(case: Case, batch: int = 1, max_batch: int = 1, place: int = 0, mcpu: str = "") -> ImportedLayers:
    region = case.region(max_batch)
    given = case.draw(batch)
    for found, expected in zip(run(case, region, given, batch, place, mcpu), case.expected(given, batch), strict=True):
        size = np.abs(expected)[np.abs(expected) < HUGE].max(initial=1.0)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * float(size))
    return region


def _infos(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [*model.graph.value_info, *model.graph.input, *model.graph.output]


def _dims(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]

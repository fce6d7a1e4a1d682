"""Stitched kernels beside TVM's own schedules.

    python -m bench.kernels.stitching [--json FILE]

Each subgraph is compiled in three ways: stitched (the best of the points that the latency evaluator ranks first); by
TVM's importer with its fusion and the compiler's plain schedule for operators without a kernel, and with dlight's CPU
rules. All are built first, then timed in turn in this process; the medians and their ratios are printed and written as
JSON with the environment. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import numpy as np
import onnx
import tvm
import tvm_ffi
from onnx import helper
from tvm.s_tir import dlight

from bench.paths import RESULTS, result_path
from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.generic import GenericParameters
from veltair.compiler.kernels.generic.generic import schedule
from veltair.compiler.kernels.generic.relax_layers import import_layers
from veltair.compiler.stitch import regions as stitch
from veltair.machine.environment import describe_environment
from veltair.machine.isa import cpu_features, tvm_target
from veltair.machine.topology import usable_machine
from veltair.profiles.runtime.executor import aligned_copy, aligned_zeros
from veltair.types import TensorSpec

THREADS = 2
TRIED = 6  # points of the stitched space that are measured
ROUNDS = 15
BAR = 2.0
ONE_LOOP = {"bias + residual + ReLU"}  # TVM makes one loop of it as well, bound by memory: the bar does not apply


def scalar(value: float) -> Any:
    return np.array(value, np.float32)


def ones(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


ATTENTION, HIDDEN, WIDE, PLANE, SQUEEZED = (12, 384, 384), (384, 768), (384, 3072), (1, 256, 56, 56), (1, 96, 112, 112)


class Subgraph(NamedTuple):
    """Operators from the inputs by name to the output `y`."""

    nodes: list[onnx.NodeProto]
    inputs: dict[str, tuple[int, ...]]
    constants: dict[str, Any]


def chain(*steps: str) -> list[onnx.NodeProto]:
    """Nodes written as `Op input… -> output`; softmax and layer norm are over the last axis."""
    nodes = []
    for step in steps:
        (op, *inputs), output = step.partition(" -> ")[0].split(), step.partition(" -> ")[2]
        last_axis = {"axis": -1} if op in ("Softmax", "LayerNormalization") else {}
        nodes.append(helper.make_node(op, inputs, [output], **last_axis))
    return nodes


SUBGRAPHS: Mapping[str, Subgraph] = {
    "softmax 256x512": Subgraph(chain("Softmax x -> y"), {"x": (256, 512)}, {}),
    "masked softmax, BERT": Subgraph(
        chain("Mul x scale -> s", "Add s mask -> m", "Softmax m -> y"),
        {"x": ATTENTION, "mask": (1, 1, 384)},
        {"scale": scalar(0.125)},
    ),
    "residual + layer norm, BERT": Subgraph(
        chain("Add x r -> a", "LayerNormalization a g b -> y"),
        {"x": HIDDEN, "r": HIDDEN},
        {"g": ones(768), "b": ones(768)},
    ),
    "bias + GELU, BERT": Subgraph(
        chain("Add x bias -> a", "Div a root -> d", "Erf d -> e", "Add e one -> p", "Mul a p -> q", "Mul q half -> y"),
        {"x": WIDE},
        {"bias": ones(3072), "root": scalar(2**0.5), "one": scalar(1), "half": scalar(0.5)},
    ),
    "squeeze, EfficientNet": Subgraph(chain("GlobalAveragePool x -> y"), {"x": SQUEEZED}, {}),
    "swish + squeeze": Subgraph(
        chain("Sigmoid x -> s", "Mul x s -> w", "GlobalAveragePool w -> y"), {"x": SQUEEZED}, {}
    ),
    "excite: sigmoid gate of channels": Subgraph(
        chain("Sigmoid s -> g", "Mul x g -> y"), {"x": (1, 240, 28, 28), "s": (1, 240, 1, 1)}, {}
    ),
    "bias + residual + ReLU": Subgraph(
        chain("Add x b -> a", "Add a r -> s", "Relu s -> y"),
        {"x": PLANE, "r": PLANE},
        {"b": ones(256, 1, 1)},
    ),
}


class CompiledSubgraph:
    """A subgraph compiled in one way: its layers in order over shared arrays."""

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        views: Mapping[str, str],
        functions: Sequence[Any],
        weights: Sequence[Sequence[Any]],
        arrays: dict[str, Any],
    ) -> None:
        self.calls = []
        names = [f"f{i}" for i in range(len(layers))]
        module = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in zip(names, functions, strict=True)})
        library = tvm.compile(module, target=tvm.target.Target(tvm_target()))
        self.outputs: dict[str, Any] = {}
        for name, layer, packed in zip(names, layers, weights, strict=True):
            for tensor in layer.outputs:
                self.outputs[tensor.name] = aligned_zeros(tensor.shape, tensor.dtype)
            known = arrays | self.outputs
            inputs = [known[views.get(t.name, t.name)].reshape(t.shape) for t in layer.inputs]
            operands = [*inputs, *(aligned_copy(w) for w in packed), *(self.outputs[t.name] for t in layer.outputs)]
            self.calls.append((library[name], [tvm_ffi.from_dlpack(a) for a in operands]))

    def __call__(self) -> None:
        for function, operands in self.calls:
            function(*operands)


def compile_ways(name: str) -> dict[str, list[CompiledSubgraph]]:
    """Compiles a subgraph in the three ways, the stitched one at several points, and checks that all agree."""
    nodes, inputs, constants = SUBGRAPHS[name]
    for i, n in enumerate(nodes):
        n.name = f"n{i}"
    info = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in inputs.items()]
    stored = [onnx.numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", info, [onnx.ValueInfoProto(name="y")], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    values = {n: TensorSpec(n, str(a.dtype), a.shape) for n, a in constants.items()}
    for value in (*inferred.value_info, *inferred.input, *inferred.output):
        shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        values[value.name] = TensorSpec(value.name, "float32", shape)
    rng = np.random.default_rng(0)
    arrays = {n: aligned_copy(rng.standard_normal(s).astype(np.float32)) for n, s in inputs.items()}
    found: dict[str, list[CompiledSubgraph]] = {}
    region = stitch.import_region(nodes, values, constants, list(inputs), ["y"], 1)
    views = {view.name: base for view, base in region.views}
    (layer,) = region.layers  # one kernel is the point of it
    space, features = SPACES["stitched"], cpu_features()
    kernels = [space.build(layer, point, features) for point in space.points(layer, features)[:TRIED]]
    found["stitched"] = [CompiledSubgraph([layer], views, [k.function], [k.weights], arrays) for k in kernels]
    region = import_layers(nodes, values, constants, list(inputs), ["y"], 1)
    views = {view.name: base for view, base in region.views}
    weights = [tuple(layer.weights.values()) for layer in region.layers]
    functions = [layer.parameters_as(GenericParameters).tir for layer in region.layers]
    plain = [schedule(f) for f in functions]
    found["plain"] = [CompiledSubgraph(region.layers, views, plain, weights, arrays)]
    rules = [dlight.cpu.GEMV(), dlight.cpu.Reduction()]
    target = tvm.target.Target(tvm_target())
    with target:
        ruled = [dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": f}))["main"] for f in functions]
        ruled = [r if r.attrs.get("tirx.is_scheduled") else schedule(f) for r, f in zip(ruled, functions, strict=True)]
    found["dlight"] = [CompiledSubgraph(region.layers, views, ruled, weights, arrays)]
    for kind in ("stitched", "dlight", "plain"):
        for way in found[kind]:
            way()
    expected = found["plain"][0].outputs["y"]
    for kind in ("stitched", "dlight"):
        for way in found[kind]:
            error = np.abs(way.outputs["y"] - expected).max() / np.abs(expected).max()
            if not error < 1e-4:
                raise SystemExit(f"{name}: {kind} is off by {error:.2g}")
    return found


def times_us(calls: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """Medians of the calls, which run in turn."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, into in zip(calls, taken, strict=True):
            call()  # its own data in the caches that hold them, its threads awake
            start = time.perf_counter_ns()
            call()
            into.append((time.perf_counter_ns() - start) / 1000)
    return [median(t) for t in taken]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=result_path, default=RESULTS / "stitching.json")
    args = parser.parse_args()
    os.environ.setdefault("TVM_NUM_THREADS", str(THREADS))  # TVM reads it when its pool starts, with the first kernel
    environment = asdict(describe_environment())  # before TVM's pool pins this thread
    built = {name: compile_ways(name) for name in SUBGRAPHS}
    threads = tvm.get_global_func("runtime.config_threadpool")
    rows: list[dict[str, Any]] = []
    for count in (THREADS, 1):
        threads(-2, count, [str(core) for core in usable_machine().cores[:count]])
        for name, found in built.items():
            kinds = [kind for kind, several in found.items() for _ in several]
            medians = times_us([way for several in found.values() for way in several], ROUNDS)
            best = {kind: min(t for k, t in zip(kinds, medians, strict=True) if k == kind) for kind in found}
            first = medians[0]
            rows.append(
                {"subgraph": name, "threads": count, "default_us": first} | {f"{k}_us": t for k, t in best.items()}
            )
    print(f"{'subgraph':36} threads  stitched   plain  dlight   x plain  x dlight")
    for row in rows:
        s, p, d = row["stitched_us"], row["plain_us"], row["dlight_us"]
        print(f"{row['subgraph']:36} {row['threads']:7} {s:9.1f} {p:7.0f} {d:7.0f} {p / s:9.2f} {d / s:9.2f}")
    held = [row for row in rows if row["subgraph"] not in ONE_LOOP]
    gains = [min(row["plain_us"], row["dlight_us"]) / row["stitched_us"] for row in held]
    print(f"over the better of the two: geomean {geometric_mean(gains):.2f}, least {min(gains):.2f}; bar {BAR:g}")
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"rows": rows, "environment": environment}, indent=1) + "\n")
    return 0 if min(gains) >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())

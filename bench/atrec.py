"""What AtRec's fusions gain (Wang et al., section IV-C): `python bench/atrec.py`.

Each subgraph goes through the compiler twice, as it is and with the fusion in question left out, and runs on the same
runtime, every layer in its default version; ONNX Runtime runs the same file beside. GRUs without fusion are the cell
as TensorFlow spells it, concatenations and split included, step after step on inputs that were told apart before. All
are built first, compared, then timed in turn in this process; medians and ratios are printed and written as JSON with
the environment. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
THREADS = 2
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads would spin beside what is timed

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
import tvm  # noqa: E402
import tvm_ffi  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from veltair.compiler.arena import plan  # noqa: E402
from veltair.compiler.graph.layer_graph import LayerGraph  # noqa: E402
from veltair.compiler.graph.layer_spec import Activation  # noqa: E402
from veltair.compiler.kernels.spaces import SPACES  # noqa: E402
from veltair.compiler.onnx.onnx_model import load  # noqa: E402
from veltair.compiler.patterns import by_operator  # noqa: E402
from veltair.compiler.pipeline import lower  # noqa: E402
from veltair.compiler.stitch.fusion_explorer import FusionExplorer  # noqa: E402
from veltair.machine.environment import describe_environment  # noqa: E402
from veltair.machine.isa import cpu_features, tvm_target  # noqa: E402
from veltair.machine.topology import usable_machine  # noqa: E402
from veltair.profiles.runtime.executor import aligned, empty  # noqa: E402
from veltair.profiles.runtime.pinned_threads import CorePool  # noqa: E402
from veltair.zoo.recommendation.augru import augru  # noqa: E402

ROUNDS = 15
SETTLE_S = 0.02  # after ONNX Runtime, whose threads go on spinning for a while
BARS = {"OneHotSum": 3.5, "ConcatSum": 1.45, "GRU": 1.4}
Arrays = dict[str, NDArray[Any]]
random = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    """A subgraph as it is, and as it runs without the fusion; `feeds` are of both."""

    name: str
    kind: str
    model: onnx.ModelProto
    feeds: Arrays
    unfused: onnx.ModelProto | None = None  # the same one, lowered without patterns
    other_feeds: Arrays | None = None


def model(nodes: Sequence[onnx.NodeProto], feeds: Arrays, outputs: Sequence[str], constants: Arrays) -> onnx.ModelProto:
    """float32 out; the first dimension of every input is the batch."""
    types = {"int64": TensorProto.INT64, "float32": TensorProto.FLOAT}
    given = [
        helper.make_tensor_value_info(name, types[str(array.dtype)], ["n", *array.shape[1:]])
        for name, array in feeds.items()
    ]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "atrec", given, made, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def drawn(*shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape, dtype=np.float32)


def one_hot_sum(rows: int, columns: int, lookups: int, depth: int, width: int = 0) -> Case:
    """Indicator columns side by side; with a width, the dense layer behind."""
    feeds: Arrays = {f"ids{i}": random.integers(0, depth, (rows, lookups)) for i in range(columns)}
    constants: Arrays = {"depth": np.array(depth), "values": np.array([0, 1], np.float32), "axis": np.array([1])}
    nodes = []
    for i, name in enumerate(feeds):
        nodes.append(helper.make_node("OneHot", [name, "depth", "values"], [f"hot{i}"]))
        nodes.append(helper.make_node("ReduceSum", [f"hot{i}", "axis"], [f"sum{i}"], keepdims=0))
    nodes.append(helper.make_node("Concat", [f"sum{i}" for i in range(columns)], ["y" if not width else "x"], axis=1))
    if width:
        nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
        constants["w"] = drawn(columns * depth, width)
    product = f" x ({columns * depth}, {width})" if width else ""
    name = f"{columns} x ({rows}, {lookups}) ids of {depth}{product}"
    return Case(name, "OneHotSum", model(nodes, feeds, ["y"], constants), feeds)


def concat_sum(rows: int, columns: int, *shape: int) -> Case:
    feeds: Arrays = {f"x{i}": drawn(rows, *shape) for i in range(columns)}
    nodes = [
        helper.make_node("Concat", list(feeds), ["x"], axis=1),
        helper.make_node("ReduceSum", ["x", "axis"], ["y"], keepdims=0),
    ]
    constants: Arrays = {"axis": np.array([1])}
    return Case(f"{columns} x {(rows, *shape)}", "ConcatSum", model(nodes, feeds, ["y"], constants), feeds)


def recurrent(rows: int, steps: int, inputs: int, hidden: int, scored: bool) -> Case:
    """A GRU, or AUGRU as the zoo writes it; the last state of either."""
    feeds: Arrays = {"x": drawn(rows, steps, inputs)}
    made = augru("u", "x", "a", inputs, hidden, random)
    scan = made.nodes[-1]
    body = next(helper.get_attribute_value(a) for a in scan.attribute if a.name == "body")
    weights = {t.name.removeprefix("u.cell."): numpy_helper.to_array(t) for t in body.initializer}
    name = f"{rows} rows, {steps} steps, {inputs} to {hidden}"
    if scored:
        feeds["a"] = random.random((rows, steps, 1), dtype=np.float32)
        constants = {t.name: numpy_helper.to_array(t) for t in made.initializers}
        whole = model(made.nodes, feeds, [made.last], constants)
    else:
        gates, candidate = np.split(weights["gates.weight"], 2, axis=1), weights["candidate.weight"]
        columns = np.concatenate([gates[1], gates[0], candidate], axis=1)  # ONNX has the update gate first
        bias = np.concatenate([weights["gates.bias"], weights["candidate.bias"], np.zeros(3 * hidden, np.float32)])
        constants = {
            "w": columns[:inputs].T[None], "r": columns[inputs:].T[None], "b": bias[None], "axis": np.array([0])
        }  # fmt: skip
        nodes = [
            helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
            helper.make_node("GRU", ["t", "w", "r", "b"], ["", "last"], hidden_size=hidden),
            helper.make_node("Squeeze", ["last", "axis"], ["y"]),
        ]
        whole = model(nodes, feeds, ["y"], constants)
    kind = "AUGRU" if scored else "GRU"
    return Case(name, kind, whole, feeds, *_unrolled(weights, feeds, steps, hidden, scored))


def _unrolled(weights: Arrays, feeds: Arrays, steps: int, hidden: int, scored: bool) -> tuple[onnx.ModelProto, Arrays]:
    """The cell of the Scan's body once for each step."""
    rows = len(feeds["x"])
    given: Arrays = {f"x{t}": np.ascontiguousarray(feeds["x"][:, t]) for t in range(steps)}
    given |= {f"a{t}": np.ascontiguousarray(feeds["a"][:, t]) for t in range(steps) if scored}
    given["h0"] = np.zeros((rows, hidden), np.float32)
    nodes = []
    for t in range(steps):
        for op, reads, writes, attributes in (
            ("Concat", ["x", "h"], ["xh"], {"axis": 1}),
            ("Gemm", ["xh", "gates.weight", "gates.bias"], ["sum"], {}),
            ("Sigmoid", ["sum"], ["gates"], {}),
            ("Split", ["gates"], ["r", "u"], {"axis": 1}),
            ("Mul", ["r", "h"], ["rh"], {}),
            ("Concat", ["x", "rh"], ["xrh"], {"axis": 1}),
            ("Gemm", ["xrh", "candidate.weight", "candidate.bias"], ["csum"], {}),
            ("Tanh", ["csum"], ["c"], {}),
            *((("Sub", ["one", "a"], ["rest"], {}), ("Mul", ["rest", "u"], ["update"], {})) if scored else ()),
            ("Mul", ["update" if scored else "u", "h"], ["kept"], {}),
            ("Sub", ["one", "update" if scored else "u"], ["share"], {}),
            ("Mul", ["share", "c"], ["new"], {}),
            ("Add", ["kept", "new"], ["h+"], {}),
        ):
            names = [n if n in weights else f"{n}{t}" for n in reads]
            made = [f"h{t + 1}" if n == "h+" else f"{n}{t}" for n in writes]
            nodes.append(helper.make_node(op, names, made, **attributes))
    return model(nodes, given, [f"h{steps}"], weights), given


def cheap(rows: int, columns: int, width: int) -> Case:
    """Independent little chains, as many as a model has columns."""
    feeds: Arrays = {f"x{i}": drawn(rows, width) for i in range(columns)}
    constants: Arrays = {f"b{i}": drawn(width) for i in range(columns)}
    nodes = []
    for i in range(columns):
        nodes.append(helper.make_node("Add", [f"x{i}", f"b{i}"], [f"s{i}"]))
        nodes.append(helper.make_node("Relu", [f"s{i}"], [f"y{i}"]))
    outputs = [f"y{i}" for i in range(columns)]
    return Case(f"{columns} chains of ({rows}, {width})", "packing", model(nodes, feeds, outputs, constants), feeds)


CASES = (
    one_hot_sum(4096, 4, 50, 100),
    one_hot_sum(512, 4, 50, 100),
    one_hot_sum(512, 4, 50, 100, 16),
    concat_sum(4096, 13, 100),
    concat_sum(512, 13, 100),
    concat_sum(512, 26, 1, 16),
    recurrent(512, 50, 8, 8, False),
    recurrent(512, 50, 36, 36, False),
    recurrent(32, 50, 8, 8, False),
    recurrent(512, 50, 8, 8, True),
    cheap(512, 26, 16),
    cheap(32, 26, 16),
)


@contextmanager
def without_fusions() -> Iterator[None]:
    """No patterns are looked for, and no kernel is shared by operators that do not depend on each other."""
    finders, packed = by_operator.FINDERS, FusionExplorer.packed
    by_operator.FINDERS = ()
    FusionExplorer.packed = lambda self, plan: [[pattern] for pattern in plan]
    try:
        yield
    finally:
        by_operator.FINDERS, FusionExplorer.packed = finders, packed


class Way:
    """A graph ready to run: layers in order in an arena, each in one of its versions."""

    def __init__(self, graph: LayerGraph, feeds: Mapping[str, NDArray[Any]], chosen: int = 0) -> None:
        self.layers = len(graph.layers)
        batch, features = len(next(iter(feeds.values()))), cpu_features()
        functions, kernels = {}, []
        for layer in graph.layers:
            points = SPACES[layer.op].points(layer, features)
            kernels.append(SPACES[layer.op].build(layer, points[min(chosen, len(points) - 1)], features))
            functions[layer.symbol] = kernels[-1].function.with_attr("global_symbol", layer.symbol)
        library = tvm.compile(tvm.IRModule(functions), target=tvm.target.Target(tvm_target()))
        arena = plan(graph)
        memory = empty((arena.bytes,), "uint8")

        inputs = [aligned(feeds[port.name]) for port in graph.inputs]
        self.outputs = [empty(port.at(batch), port.dtype) for port in graph.outputs]

        def view(tensor: Activation) -> Any:
            place, shape = arena.places[tensor.name], tensor.at(batch)
            if place.kind != "arena":
                return tvm_ffi.from_dlpack(
                    (inputs if place.kind == "input" else self.outputs)[place.offset].reshape(shape)
                )
            size = int(np.prod(shape)) * np.dtype(tensor.dtype).itemsize
            return tvm_ffi.from_dlpack(memory[place.offset : place.offset + size].view(tensor.dtype).reshape(shape))

        self.calls = [
            (
                library[layer.symbol],
                [
                    *map(view, layer.inputs),
                    *(tvm_ffi.from_dlpack(aligned(w)) for w in kernel.weights),
                    *map(view, layer.outputs),
                ],
            )
            for layer, kernel in zip(graph.layers, kernels, strict=True)
        ]

    def __call__(self) -> None:
        for function, operands in self.calls:
            function(*operands)


def ways(case: Case, expected: Sequence[NDArray[Any]], folder: Path) -> dict[str, Way]:
    """Fused, for a recurrence with the input products hoisted as well, and unfused; all give the same."""
    rows = len(next(iter(case.feeds.values())))
    fused, unfused = folder / "fused.onnx", folder / "unfused.onnx"
    onnx.save(case.model, fused)
    onnx.save(case.unfused or case.model, unfused)
    graph = lower(load(fused, rows), "fp32")
    found = {"fused": Way(graph, case.feeds)}
    if any(layer.op == "recurrent" for layer in graph.layers):
        found["hoisted"] = Way(graph, case.feeds, 1)
    with without_fusions():
        found["unfused"] = Way(lower(load(unfused, rows), "fp32"), case.other_feeds or case.feeds)
    for kind, way in found.items():
        way()
        for output, wanted in zip(way.outputs, expected, strict=True):
            error = np.abs(output - wanted).max() / np.abs(wanted).max()
            if not error < 1e-5:
                raise SystemExit(f"{case.kind} {case.name}: {kind} is off by {error:.2g}")
    return found


def session(case: Case, threads: int) -> Callable[[], Sequence[NDArray[Any]]]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    found = ort.InferenceSession(case.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: found.run(None, case.feeds)


def times_us(found: Mapping[str, Way], peer: Callable[[], object], pool: CorePool, rounds: int) -> dict[str, float]:
    """Medians, all in turn."""
    taken: dict[str, list[float]] = {kind: [] for kind in (*found, "onnxruntime")}

    def timed(kind: str, call: Callable[[], object]) -> None:
        call()  # its own data in the caches that hold them, its threads awake
        start = time.perf_counter_ns()
        call()
        taken[kind].append((time.perf_counter_ns() - start) / 1000)

    for _ in range(rounds):
        with pool.awake():
            for kind, way in found.items():
                timed(kind, way)
        timed("onnxruntime", peer)
        time.sleep(SETTLE_S)
    return {kind: median(t) for kind, t in taken.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=ROOT / "bench" / "results" / "atrec.json")
    args = parser.parse_args()
    cores = usable_machine().cores
    # Before the pool pins this thread, whose place the threads of a session inherit.
    sessions = {(id(case), threads): session(case, threads) for case in CASES for threads in (THREADS, 1)}
    pool = CorePool(cores)
    with tempfile.TemporaryDirectory(prefix="veltair-atrec-") as folder:
        built = [(case, ways(case, sessions[id(case), 1](), Path(folder))) for case in CASES]
    rows: list[dict[str, Any]] = []
    for threads in (THREADS, 1):
        pool.point(cores[:threads])
        for case, found in built:
            medians = times_us(found, sessions[id(case), threads], pool, ROUNDS)
            rows.append(
                {"kind": case.kind, "case": case.name, "threads": threads, "layers": found["unfused"].layers}
                | {f"{kind}_us": round(value, 2) for kind, value in medians.items()}
            )
    print(f"{'':10} {'':42} threads layers    fused  hoisted  unfused      ORT  x unfused   x ORT")
    passed = True
    for row in rows:
        ours = min(row["fused_us"], row.get("hoisted_us", row["fused_us"]))
        gain, bar = row["unfused_us"] / ours, BARS.get(row["kind"], 0.0)
        passed = passed and gain >= bar
        print(
            f"{row['kind']:10} {row['case']:42} {row['threads']:7} {row['layers']:6} {row['fused_us']:8.1f}"
            f" {row.get('hoisted_us', 0):8.1f} {row['unfused_us']:8.1f} {row['onnxruntime_us']:8.1f} {gain:10.2f}"
            f" {row['onnxruntime_us'] / ours:7.2f}{'' if gain >= bar else f'  below {bar:g}'}"
        )
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"rows": rows, "environment": asdict(describe_environment())}, indent=1) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

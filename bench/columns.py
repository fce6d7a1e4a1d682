"""Columns of recommendation models alone, from raw features to the network's input, beside ONNX Runtime and TensorFlow.

    python bench/columns.py prepare MODEL DIR    compiles the candidates; DIR takes about 1 GB
    python bench/columns.py measure MODEL DIR [--tensorflow PYTHON] [--json FILE]

`recom-e`, 1000 columns to (B, 8120): 880 bucketised floats (96 boundaries), 50 hashed integers, 50 hashed strings and
15 token lists (1-10 tokens, mean), all of dim 8, and 5 hashed integers of dim 32 with large tables: ROWS instead of the
paper's 2**23, as memory allows.
ONNX has no hash: ONNX Runtime gets the indices of those 120 columns ready-made, so its figure leaves out their work.
`history`: elm-WDL's 12 history strings of 10-100 tokens, split at ';', hashed to 100,000 rows of dim 16, their mean.
`split`: the same strings into 1000 rows of one number, so that splitting and hashing is all there is to do.
TensorFlow runs the same columns as one graph (Bucketize, hash, split, gather) in a Python of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "2")
import numpy as np

THREADS = 2
HASHED = slice(0, 7840)  # outputs of columns of which ONNX Runtime has the same ids: all but tokens and large ones
ROWS = 1 << 20  # of the five large tables
EDGES = np.linspace(-2.5, 2.5, 96).astype(np.float32)
MODELS: dict[str, dict[str, Any]] = {
    "recom-e": {
        "kinds": [("bucket", 880), ("int", 50), ("string", 50), ("tokens", 15), ("large", 5)],
        "batches": (32, 256, 2048), "buckets": 1000, "dim": 8, "tokens": (1, 11),
    },
    "history": {"kinds": [("tokens", 12)], "batches": (512, 4096), "buckets": 100_000, "dim": 16, "tokens": (10, 101)},
    "split": {"kinds": [("tokens", 12)], "batches": (512, 4096), "buckets": 1000, "dim": 1, "tokens": (10, 101)},
}  # fmt: skip
MODEL = MODELS["recom-e"]
POINTS = [
    {"rows": rows, "columns": columns, "along": along, "ahead": ahead}
    for ahead in (0, 1) for along in ("rows", "columns") for rows in (32, 64, 256) for columns in (32, 128)
]  # fmt: skip


def columns() -> Iterator[tuple[str, str, int, int]]:
    """Name, kind, rows and dim of each."""
    for kind, count in MODEL["kinds"]:
        for place in range(count):
            rows = {"bucket": len(EDGES) + 1, "large": ROWS}.get(kind, MODEL["buckets"])
            yield f"{kind}{place}", kind, rows, 32 if kind == "large" else MODEL["dim"]


def tables() -> dict[str, Any]:
    chance = np.random.default_rng(1)
    return {name: chance.random((rows, dim), np.float32) - np.float32(0.5) for name, _, rows, dim in columns()}


def raw_features(batch: int) -> dict[str, Any]:
    chance = np.random.default_rng(batch)
    words = [b"word%d" % i for i in chance.integers(0, 1 << 30, 4096)]

    def text(kind: str) -> bytes:
        count = 1 if kind == "string" else chance.integers(*MODEL["tokens"])
        return b";".join(words[i] for i in chance.integers(0, len(words), count))

    found: dict[str, Any] = {}
    for name, kind, _, _ in columns():
        if kind == "bucket":
            found[name] = chance.standard_normal(batch).astype(np.float32)
        elif kind in ("int", "large"):
            found[name] = chance.integers(0, 1 << 40, batch)
        else:
            found[name] = [text(kind) for _ in range(batch)]
    return found


def described() -> Any:
    from veltair.compiler.features.description_file import parse_description

    features, listed, embeddings = [], [], []
    for name, kind, rows, dim in columns():
        given = {"bucket": "float", "int": "int", "large": "int", "string": "string", "tokens": "tokens"}[kind]
        features.append(
            {"name": name, "kind": given}
            | ({"separator": ";", "max_bytes": 16 * MODEL["tokens"][1]} if kind == "tokens" else {})
        )
        step = {"boundaries": [float(e) for e in EDGES]} if kind == "bucket" else {"hash": rows}
        listed.append({"feature": name, "table": name, **step})
        embeddings.append({"name": name, "rows": rows, "dim": dim, "seed": 0})
    joined = [{"name": "x", "columns": [c["feature"] for c in listed]}]
    raw = {"features": features, "columns": listed, "tables": embeddings, "inputs": joined}
    return parse_description(raw, Path("recom_e.toml"))


def prepare(folder: Path) -> None:
    import tvm

    from veltair.compiler.features.feature_layout import buffer_of
    from veltair.compiler.features.kernel.columns_kernel import ColumnsSpace, columns_layer
    from veltair.compiler.features.table_store import TableStore
    from veltair.machine.isa import cpu_features, tvm_target

    folder.mkdir(parents=True, exist_ok=True)
    description = described()
    spec = columns_layer(
        description, description.inputs[0], max(MODEL["batches"]), TableStore.load(description, tables())
    )
    for number, point in enumerate(POINTS):
        kernel = ColumnsSpace().build(spec, point, cpu_features())
        start = time.perf_counter()
        module = tvm.IRModule({"main": kernel.function.with_attr("global_symbol", "main")})
        tvm.compile(module, target=tvm.target.Target(tvm_target())).export_library(str(folder / f"{number}.so"))
        print(point, f"compiled in {time.perf_counter() - start:.1f} s", flush=True)
        for place, weight in enumerate(kernel.weights):
            if place == 0 or number == 0:  # the chunks alone depend on the point
                np.save(folder / (f"chunks{number}.npy" if place == 0 else f"weight{place}.npy"), weight)
    (folder / "names.json").write_text(json.dumps([buffer_of(t.name) for t in spec.inputs]))


def ours(folder: Path) -> dict[str, Callable[[int], Callable[[], Any]]]:
    """By point: for a batch size, one run that gives the output."""
    import tvm_ffi

    from veltair.compiler.features.random_features import pack_features
    from veltair.profiles.artifact.strings import Strings
    from veltair.profiles.runtime.executor import aligned, empty
    from veltair.profiles.runtime.huge_pages import mapped, settle
    from veltair.profiles.runtime.tvm_runtime import runtime

    description = described()
    names = json.loads((folder / "names.json").read_text())
    shared = [aligned(np.load(folder / f"weight{place}.npy")) for place in range(1, 9)]
    settle(folder / "weight9.npy")  # tables lie as in an artifact that is served: in large pages, if there are any
    stored = np.load(folder / "weight9.npy", mmap_mode="r")
    shared.append(mapped(folder / "weight9.npy")[-stored.nbytes :].view(stored.dtype))
    inputs: dict[int, list[Any]] = {}

    def of(number: int, batch: int) -> Callable[[], Any]:
        if batch not in inputs:
            raw = raw_features(batch)
            values = {n: Strings.of(v) if isinstance(v, list) else v for n, v in raw.items()}
            arrays = pack_features(description, values, batch)
            inputs[batch] = [aligned(arrays[name]) for name in names]
        function = runtime.load_module(str(folder / f"{number}.so"))["main"]
        out = empty((batch, sum(dim for *_, dim in columns())), "float32")
        chunks = aligned(np.load(folder / f"chunks{number}.npy"))
        tensors = [tvm_ffi.from_dlpack(a) for a in (*inputs[batch], chunks, *shared, out)]

        def run() -> Any:
            function(*tensors)
            return out

        return run

    return {str(p): (lambda batch, n=n: of(n, batch)) for n, p in enumerate(POINTS)}  # type: ignore[misc]


def onnxruntime() -> Callable[[int], Callable[[], Any]]:
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    from veltair.compiler.features.fingerprint import fingerprint64

    nodes, inputs, weights = [], [], [numpy_helper.from_array(EDGES, "edges")]
    weights.append(numpy_helper.from_array(np.array([1]), "one"))
    for name, table in tables().items():
        weights.append(numpy_helper.from_array(table, f"{name}.t"))
        if name.startswith("bucket"):
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 1]))
            nodes += [
                helper.make_node("GreaterOrEqual", [name, "edges"], [f"{name}.ge"]),
                helper.make_node("Cast", [f"{name}.ge"], [f"{name}.c"], to=TensorProto.INT32),
                helper.make_node("ReduceSum", [f"{name}.c", "one"], [f"{name}.i"], keepdims=0),
                helper.make_node("Gather", [f"{name}.t", f"{name}.i"], [f"{name}.o"]),
            ]
        elif name.startswith("tokens"):
            inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["B", 5]))
            nodes += [
                helper.make_node("Gather", [f"{name}.t", name], [f"{name}.g"]),
                helper.make_node("ReduceMean", [f"{name}.g", "one"], [f"{name}.o"], keepdims=0),
            ]
        else:
            inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["B"]))
            nodes.append(helper.make_node("Gather", [f"{name}.t", name], [f"{name}.o"]))
    nodes.append(helper.make_node("Concat", [f"{name}.o" for name, *_ in columns()], ["x"], axis=1))
    out = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 8120])
    graph = helper.make_graph(nodes, "e", inputs, [out], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = THREADS, 3
    session = ort.InferenceSession(model.SerializeToString(), options)

    def of(batch: int) -> Callable[[], Any]:
        feeds = {}
        for name, kind, rows, _ in columns():
            value = raw_features_once(batch)[name]
            if kind == "bucket":
                feeds[name] = value[:, None]
            elif kind == "tokens":  # five each, which is the mean of 1-10
                feeds[name] = np.random.default_rng(0).integers(0, rows, (batch, 5))
            else:
                text = value if kind == "string" else [str(v).encode() for v in value]
                feeds[name] = np.array([fingerprint64(t) % rows for t in text])
        return lambda: session.run(["x"], feeds)[0]

    return of


_raw: dict[int, dict[str, Any]] = {}


def raw_features_once(batch: int) -> dict[str, Any]:
    if batch not in _raw:
        _raw[batch] = raw_features(batch)
    return _raw[batch]


def tensorflow() -> Callable[[int], Callable[[], Any]]:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    weights = {name: tf.constant(table) for name, table in tables().items()}
    edges = EDGES.tolist()

    @tf.function
    def graph(feeds: dict[str, Any]) -> Any:
        parts = []
        for name, kind, rows, _ in columns():
            value = feeds[name]
            if kind == "bucket":
                index = tf.raw_ops.Bucketize(input=value, boundaries=edges)
            elif kind == "tokens":
                tokens = tf.strings.split(value, ";")
                ids = tf.strings.to_hash_bucket_fast(tokens.values, rows)
                rows_ = tf.gather(weights[name], ids)
                parts.append(tf.math.segment_mean(rows_, tokens.value_rowids()))
                continue
            else:
                index = tf.strings.to_hash_bucket_fast(value if kind == "string" else tf.strings.as_string(value), rows)
            parts.append(tf.gather(weights[name], index))
        return tf.concat(parts, 1)

    types = {"bucket": tf.float32, "int": tf.int64, "large": tf.int64, "string": tf.string, "tokens": tf.string}
    signature = {name: tf.TensorSpec([None], types[kind], name) for name, kind, _, _ in columns()}
    concrete = graph.get_concrete_function(signature)

    def of(batch: int) -> Callable[[], Any]:
        feeds = {name: tf.constant(value) for name, value in raw_features(batch).items()}
        return lambda: concrete(feeds).numpy()

    return of


def timed(run: Callable[[], Any], budget_s: float) -> float:
    """Median, in ms."""
    run()
    times, end = [], time.perf_counter() + budget_s
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 200):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times) * 1e3)


def peer() -> None:
    """The other Python: reads batch sizes, answers with a median in ms and a checksum of the output."""
    of = tensorflow()
    runs = {batch: of(batch) for batch in MODEL["batches"]}
    for run in runs.values():
        run()
    print("ready", flush=True)
    for line in sys.stdin:
        batch = int(line)
        print(json.dumps([timed(runs[batch], 0.5), runs[batch]().astype(np.float64).sum(0).tolist()]), flush=True)


class Contest:
    """Everything loaded and run once, so that `measure` only measures."""

    def __init__(self, folder: Path, python: str | None) -> None:
        self.peer = None
        if python:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            name = next(name for name in MODELS if MODELS[name] is MODEL)
            self.peer = subprocess.Popen([python, __file__, "peer", name], text=True, **pipes)
        candidates = ours(folder)
        other = onnxruntime() if MODEL is MODELS["recom-e"] else None
        self.runs = {batch: {name: of(batch) for name, of in candidates.items()} for batch in MODEL["batches"]}
        self.others = {batch: other(batch) for batch in MODEL["batches"]} if other else {}
        for batch in MODEL["batches"]:
            for run in self.runs[batch].values():
                run()
        if self.peer and self.peer.stdout:
            assert self.peer.stdout.readline() == "ready\n"

    def tensorflow(self, batch: int) -> tuple[float, list[float]]:
        assert self.peer and self.peer.stdin and self.peer.stdout
        self.peer.stdin.write(f"{batch}\n")
        self.peer.stdin.flush()
        median, sums = json.loads(self.peer.stdout.readline())
        return median, sums

    def measure(self, rounds: int = 3) -> dict[str, Any]:
        """Medians of the best point and its peers, in turn, by batch."""
        found: dict[str, Any] = {}
        for batch in MODEL["batches"]:
            alone = {name: timed(run, 0.1) for name, run in self.runs[batch].items()}
            best = min(alone, key=lambda name: alone[name])
            run, other = self.runs[batch][best], self.others.get(batch)
            sums = run().astype(np.float64).sum(0)
            if other:
                assert np.abs(sums - other().astype(np.float64).sum(0))[HASHED].max() < 1e-2
            rows = []
            for _ in range(rounds):
                row = [timed(run, 0.3)] + ([timed(other, 0.5)] if other else [])
                if self.peer:
                    median, checked = self.tensorflow(batch)
                    assert np.abs(sums - checked).max() < 1e-2
                    row.append(median)
                rows.append(row)
            medians = np.median(rows, 0).tolist()
            keys = ["veltair_ms", *["onnxruntime_ms"] * bool(other), *["tensorflow_ms"] * bool(self.peer)]
            found[str(batch)] = dict(zip(keys, medians, strict=True)) | {"point": best, "points_ms": alone}
            ratios = " ".join(f"{value / medians[0]:.1f}x" for value in medians[1:])
            print(batch, *(f"{k} {v:.3f}" for k, v in zip(keys, medians, strict=True)), ratios, best, flush=True)
        return found

    def close(self) -> None:
        if self.peer:
            self.peer.kill()
            self.peer.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "measure", "peer"))
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("columns-bench"))
    parser.add_argument("--tensorflow", metavar="PYTHON")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    global MODEL
    MODEL = MODELS[options.model]
    if options.what == "peer":
        peer()
    elif options.what == "prepare":
        prepare(options.folder)
    else:
        contest = Contest(options.folder, options.tensorflow)
        found = contest.measure()
        contest.close()
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Feature columns alone, from raw features to the network's input, beside ONNX Runtime and TensorFlow.

    python -m bench.recsys.columns prepare SET DIR    compiles the candidates; DIR takes about 1 GB
    python -m bench.recsys.columns measure SET DIR [--tensorflow PYTHON] [--json FILE]

`recom-e`, 1000 columns to (B, 8120): 880 bucketised floats (96 boundaries), 50 hashed integers, 50 hashed strings and
15 token lists (1-10 tokens, mean), all of dim 8, and 5 hashed integers of dim 32 with large tables: 2**20 rows instead
of the paper's 2**23, as memory allows.
ONNX has no hash: ONNX Runtime gets the indices of those 120 columns ready-made, so its figure leaves out their work.
`history`: elm-WDL's 12 history strings of 10-100 tokens, split at ';', hashed to 100,000 rows of dim 16, their mean.
`split`: the same strings into 1000 rows of one number, so that splitting and hashing is all there is to do.
TensorFlow runs the same columns as one graph (Bucketize, hash, split, gather) in a Python of its own.
Both take a tensor for each column inside the timing, so our kernels are timed twice: on packed features, and with the
decoding, checking and packing of a gRPC request before them (`bench.recsys.from_request`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bench.paths import ROOT, result_path
from bench.recsys.feature_columns import (
    COLUMN_SETS,
    EDGES,
    LARGE_ROWS,
    THREADS,
    ColumnSet,
    columns,
    raw_features,
    tables,
    timed,
)
from bench.recsys.from_request import RequestReader
from bench.recsys.shared_tables import map_copy
from veltair.machine.environment import describe_environment

COMPARED = slice(0, 7840)  # outputs of columns whose ids ONNX Runtime has, too: all but tokens and large tables
POINTS = [
    {"rows": rows, "columns": columns, "along": along, "ahead": ahead}
    for ahead, along, rows, columns in product((0, 1), ("rows", "columns"), (32, 64, 256), (32, 128))
]


def description_of(chosen: ColumnSet) -> Any:
    """The columns as a feature description."""
    from veltair.compiler.features.description_file import parse_description

    features, listed, embeddings = [], [], []
    for name, kind, rows, dim in columns(chosen):
        given = {"bucket": "float", "int": "int", "large": "int", "string": "string", "tokens": "tokens"}[kind]
        features.append(
            {"name": name, "kind": given}
            | ({"separator": ";", "max_bytes": 16 * chosen.tokens[1]} if kind == "tokens" else {})
        )
        step = {"boundaries": [float(e) for e in EDGES]} if kind == "bucket" else {"hash": rows}
        listed.append({"feature": name, "table": name, **step})
        embeddings.append({"name": name, "rows": rows, "dim": dim, "seed": 0})
    joined = [{"name": "x", "columns": [c["feature"] for c in listed]}]
    raw = {"features": features, "columns": listed, "tables": embeddings, "inputs": joined}
    return parse_description(raw, Path("recom_e.toml"))


def prepare(chosen: ColumnSet, folder: Path) -> None:
    """Compiles every point and writes the weights beside the libraries."""
    from veltair.compiler.features.feature_layout import buffer_of
    from veltair.compiler.features.kernel.columns_kernel import ColumnsSpace, columns_layer
    from veltair.compiler.features.table_store import TableStore
    from veltair.compiler.shared_library import compile_function
    from veltair.machine.isa import cpu_features, tvm_target

    folder.mkdir(parents=True, exist_ok=True)
    description = description_of(chosen)
    spec = columns_layer(
        description, description.inputs[0], max(chosen.batches), TableStore.load(description, tables(chosen))
    )
    for number, point in enumerate(POINTS):
        kernel = ColumnsSpace().build(spec, point, cpu_features())
        start = time.perf_counter()
        compile_function(kernel.function, "main", tvm_target()).export_library(str(folder / f"{number}.so"))
        print(point, f"compiled in {time.perf_counter() - start:.1f} s", flush=True)
        for place, weight in enumerate(kernel.weights):
            if place == 0 or number == 0:  # the chunks alone depend on the point
                np.save(folder / (f"chunks{number}.npy" if place == 0 else f"weight{place}.npy"), weight)
    (folder / "names.json").write_text(json.dumps([buffer_of(t.name) for t in spec.inputs]))


def compiled_points(
    chosen: ColumnSet, folder: Path
) -> tuple[dict[str, Callable[[int], Callable[[], Any]]], Callable[[int], None]]:
    """Returns by point a function from a batch size to one run on packed features, which returns the output; and a
    function that reads a batch size's request, which packs the features again."""
    import tvm_ffi
    from tvm import runtime

    from veltair.compiler.features.feature_layout import FeatureLayout, buffer_of
    from veltair.profiles.artifact.strings import Strings
    from veltair.profiles.runtime.executor import aligned_copy, aligned_zeros

    layout = FeatureLayout.from_description(description_of(chosen))
    order = [buffer_of(port.name) for port in layout.packed_buffers]
    names = json.loads((folder / "names.json").read_text())
    shared = [aligned_copy(np.load(folder / f"weight{place}.npy")) for place in range(1, 9)]
    stored = np.load(folder / "weight9.npy", mmap_mode="r")
    shared.append(map_copy(folder / "weight9.npy")[-stored.nbytes :].view(stored.dtype))
    readers: dict[int, RequestReader] = {}

    def reader(batch: int) -> RequestReader:
        if batch not in readers:
            raw = raw_features(chosen, batch)
            values = {n: Strings.from_values(v) if isinstance(v, list) else v for n, v in raw.items()}
            readers[batch] = RequestReader(layout, values, batch)
        return readers[batch]

    def load(number: int, batch: int) -> Callable[[], Any]:
        arrays = dict(zip(order, reader(batch).arrays, strict=True))
        function = runtime.load_module(str(folder / f"{number}.so"))["main"]
        out = aligned_zeros((batch, sum(dim for *_, dim in columns(chosen))), "float32")
        chunks = aligned_copy(np.load(folder / f"chunks{number}.npy"))
        tensors = [tvm_ffi.from_dlpack(a) for a in (*(arrays[name] for name in names), chunks, *shared, out)]

        def run() -> Any:
            function(*tensors)
            return out

        return run

    points = {str(p): (lambda batch, n=n: load(n, batch)) for n, p in enumerate(POINTS)}  # type: ignore[misc]
    return points, lambda batch: reader(batch).read()


def onnxruntime_session(chosen: ColumnSet) -> Callable[[int], Callable[[], Any]]:
    """Returns a function from a batch size to one run; hashed ids are made beforehand, as ONNX has no hash."""
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    from veltair.compiler.features.fingerprint import fingerprint64

    nodes, inputs, weights = [], [], [numpy_helper.from_array(EDGES, "edges")]
    weights.append(numpy_helper.from_array(np.array([1]), "one"))
    for name, table in tables(chosen).items():
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
    nodes.append(helper.make_node("Concat", [f"{name}.o" for name, *_ in columns(chosen)], ["x"], axis=1))
    out = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 8120])
    graph = helper.make_graph(nodes, "e", inputs, [out], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = THREADS, 3
    session = ort.InferenceSession(model.SerializeToString(), options)

    def prepare(batch: int) -> Callable[[], Any]:
        feeds, raw = {}, raw_features(chosen, batch)
        for name, kind, rows, _ in columns(chosen):
            value = raw[name]
            if kind == "bucket":
                feeds[name] = value[:, None]
            elif kind == "tokens":  # five each, which is the mean of 1-10
                feeds[name] = np.random.default_rng(0).integers(0, rows, (batch, 5))
            else:
                text = value if kind == "string" else [str(v).encode() for v in value]
                feeds[name] = np.array([fingerprint64(t) % rows for t in text])
        return lambda: session.run(["x"], feeds)[0]

    return prepare


class Comparison:
    """All engines with one column set, loaded and run once, so that `measure` only measures."""

    def __init__(self, name: str, folder: Path, python: str | None) -> None:
        """`python`: a Python with TensorFlow, None: without it."""
        self._batches = COLUMN_SETS[name].batches
        self._peer = None
        if python:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            command = [python, "-m", "bench.recsys.tensorflow_graph", name]
            self._peer = subprocess.Popen(command, text=True, cwd=ROOT, **pipes)
        points, self._read = compiled_points(COLUMN_SETS[name], folder)
        session = onnxruntime_session(COLUMN_SETS[name]) if name == "recom-e" else None
        self._runs = {batch: {point: load(batch) for point, load in points.items()} for batch in self._batches}
        self._peers = {batch: session(batch) for batch in self._batches} if session else {}
        for batch in self._batches:
            for run in self._runs[batch].values():
                run()
        if self._peer and self._peer.stdout:
            assert self._peer.stdout.readline() == "ready\n"

    def _tensorflow(self, batch: int) -> tuple[float, list[float]]:
        assert self._peer and self._peer.stdin and self._peer.stdout
        self._peer.stdin.write(f"{batch}\n")
        self._peer.stdin.flush()
        median, sums = json.loads(self._peer.stdout.readline())
        return median, sums

    def measure(self, rounds: int = 3) -> dict[str, Any]:
        """Returns medians of the best point and its peers by batch; the engines run in turn."""
        found: dict[str, Any] = {}
        for batch in self._batches:
            alone = {name: timed(run, 0.1) for name, run in self._runs[batch].items()}
            best = min(alone, key=lambda name: alone[name])
            run, other = self._runs[batch][best], self._peers.get(batch)
            sums = run().astype(np.float64).sum(0)
            if other:
                assert np.abs(sums - other().astype(np.float64).sum(0))[COMPARED].max() < 1e-2
            rows = []

            def from_request(run: Callable[[], Any] = run, batch: int = batch) -> Any:
                self._read(batch)
                return run()

            for _ in range(rounds):
                row = [timed(run, 0.3), timed(from_request, 0.3)] + ([timed(other, 0.5)] if other else [])
                if self._peer:
                    median, checked = self._tensorflow(batch)
                    assert np.abs(sums - checked).max() < 1e-2
                    row.append(median)
                rows.append(row)
            medians = np.median(rows, 0).tolist()
            keys = [
                "veltair_ms",
                "veltair_request_ms",
                *["onnxruntime_ms"] * bool(other),
                *["tensorflow_ms"] * bool(self._peer),
            ]
            found[str(batch)] = dict(zip(keys, medians, strict=True)) | {"point": best, "points_ms": alone}
            ratios = " ".join(f"{value / medians[0]:.1f}x" for value in medians[2:])
            print(batch, *(f"{k} {v:.3f}" for k, v in zip(keys, medians, strict=True)), ratios, best, flush=True)
        return found

    def close(self) -> None:
        if self._peer:
            self._peer.kill()
            self._peer.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "measure"))
    parser.add_argument("columns", choices=COLUMN_SETS)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("columns-bench"))
    parser.add_argument("--tensorflow", metavar="PYTHON")
    parser.add_argument("--json", type=result_path)
    options = parser.parse_args()
    environment = asdict(describe_environment())  # before TVM's pool pins this thread
    os.environ.setdefault("TVM_NUM_THREADS", str(THREADS))  # TVM reads it when its pool starts, with the first kernel
    if options.what == "prepare":
        prepare(COLUMN_SETS[options.columns], options.folder)
        return
    comparison = Comparison(options.columns, options.folder, options.tensorflow)
    found = comparison.measure()
    comparison.close()
    if options.json:  # one file for all sets
        kept = json.loads(options.json.read_text("utf-8")) if options.json.exists() else {}
        kept |= {"environment": environment | {"large_tables_rows": LARGE_ROWS}, options.columns: found}
        options.json.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

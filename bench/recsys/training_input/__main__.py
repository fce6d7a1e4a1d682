"""The input of a training job: elm-WDL's raw rows to ids, batch 4096, beside Python and tf.data.

    python -m bench.recsys.training_input [--rows N] [--tensorflow PYTHON] [--json FILE]

Ours reads an Arrow record batch in memory, and Parquet files by one process and by one for each core. Python does what
a Dataset's `__getitem__` does: it splits a row's texts and hashes each token with FarmHash in C. tf.data gets whole
batches of tensors in memory and maps them through `tf.strings.split` and `to_hash_bucket_fast` in parallel, in a Python
of its own. The ids of all are compared first. Rows per second, medians of turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import farmhash
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

import veltair
from bench.paths import ROOT, result_path
from veltair.machine.environment import describe_environment
from veltair.machine.topology import usable_machine
from veltair.zoo.recommendation.elm_wdl import ELM_WDL

BATCH = 4096
TURNS = 5
LEAST, MOST = 10, 100  # tokens of a history
SEPARATOR = ";"


def description() -> dict[str, Any]:
    """elm-WDL's columns as TOML has them."""
    assert ELM_WDL.describe is not None
    tables = [{"name": t.name, "rows": t.rows, "dim": t.dim, "seed": 0} for t in ELM_WDL.tables]
    return {**ELM_WDL.describe({table.name: table for table in ELM_WDL.tables}), "tables": tables}


def draw_rows(described: Mapping[str, Any], rows: int) -> pa.Table:
    """Random raw features: identifiers of up to seven digits, histories of LEAST to MOST of them."""
    chance, found = np.random.default_rng(0), {}
    numbers = {column["feature"] for column in described["columns"] if "number" in column}
    for feature in described["features"]:
        name, kind = feature["name"], feature["kind"]
        if kind == "float":
            found[name] = pa.array(chance.standard_normal(rows).astype(np.float32))
        elif kind == "string":
            found[name] = pa.array([str(i) for i in chance.integers(0, 10**7, rows).tolist()])
        else:
            counts = chance.integers(LEAST, MOST + 1, rows)
            words = chance.integers(0, 1000 if name in numbers else 10**7, int(counts.sum())).astype(str)
            ends = np.cumsum(counts)[:-1]
            found[name] = pa.array([SEPARATOR.join(part) for part in np.split(words, ends)])
    return pa.table(found)


def python_rows(described: Mapping[str, Any], table: pa.Table) -> dict[str, Any]:
    """A batch as Python preprocesses it: row by row, column by column."""
    kinds = {feature["name"]: feature["kind"] for feature in described["features"]}
    found: dict[str, list[Any]] = {column["feature"]: [] for column in described["columns"]}
    for row in table.to_pylist():
        for column in described["columns"]:
            name = column["feature"]
            value = row[name]
            if kinds[name] == "float":
                found[name].append(value)
                continue
            tokens = value.split(SEPARATOR) if kinds[name] == "tokens" else [value]
            if "number" in column:
                found[name].append(sum(map(float, tokens)) / len(tokens))
            else:
                found[name].append([farmhash.fingerprint64(token) % column["hash"] for token in tokens])
    return {
        name: np.concatenate([np.array(row, np.int64) for row in rows]) if isinstance(rows[0], list) else np.array(rows)
        for name, rows in found.items()
    }


def rate(rows: int, run: Callable[[], Any]) -> float:
    """Rows per second, the median of turns after one that does not count."""
    run()
    taken = []
    for _ in range(TURNS):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return rows / median(taken)


def tensorflow_rates(python: str, folder: Path, threads: int) -> dict[str, float]:
    """The peer's rates, and its ids for comparison in `folder`."""
    command = [
        python,
        "-m",
        "bench.recsys.training_input.tensorflow_peer",
        str(folder),
        str(threads),
        str(BATCH),
        str(TURNS),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rates: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rates


def compare(ours: Mapping[str, Any], other: Mapping[str, Any], who: str) -> None:
    """Raises SystemExit where another one's ids are not ours, bit by bit."""
    for name, value in ours.items():
        if isinstance(value, tuple) and not np.array_equal(value.ids, other[name]):
            raise SystemExit(f"{who}: other ids of {name}")


def _read(columns: Any, path: Path, shard: tuple[int, int]) -> int:
    return sum(1 for _ in columns.batches(path, rows=BATCH, shard=shard))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16 * BATCH)
    parser.add_argument("--tensorflow", help="a Python with TensorFlow")
    parser.add_argument("--json", type=result_path, help="where the rates go, with the environment")
    args = parser.parse_args(arguments)
    environment, cores = describe_environment(), len(usable_machine().cores)
    described = description()
    table = draw_rows(described, args.rows)
    first = table.slice(0, BATCH)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "features.toml").write_text(tomli_w.dumps(described))
        pq.write_table(table, folder / "rows.parquet", row_group_size=BATCH)
        columns = veltair.features(folder / "features.toml")
        ours = columns(first)
        compare(ours, python_rows(described, first), "Python")
        record = first.combine_chunks().to_batches()[0]
        rates = {
            "veltair, in memory, 1 process": rate(len(first), lambda: columns(record)),
            "veltair, Parquet, 1 process": rate(args.rows, lambda: _read(columns, folder / "rows.parquet", (0, 1))),
            "python, in memory, 1 process": rate(len(first), lambda: python_rows(described, first)),
        }
        with multiprocessing.get_context("fork").Pool(cores) as pool:
            jobs = [(columns, folder / "rows.parquet", (part, cores)) for part in range(cores)]
            pool.starmap(_read, jobs)  # the columns are pickled: each process compiles them once
            rates[f"veltair, Parquet, {cores} processes"] = rate(args.rows, lambda: pool.starmap(_read, jobs))
        if args.tensorflow:
            texts = {name: np.array(first[name].to_pylist()) for name in first.column_names}
            np.savez(folder / "rows.npz", **texts)
            rates |= tensorflow_rates(args.tensorflow, folder, cores)
            with np.load(folder / "ids.npz") as theirs:
                compare(ours, theirs, "tf.data")
    for name, found in rates.items():
        print(f"{name}: {found:,.0f} rows/s")
    if args.json:
        args.json.write_text(json.dumps({"environment": asdict(environment), "rows_per_s": rates}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""A description's columns as a `tf.data` pipeline, in a Python of its own; `bench.recsys.training_input` starts it.

    python -m bench.recsys.training_input.tensorflow_peer FOLDER THREADS BATCH TURNS

FOLDER has features.toml and rows.npz, an array for each feature of one batch. Prints rows per second as JSON, and
writes the ids of each column to ids.npz.
"""

from __future__ import annotations

import json
import os
import sys
import time
import tomllib
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.recsys.tensorflow_process import use_threads

BATCHES = 16  # of a turn


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    folder, threads, batch, turns = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    use_threads(threads)
    described = tomllib.loads((folder / "features.toml").read_text("utf-8"))
    features = {feature["name"]: feature for feature in described["features"]}
    with np.load(folder / "rows.npz") as rows:
        raw = {name: tf.constant(rows[name]) for name in rows.files}

    def transform(values: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for column in described["columns"]:
            feature, value = features[column["feature"]], values[column["feature"]]
            if feature["kind"] == "tokens":
                tokens = tf.strings.split(value, feature["separator"])
                if "number" in column:
                    found[column["feature"]] = tf.reduce_mean(tf.strings.to_number(tokens), axis=1)
                else:
                    ids = tf.strings.to_hash_bucket_fast(tokens.values, column["hash"])
                    found[column["feature"]] = tokens.with_values(ids)
            else:
                found[column["feature"]] = (
                    tf.strings.to_hash_bucket_fast(value, column["hash"]) if "hash" in column else value
                )
        return found

    dataset = tf.data.Dataset.from_tensors(raw).repeat(BATCHES)
    dataset = dataset.map(transform, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)
    taken = []
    for turn in range(turns + 1):  # the first does not count
        start = time.perf_counter()
        last = list(dataset.take(BATCHES))[-1]
        taken += [time.perf_counter() - start] if turn else []
    np.savez(folder / "ids.npz", **{name: getattr(value, "values", value).numpy() for name, value in last.items()})
    print(json.dumps({f"tf.data, in memory, {threads} threads": BATCHES * batch / median(taken)}))


if __name__ == "__main__":
    main()

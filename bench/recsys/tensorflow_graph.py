"""The columns of `bench.recsys.columns` as one TensorFlow graph, in a Python of its own.

    python -m bench.recsys.tensorflow_graph SET

Prints `ready`, then reads batch sizes and answers each with a median in ms and the sums of the output's columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.recsys.feature_columns import COLUMN_SETS, EDGES, THREADS, ColumnSet, columns, raw_features, tables, timed
from bench.recsys.tensorflow_process import use_threads


def compile_graph(chosen: ColumnSet) -> Callable[[int], Callable[[], Any]]:
    """Returns a function from a batch size to one run of the graph."""
    import tensorflow as tf

    use_threads(THREADS)
    weights = {name: tf.constant(table) for name, table in tables(chosen).items()}
    edges = EDGES.tolist()

    @tf.function
    def graph(feeds: dict[str, Any]) -> Any:
        parts = []
        for name, kind, rows, _ in columns(chosen):
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
    signature = {name: tf.TensorSpec([None], types[kind], name) for name, kind, _, _ in columns(chosen)}
    concrete = graph.get_concrete_function(signature)

    def prepare(batch: int) -> Callable[[], Any]:
        feeds = {name: tf.constant(value) for name, value in raw_features(chosen, batch).items()}
        return lambda: concrete(feeds).numpy()

    return prepare


def main() -> None:
    chosen = COLUMN_SETS[sys.argv[1]]
    prepare = compile_graph(chosen)
    runs = {batch: prepare(batch) for batch in chosen.batches}
    for run in runs.values():
        run()
    print("ready", flush=True)
    for line in sys.stdin:
        batch = int(line)
        print(json.dumps([timed(runs[batch], 0.5), runs[batch]().astype(np.float64).sum(0).tolist()]), flush=True)


if __name__ == "__main__":
    main()

"""A feature description's columns in TensorFlow, in a Python of its own.

    python -m bench.recsys.tensorflow_columns DESCRIPTION THREADS RAW.npz

Prints `ready`, then times one turn for each line that it reads. RAW.npz holds an array for each feature; texts are
arrays of bytes. Tables are random: only their sizes matter here.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.recsys.tensorflow_process import serve_turns, use_threads


def graph(description: dict[str, Any], feeds: dict[str, Any]) -> Callable[[], Any]:
    import tensorflow as tf

    random = np.random.default_rng(0)
    tables = {
        t["name"]: tf.constant(random.random((t["rows"], t["dim"]), np.float32)) for t in description.get("tables", ())
    }
    features = {feature["name"]: feature for feature in description["features"]}

    def of_tokens(column: dict[str, Any], feature: dict[str, Any], value: Any) -> Any:
        tokens, combine = tf.strings.split(value, feature["separator"]), column.get("combiner", "mean")
        if "number" in column:
            read = tf.strings.to_number(tokens.values)[:, None]
        else:
            ids = tf.strings.to_hash_bucket_fast(tokens.values, column["hash"])
            if combine == "sequence":
                steps = feature["truncate"]
                placed = tokens.with_values(ids + column["first_id"])[:, :steps]
                return placed.to_tensor(column.get("pad", 0), shape=(None, steps))
            read = tf.gather(tables[column["table"]], ids)
        return (tf.math.segment_sum if combine == "sum" else tf.math.segment_mean)(read, tokens.value_rowids())

    @tf.function
    def run(values: dict[str, Any]) -> Any:
        parts = {}
        for column in description["columns"]:
            feature, value = features[column["feature"]], values[column["feature"]]
            if feature["kind"] == "tokens":
                part = of_tokens(column, feature, value)
            elif "boundaries" in column:
                index = tf.raw_ops.Bucketize(input=value, boundaries=column["boundaries"])
                part = tf.gather(tables[column["table"]], index)
            elif "hash" in column:
                text = value if feature["kind"] == "string" else tf.strings.as_string(value)
                index = tf.strings.to_hash_bucket_fast(text, column["hash"])
                part = tf.gather(tables[column["table"]], index) if "table" in column else index + column["first_id"]
            else:
                part = tf.reshape(value, (tf.shape(value)[0], -1))
            parts[column.get("name", column["feature"])] = part
        groups = [[parts[name] for name in joined["columns"]] for joined in description["inputs"]]
        return [tf.concat(group, 1) if len(group) > 1 else group[0] for group in groups]

    constants = {name: tf.constant(value) for name, value in feeds.items()}
    signature = {name: tf.TensorSpec([None], value.dtype, name) for name, value in constants.items()}
    concrete = run.get_concrete_function(signature)
    return lambda: [joined.numpy() for joined in concrete(constants)]


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    use_threads(int(sys.argv[2]))
    description = tomllib.loads(Path(sys.argv[1]).read_text("utf-8"))
    with np.load(sys.argv[3]) as raw:
        run = graph(description, {name: raw[name].ravel() for name in raw.files})
    run()
    serve_turns(run)


if __name__ == "__main__":
    main()

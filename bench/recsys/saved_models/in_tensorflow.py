"""TensorFlow's side of `bench.recsys.saved_models`, for a Python that has TensorFlow and not this project.

    python -m bench.recsys.saved_models.in_tensorflow write MODEL columns|keras FOLDER
    python -m bench.recsys.saved_models.in_tensorflow run FOLDER THREADS FEEDS.npz SCORES.npy

`write` writes a SavedModel and prints how many operators it runs. `run` saves the scores of the feeds, prints `ready`
and answers each line that it reads with the median of one turn in ms.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.recsys.saved_models.shapes import (
    BUCKETS,
    DENSE,
    DIM,
    EDGES,
    LARGE_DIM,
    LARGE_ROWS,
    MODELS,
    MOST_TOKENS,
    Recommender,
)
from bench.recsys.tensorflow_process import serve_turns, use_threads

NO_WORK = ("Placeholder", "Const", "Identity", "NoOp", "VarHandleOp", "ReadVariableOp", "VariableV2")


def write_columns(model: Recommender, folder: str) -> None:
    """`tf.feature_column`s before a tower, as an estimator exports them."""
    import tensorflow as tf

    v1, fc = tf.compat.v1, tf.feature_column
    with tf.Graph().as_default():
        v1.set_random_seed(0)
        features: dict[str, Any] = {}
        columns = []
        for kind, name in model.named():
            if kind == "bucket":
                features[name] = v1.placeholder(tf.float32, [None, 1], name)
                column = fc.bucketized_column(fc.numeric_column(name), EDGES.tolist())
            else:
                dtype = tf.int64 if kind == "int" else tf.string
                many = MOST_TOKENS if kind in ("tokens", "large") else 1
                features[name] = v1.placeholder(dtype, [None, many], name)
                rows = LARGE_ROWS if kind == "large" else BUCKETS
                column = fc.categorical_column_with_hash_bucket(name, rows, dtype)
            columns.append(fc.embedding_column(column, LARGE_DIM if kind == "large" else DIM, combiner="mean"))
        dense = v1.placeholder(tf.float32, [None, DENSE], "dense")
        hidden = tf.concat([dense, v1.feature_column.input_layer(features, columns)], 1)
        for place, width in enumerate((*model.tower, 1)):
            weights = v1.get_variable(f"w{place}", [hidden.shape[1], width])
            hidden = tf.matmul(hidden, weights) + v1.get_variable(f"b{place}", [width])
            hidden = tf.nn.relu(hidden) if place < len(model.tower) else tf.sigmoid(hidden)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.tables_initializer()])
            v1.saved_model.simple_save(session, folder, {**features, "dense": dense}, {"score": hidden})


def write_keras(model: Recommender, folder: str) -> None:
    """Keras preprocessing layers and embeddings before a tower."""
    import keras

    keras.utils.set_random_seed(0)
    inputs = {"dense": keras.Input((DENSE,), name="dense")}
    parts = [inputs["dense"]]
    for kind, name in model.named():
        if kind == "bucket":
            inputs[name] = keras.Input((1,), name=name)
            ids, rows = keras.layers.Discretization(EDGES.tolist())(inputs[name]), len(EDGES) + 1
        else:
            many = MOST_TOKENS if kind in ("tokens", "large") else 1
            inputs[name] = keras.Input((many,), name=name, dtype="int64" if kind == "int" else "string")
            rows = LARGE_ROWS if kind == "large" else BUCKETS
            masked = {"mask_value": ""} if many > 1 else {}
            ids = keras.layers.Hashing(rows, **masked)(inputs[name])
        several = kind in ("tokens", "large")
        table = keras.layers.Embedding(rows, LARGE_DIM if kind == "large" else DIM, mask_zero=several)(ids)
        pooled = keras.layers.GlobalAveragePooling1D() if several else keras.layers.Flatten()
        parts.append(pooled(table))
    hidden = keras.layers.Concatenate()(parts)
    for place, width in enumerate(model.tower):
        hidden = keras.layers.Dense(width, activation="relu", name=f"tower{place}")(hidden)
    score = keras.layers.Dense(1, activation="sigmoid", name="score")(hidden)
    keras.Model(inputs, {"score": score}).export(folder, verbose=False)


def signature_of(folder: str) -> Any:
    """The default signature, and what keeps its variables."""
    import tensorflow as tf

    loaded = tf.saved_model.load(folder)
    return loaded.signatures["serving_default"], loaded


def count_operators(folder: str) -> int:
    """Operators that a run of the signature works on, those of the functions that it calls among them."""
    signature, _ = signature_of(folder)
    definition = signature.graph.as_graph_def()
    library = {function.signature.name: function for function in definition.library.function}

    def count(nodes: Any) -> int:
        total = 0
        for node in nodes:
            if "f" in node.attr and "PartitionedCall" in node.op:
                total += count(library[node.attr["f"].func.name].node_def)
            elif node.op not in NO_WORK:
                total += 1
        return total

    return count(definition.node)


def load_run(folder: str, threads: int, feeds_file: str) -> Callable[[], Any]:
    import tensorflow as tf

    use_threads(threads)
    signature, kept = signature_of(folder)
    with np.load(feeds_file) as feeds:
        given = {
            name: tf.constant(feeds[name].astype(object) if feeds[name].dtype.kind == "S" else feeds[name])
            for name in feeds.files
        }
    return lambda: (signature(**given)["score"].numpy(), kept)[0]


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    if sys.argv[1] == "write":
        _, _, name, spelling, folder = sys.argv
        {"columns": write_columns, "keras": write_keras}[spelling](MODELS[name], folder)
        print(count_operators(folder))
        return
    _, _, folder, threads, feeds, scores = sys.argv
    run = load_run(folder, int(threads), feeds)
    np.save(scores, run())
    serve_turns(run)


if __name__ == "__main__":
    main()

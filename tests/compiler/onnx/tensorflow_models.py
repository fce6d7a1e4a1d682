"""Writes a SavedModel of the tests, its inputs and TensorFlow's outputs; run by a Python that has TensorFlow.

    PYTHON tensorflow_models.py KIND FOLDER

FOLDER gets `KIND/saved_model.pb` and `KIND.npz`, whose entries are `in.NAME` and `out.NAME`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

ROWS = 7


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    kind, folder = sys.argv[1], Path(sys.argv[2])
    keras, chance = tf.keras, np.random.default_rng(0)
    tf.random.set_seed(0)

    def embedded(ids: object, rows: int) -> object:
        random = keras.initializers.RandomNormal(seed=rows)
        return keras.layers.Flatten()(keras.layers.Embedding(rows, 8, embeddings_initializer=random)(ids))

    age = keras.Input((1,), name="age")
    texts = [b"Rome", b"", "Zürich".encode(), b"a" * 70, b"Oslo", b"Bonn", b"Rome"]
    if kind == "dense":
        user = keras.Input((1,), name="user", dtype="int64")
        inputs = [age, user]
        columns = [age, embedded(user, 100)]
        feeds = {"user": chance.integers(0, 100, (ROWS, 1))}
    elif kind == "hashed":
        city, item = keras.Input((1,), name="city", dtype="string"), keras.Input((1,), name="item", dtype="int64")
        inputs = [age, city, item]
        columns = [age, embedded(keras.layers.Hashing(20)(city), 20), embedded(keras.layers.Hashing(50)(item), 50)]
        feeds = {"city": np.array(texts, object)[:, None], "item": chance.integers(-(1 << 40), 1 << 40, (ROWS, 1))}
    elif kind == "layers":
        city = keras.Input((1,), name="city", dtype="string")
        words = keras.layers.StringLookup(vocabulary=["Rome", "Oslo", "Zürich"])
        edges = keras.layers.Discretization(bin_boundaries=[-0.5, 0.0, 1.0])
        inputs = [age, city]
        columns = [embedded(edges(age), 4), embedded(words(city), 5)]
        feeds = {"city": np.array(texts, object)[:, None]}
    else:
        raise SystemExit(f"no model {kind}")
    feeds["age"] = chance.standard_normal((ROWS, 1)).astype(np.float32)
    hidden = keras.layers.Dense(16, activation="relu")(keras.layers.Concatenate()(columns))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.export(folder / kind, verbose=False)
    signature = tf.saved_model.load(folder / kind).signatures["serving_default"]
    outputs = signature(**{name: tf.constant(value) for name, value in feeds.items()})
    found = {f"out.{name}": value.numpy() for name, value in outputs.items()}
    given = {f"in.{n}": v.astype(bytes) if v.dtype.hasobject else v for n, v in feeds.items()}
    np.savez(folder / f"{kind}.npz", **given, **found)


if __name__ == "__main__":
    main()

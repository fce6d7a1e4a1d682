"""Writes a SavedModel of the tests, its inputs and TensorFlow's outputs; run by a Python that has TensorFlow.

    PYTHON tensorflow_models.py KIND FOLDER

FOLDER gets `KIND/saved_model.pb` and `KIND.npz`, whose entries are `in.NAME` and `out.NAME`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

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
    elif kind == "several":  # texts a row, crosses, salts, one-hots of whole numbers, remainders of negative ones
        layers = keras.layers
        tags, city = (keras.Input((n,), name=name, dtype="string") for n, name in ((3, "tags"), (1, "city")))
        item = keras.Input((1,), name="item", dtype="int64")
        words = layers.StringLookup(vocabulary=["Rome", "Oslo"], num_oov_indices=3, mask_token="")
        known = layers.IntegerLookup(vocabulary=[3, 9], num_oov_indices=2, mask_token=-1, output_mode="one_hot")
        rows = layers.Embedding(6, 8, embeddings_initializer=keras.initializers.RandomNormal(seed=1))(words(tags))
        inputs = [age, tags, city, item]
        columns = [age, layers.GlobalAveragePooling1D()(rows), known(item)]
        columns += [embedded(layers.HashedCrossing(9)((city, item)), 9)]
        columns += [embedded(layers.Hashing(12, salt=[133, 137])(city), 12)]
        feeds = {"city": np.array(texts, object)[:, None], "item": np.array([[-1], [3], [9], [-7], [2**40], [-8], [0]])}
        feeds["tags"] = np.array([texts[i:] + texts[:i] for i in range(3)], object).T
    elif kind == "crossed":  # intervals crossed with texts and with places of keys, texts in another case
        layers = keras.layers
        tags, city = (keras.Input((n,), name=name, dtype="string") for n, name in ((2, "tags"), (1, "city")))
        interval = layers.Discretization(bin_boundaries=[20.0, 40.0])(age)
        place = layers.StringLookup(vocabulary=["Rome", "Oslo"])(city)
        clean = layers.Lambda(lambda text: tf.strings.lower(tf.strings.strip(text)), output_shape=(1,))(city)
        inputs = [age, tags, city]
        columns = [age, embedded(layers.HashedCrossing(9)((interval, city)), 9)]
        columns += [embedded(layers.HashedCrossing(11)((place, interval)), 11)]
        columns += [embedded(layers.Hashing(12)(clean), 12), embedded(layers.Hashing(7)(tags), 7)]
        feeds = {"city": np.array(texts, object)[:, None], "tags": np.array([texts, texts[::-1]], object).T}
    elif kind == "words":  # texts that are cleaned and split: sequences, sums, words that count once; several intervals
        layers = keras.layers
        title, body = (keras.Input((1,), name=name, dtype="string") for name in ("title", "body"))
        ages = keras.Input((3,), name="ages")
        words = ["the", "cat", "café", "dont"]

        def vectors(text: Any, **how: Any) -> Any:
            return layers.TextVectorization(vocabulary=words, **how)(text)

        normal = keras.initializers.RandomNormal(seed=1)
        first = layers.Embedding(6, 8, embeddings_initializer=normal)(vectors(title, output_sequence_length=4))
        bins = layers.Embedding(4, 8, embeddings_initializer=normal)(layers.Discretization([-0.5, 0.0, 1.0])(ages))
        weights = {"output_mode": "tf_idf", "idf_weights": [0.5, 1.0, 2.0, 3.0]}
        inputs = [age, title, body, ages]
        pooled = [layers.GlobalAveragePooling1D()(rows) for rows in (first, bins)]
        columns = [age, *pooled, layers.GlobalMaxPooling1D()(first)]
        columns += [layers.Flatten()(vectors(body, **how)) for how in (weights, {"output_mode": "multi_hot"})]
        odd = [b"The cat! sat", b"", b" ?! ", "CAFÉ café don't the\tcat".encode(), b"cat " * 60, b"x", b"the-cat the"]
        feeds = {"title": np.array(odd, object)[:, None], "body": np.array(odd[::-1], object)[:, None]}
        feeds["ages"] = np.array([[-1, 0, 1], [np.nan, np.inf, -np.inf], *[[0.5, -0.5, 2]] * 5], np.float32)
    elif kind == "characters":  # of texts in UTF-8 that is not always well-formed
        title = keras.Input((1,), name="title", dtype="string")
        split = {"split": "character", "vocabulary": ["a", "é", "\ufffd", "c"]}
        first = keras.layers.TextVectorization(output_sequence_length=4, **split)(title)
        normal = keras.initializers.RandomNormal(seed=1)
        rows = keras.layers.Embedding(6, 8, embeddings_initializer=normal)(first)
        counts = keras.layers.TextVectorization(output_mode="count", standardize=None, **split)(title)
        inputs, columns = [age, title], [age, *map(keras.layers.Flatten(), (rows, counts))]
        odd = [b"A\xc3!\xa9c", b"", b"!", "CaFÉ é\0a".encode(), b"\xed\xa0\x80a", b"\xf0\x9f\x99", b"ac" * 40]
        feeds = {"title": np.array(odd, object)[:, None]}
    elif kind == "absent":
        save_absent(tf, folder)
        return
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


def save_absent(tf: Any, folder: Path) -> None:
    """Values that may be absent, as `tf.feature_column`s have them: safe look-ups, indicators; and IntegerLookup."""
    chance = np.random.default_rng(1)
    texts = np.array([b"Rome", b"", b"a\0b", "Zürich".encode(), b"a" * 70, b"", b"Bonn"], object)[:, None]
    numbers = np.array([-1, 3, 2**40, -(2**63), -1, 5, 9])[:, None]
    tables = [tf.Variable(chance.standard_normal((rows, 4)).astype(np.float32)) for rows in (20, 30, 3)]
    known = tf.keras.layers.IntegerLookup(vocabulary=[3, 2**40], num_oov_indices=1)

    def present(values: Any, absent: Any) -> Any:
        places = tf.where(tf.not_equal(values, absent))
        return tf.SparseTensor(places, tf.gather_nd(values, places), tf.shape(values, tf.int64))

    def look_up(table: Any, values: Any, buckets: int) -> Any:
        texts = values.values if values.values.dtype == tf.string else tf.strings.as_string(values.values)
        ids = tf.SparseTensor(values.indices, tf.strings.to_hash_bucket_fast(texts, buckets), values.dense_shape)
        return tf.nn.safe_embedding_lookup_sparse(table, ids, combiner="mean")

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables, self.known = tables, known

        @tf.function(
            input_signature=[
                tf.TensorSpec([None, 1], tf.string, "city"),
                *(tf.TensorSpec([None, 1], tf.int64, name) for name in ("item", "kind", "level")),
            ]
        )
        def score(self, city: Any, item: Any, kind: Any, level: Any) -> Any:
            parts = [look_up(tables[0], present(city, ""), 20), look_up(tables[1], present(item, -1), 30)]
            parts.append(tf.gather(tables[2], self.known(kind)[:, 0]))
            parts.append(tf.one_hot(tf.where(level[:, 0] < 10, level[:, 0], -1), 10))
            return {"score": tf.concat(parts, 1)}

    model = Model()
    tf.saved_model.save(model, folder / "absent", signatures=model.score)
    given = {"in.city": texts, **{f"in.{name}": numbers for name in ("item", "kind", "level")}}
    found = model.score(*map(tf.constant, given.values()))["score"].numpy()
    given["in.city"] = texts.astype(bytes)
    np.savez(folder / "absent.npz", **given, **{"out.score": found})


if __name__ == "__main__":
    main()

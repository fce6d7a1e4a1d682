"""OneHotSum as TensorFlow's users write it, in a Python of its own.

    python -m bench.recsys.atrec.tensorflow_one_hots THREADS DEPTH FEEDS.npz

FEEDS.npz holds the ids of each column, (rows, look-ups), and where a dense layer follows its weights `w`. Prints
`ready`, then times one turn for each line that it reads, in ms.
"""

from __future__ import annotations

import os
import sys

import numpy as np

from bench.recsys.tensorflow_process import serve_turns, use_threads


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    threads, depth = int(sys.argv[1]), int(sys.argv[2])
    use_threads(threads)
    with np.load(sys.argv[3]) as feeds:
        columns = [tf.constant(feeds[name]) for name in feeds.files if name != "w"]
        weights = tf.constant(feeds["w"]) if "w" in feeds.files else None

    @tf.function(input_signature=[[tf.TensorSpec(ids.shape, ids.dtype) for ids in columns]])
    def graph(columns):  # type: ignore[no-untyped-def]
        sums = tf.concat([tf.reduce_sum(tf.one_hot(ids, depth), 1) for ids in columns], 1)
        return sums if weights is None else tf.matmul(sums, weights)

    def run() -> object:
        return graph(columns).numpy()

    run()
    serve_turns(run)


if __name__ == "__main__":
    main()

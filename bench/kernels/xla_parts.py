"""Memory-bound parts in XLA's kernels, in a Python of its own that has TensorFlow.

    python -m bench.kernels.xla_parts THREADS FILE.json …

Prints one JSON object a line for each file that `bench.kernels.memory_bound_parts` wrote: the median time of a call in
ms, and the kernels that XLA made.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.recsys.embedding_tables import timed

BUDGET_S = 0.5
NO_KERNEL = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy")


def operators(tf: Any) -> Mapping[str, Callable[..., Any]]:
    """TensorFlow's functions for the operators of the stitching language."""
    flag = {name: getattr(tf, name) for name in ("less", "less_equal", "equal")}
    return {
        "add": tf.add,
        "sub": tf.subtract,
        "mul": tf.multiply,
        "div": tf.divide,
        "min": tf.minimum,
        "max": tf.maximum,
        "neg": tf.negative,
        "reciprocal": lambda a: 1.0 / a,
        "where": lambda c, a, b: tf.where(c > 0.5, a, b),
        **{name: getattr(tf, name) for name in ("abs", "exp", "tanh", "sigmoid", "sqrt")},
        "log": tf.math.log,
        "erf": tf.math.erf,
        **{name: lambda a, b, f=f: tf.cast(f(a, b), tf.float32) for name, f in flag.items()},
    }


def compile_part(tf: Any, part: Mapping[str, Any]) -> Any:
    """The part as a function that XLA compiles."""
    functions = operators(tf)
    constants = {
        name: np.array(values, dtype).reshape(shape).astype(np.float32)
        for name, (dtype, shape, values) in part["constants"].items()
    }

    @tf.function(jit_compile=True)
    def run(feeds: dict[str, Any]) -> list[Any]:
        known = {name: tf.constant(array) for name, array in constants.items()}
        known |= {name: tf.cast(value, tf.float32) for name, value in feeds.items()}
        stored = {}
        for output, kind, terms, shape, axes, outside in part["ops"]:
            values = [known[t] if isinstance(t, str) else tf.constant(t, tf.float32) for t in terms]
            if axes:
                known[output] = getattr(tf, kind)(values[0], axis=axes, keepdims=True)
            else:
                known[output] = tf.broadcast_to(functions[kind](*values), shape)
            stored[output] = tf.reshape(known[output], outside)
            if outside != shape:
                known[output] = stored[output]
        return [stored[name] for name in part["outputs"]]

    return run


def count_kernels(text: str) -> int:
    """Instructions of the entry computation that compute something."""
    entry = text[text.index("\nENTRY ") :]
    found = re.findall(r"= (?:\([^=]*?\)|\S+) ([a-z][a-z0-9-]*)\(", entry)
    return sum(kind not in NO_KERNEL for kind in found)


def main() -> None:
    import tensorflow as tf

    threads, *files = sys.argv[1:]
    tf.config.threading.set_intra_op_parallelism_threads(int(threads))
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rng = np.random.default_rng(0)
    for file in files:
        part = json.loads(Path(file).read_text())
        feeds = {
            name: tf.constant((rng.standard_normal(shape) * (1 if "float" in dtype else 4)).astype(dtype))
            for name, dtype, shape in part["inputs"]
        }
        run = compile_part(tf, part)
        kernels = count_kernels(run.experimental_get_compiler_ir(feeds)(stage="optimized_hlo"))
        ms = timed(lambda run=run, feeds=feeds: [value.numpy() for value in run(feeds)], BUDGET_S)
        print(json.dumps({"ms": ms, "kernels": kernels}), flush=True)


if __name__ == "__main__":
    main()

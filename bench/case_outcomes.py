"""What becomes of a small model that is compiled and run beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

import veltair
from veltair.compiler.pipeline import TOLERANCE
from veltair.compiler.tuning.correctness import largest_errors
from veltair.errors import VeltairError

BAD = ("wrong", "crashes", "hangs", "unnamed")
Arrays = Mapping[str, NDArray[Any]]
Runs = Sequence[tuple[Arrays, Iterable[NDArray[Any]]]]  # inputs by name, and outputs in the model's order


def outcome(
    folder: Path,
    model: onnx.ModelProto,
    runs: Runs,
    *,
    precision: Literal["fp32", "bf16"] = "fp32",
    tolerance: float | None = None,
    **options: Any,
) -> str:
    """`ours`, `with ONNX Runtime`, or what is wrong or refused, and why.

    tolerance: of `difference`; by default that of the precision. options: of `veltair.compile`.
    """
    allowed = TOLERANCE[precision] if tolerance is None else tolerance
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(model, str(path))
    try:
        artifact = veltair.compile(path, folder / "artifact", trials=0, precision=precision, **options)
        with veltair.load(artifact) as run:
            for feeds, wanted in runs:
                found = run({port.name: feeds[port.name] for port in artifact.inputs})
                outputs = {port.name: found[port.name] for port in model.graph.output}
                if fault := difference(outputs, wanted, allowed):
                    shapes = ", ".join(f"{name} {feed.shape}" for name, feed in feeds.items())
                    return f"wrong: {fault} (from {shapes})"
    except VeltairError as error:
        return f"refused: {str(error).replace(str(path), path.name)[:300]}"
    except Exception as error:  # what has no name of ours is what this looks for
        return f"unnamed: {type(error).__name__}: {str(error)[:300]}"
    fallback = any(layer.op == "onnxruntime" for layer in artifact.manifest.layers)
    return "with ONNX Runtime" if fallback else "ours"


def right_outputs(model: onnx.ModelProto, feeds: Arrays, *, optimised: bool = True) -> dict[str, NDArray[Any]]:
    """What ONNX Runtime gives, in the model's order; it raises its own types. optimised: with its own rewritings."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return dict(zip([port.name for port in session.get_outputs()], session.run(None, dict(feeds)), strict=True))


def difference(found: Mapping[str, Any], wanted: Iterable[NDArray[Any]], tolerance: float) -> str | None:
    """What differs between outputs by name and those that are right, in the same order.

    tolerance: the error that may be, over an output's largest value.
    """
    for (name, value), right in zip(found.items(), wanted, strict=True):
        result = np.asarray(value)
        if result.shape != right.shape:
            return f"{name} has shape {result.shape}, expected {right.shape}"
        if result.dtype != right.dtype:
            return f"{name} is {result.dtype}, expected {right.dtype}"
        if right.dtype.hasobject:
            if differing := int((result != right).sum()):
                return f"{name} has {differing} other texts"
            continue
        _, error = largest_errors(result, right)
        if not error <= tolerance:
            return f"{name} is off by {error:.2g} of its largest value"
    return None

"""ONNX Runtime's basic optimisations of a model; large constants stay in files throughout.

A BERT-Large of 1.3 GB took 6.9 GB of memory while each step made a copy of its own.
"""

from __future__ import annotations

import math
import mmap
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from veltair.compiler.onnx.constants import MAPPED_BYTES
from veltair.errors import ModelError


def save_model(proto: onnx.ModelProto, file: Path) -> Path:
    """Write the model to `file`, and its large constants to another file beside it; `proto` loses them."""
    options: dict[str, Any] = {"save_as_external_data": True, "size_threshold": MAPPED_BYTES}
    onnx.save(proto, str(file), location=f"{file.name}.weights", **options)
    return file


def simplify_model(proto: onnx.ModelProto, path: Path, folder: Path) -> tuple[onnx.ModelProto, dict[str, NDArray[Any]]]:
    """Return the model after ONNX Runtime's basic optimisations, and its constants.

    Large constants pass through files in the folder and stay mapped, so that they are never all in memory.
    """
    out, weights = folder / "simple.onnx", folder / "simple.weights"
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    prefix = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{prefix}_file_name", weights.name)
    options.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(MAPPED_BYTES))
    try:
        ort.InferenceSession(str(save_model(proto, folder / "given.onnx")), options, providers=["CPUExecutionProvider"])
        simple = onnx.load(str(out), load_external_data=False)
    except Exception as error:
        raise ModelError(f"{path}: {describe_error(error)}") from None
    content: bytes | mmap.mmap = b""
    if weights.exists():
        with weights.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # it outlives the file's name
    return simple, {tensor.name: _constant(tensor, content) for tensor in simple.graph.initializer}


def _constant(tensor: onnx.TensorProto, content: bytes | mmap.mmap) -> NDArray[Any]:
    """The tensor's values; those of an external tensor lie in `content`."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return np.asarray(numpy_helper.to_array(tensor))
    offset = int(next(entry.value for entry in tensor.external_data if entry.key == "offset"))
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.frombuffer(content, dtype, math.prod(tensor.dims), offset).reshape(tuple(tensor.dims))


def describe_error(error: Exception) -> str:
    """The message of ONNX or ONNX Runtime in one line, without references to their source files.

    >>> describe_error(Exception("Load model from /tmp/given.onnx failed:Unsupported model IR version: 14"))
    'Unsupported model IR version: 14'
    """
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"/\S+\.(?:h|cc):\d+ .*?\) (?=[A-Z])", "", text)
    text = re.sub(r"^Load model from .*? failed: ?", "", text)  # from a copy of it, whose path says nothing
    return text[:300] or type(error).__name__

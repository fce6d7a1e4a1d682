"""A file of floats with products of 8-bit integers, by ONNX Runtime's static quantisation.

ONNX Runtime's tool runs the model on samples, takes the least and the greatest value of each tensor, and writes a file
with QuantizeLinear and DequantizeLinear. Its settings are what `kernels.int8` takes best: activations in uint8, which
its products read as they are; weights in int8 around zero, with a scale for each output channel; batch norms are folded
before, since they change these scales.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.quant_utils import add_pre_process_metadata
from rich.progress import Progress

from veltair.compiler.onnx.onnx_model import parse_model, up_to_date
from veltair.compiler.onnx.shape_inference import inferable
from veltair.compiler.onnx.simplify import describe_error, simplify_model
from veltair.compiler.quantisation.chosen_nodes import CHOSEN, PRODUCTS, is_quantised, left_in_floats, read_unrounded
from veltair.compiler.quantisation.samples import Samples, SampleSource, model_inputs, read_samples
from veltair.errors import DataError, ModelError

LARGE_BYTES = 1 << 30  # constants of more than this go to a file beside the model, as a protobuf holds 2 GB
OVERFLOW = "expected samples whose results are finite; with these, some overflow"
BAD_SCALE = "scale issue"  # how the tool asserts that a range holds no NaN
FLOAT_OUTPUTS = ["MatMul", "Gemm"]  # what reads dense layers is mostly no product: they give floats, or round them last


class _Feeds(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: Samples, progress: Progress) -> None:
        self._left, self._progress = samples.feeds(), progress
        self._task = progress.add_task("calibrating: samples", total=samples.runs)

    def get_next(self) -> dict[str, Any] | None:
        feed = next(self._left, None)
        if feed is not None:
            self._progress.advance(self._task)
        return feed


def calibrate(path: Path, source: SampleSource, folder: Path, progress: Progress | None = None) -> tuple[Path, int]:
    """Write the quantised model of a file into a folder; its path, and the number of samples.

    ::

        calibrate(Path("resnet50.onnx"), "images.npz", Path(scratch))

    source: samples of the model's inputs; see `read_samples`.

    Raises ModelError where the file is quantised already, has no product that 8-bit integers compute, or cannot be run
    on the samples; DataError for samples that are not the model's, or that make it overflow. The file must have passed
    `load_model`.
    """
    proto = parse_model(path)
    if is_quantised(proto):
        raise ModelError(f"{path}: is quantised already; compile it without samples to calibrate with")
    samples = read_samples(source, model_inputs(proto.graph))
    metadata = list(proto.metadata_props)
    target = folder / f"{path.stem}.onnx"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        simple = _simplified(path, proto, Path(scratch))
        _check_types(simple.graph, path)
        ranks = _ranks(Path(scratch))
        excluded = left_in_floats(simple.graph, ranks)
        if not any(node.op_type in PRODUCTS and node.name not in excluded for node in simple.graph.node):
            raise ModelError(
                f"{path}: has no convolution or dense layer that 8-bit integers compute; compile it in fp32 or bf16"
            )
        large = simple.ByteSize() > LARGE_BYTES
        try:
            with _quiet():
                quantize_static(
                    simple,
                    target,
                    _Feeds(samples, progress or Progress(disable=True)),
                    quant_format=QuantFormat.QDQ,
                    activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8,
                    per_channel=True,
                    op_types_to_quantize=sorted(CHOSEN),
                    nodes_to_exclude=excluded,
                    use_external_data_format=large,
                    extra_options={"OpTypesToExcludeOutputQuantization": FLOAT_OUTPUTS},
                )
        except Exception as error:  # ONNX and ONNX Runtime raise types of their own
            if isinstance(error, AssertionError) and str(error) == BAD_SCALE:
                raise DataError(f"{path}: {OVERFLOW}") from None
            raise ModelError(f"{path}: cannot be calibrated: {describe_error(error)}") from None
    made = onnx.load(target, load_external_data=False)
    _check_scales(made.graph, path)
    read_unrounded(made.graph, ranks)
    kept = {entry.key for entry in made.metadata_props}
    made.metadata_props.extend(entry for entry in metadata if entry.key not in kept)
    onnx.save(made, target)
    return target, samples.runs


def _check_types(graph: onnx.GraphProto, path: Path) -> None:
    """Raises ModelError where ONNX's inference, which the tool asks too, would end the process."""
    told = {node.output[0] for node in inferable(graph)}
    for node in graph.node:
        if node.output[0] not in told:
            raise ModelError(f"{path}: node {node.name!r}: cannot be calibrated: the type of its input is not known")


def _check_scales(graph: onnx.GraphProto, path: Path) -> None:
    """Raises DataError where samples made a tensor overflow: its range is no number, and neither is its scale."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[1] in constants:
            scale = onnx.numpy_helper.to_array(constants[node.input[1]])
            if not (np.isfinite(scale).all() and (scale > 0).all()):
                raise DataError(f"{path}: tensor {node.input[0]!r}: {OVERFLOW}")


def _simplified(path: Path, proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The model with its batch norms folded, every node named, and the shapes of all tensors."""
    onnx.external_data_helper.load_external_data_for_model(proto, str(path.parent))
    simplify_model(up_to_date(proto, path, folder), path, folder)
    simple = onnx.load(folder / "simple.onnx")
    for index, node in enumerate(simple.graph.node):
        node.name = f"{node.name or node.op_type}_{index}"
    add_pre_process_metadata(simple)
    return simple


def _ranks(folder: Path) -> dict[str, int]:
    """How many dimensions each tensor of the simplified model has, as far as shape inference tells."""
    onnx.shape_inference.infer_shapes_path(folder / "simple.onnx", folder / "inferred.onnx")
    graph = onnx.load(folder / "inferred.onnx", load_external_data=False).graph
    values = [*graph.value_info, *graph.input, *graph.output]
    return {value.name: len(value.type.tensor_type.shape.dim) for value in values}


@contextmanager
def _quiet() -> Iterator[None]:
    """The tool gives advice by the root logger, and numpy warns of its NaNs, which its caller did not ask for."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        logging.disable(before)

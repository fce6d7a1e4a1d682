"""The models that can be built, by name, and how they reach the disk whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import onnx

from veltair.errors import ConfigError
from veltair.zoo import (
    bert,
    dlrm,
    efficientnet_b0,
    external,
    googlenet,
    mobilenet_v2,
    resnet50,
    ssd300,
    ssd_mobilenet,
    tiny_yolov2,
)
from veltair.zoo.dlrm import DlrmShape
from veltair.zoo.external import Progress


@dataclass(frozen=True, slots=True)
class Entry:
    """What there is to say of a model before it is built."""

    parameters: int  # weights, biases, norms' scales and shifts
    gflops: float  # of a query of one; a multiply-add counts as two
    input: str
    source: str


IMAGE_MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "resnet50": resnet50.build,
    "googlenet": googlenet.build,
    "efficientnet_b0": efficientnet_b0.build,
    "mobilenet_v2": mobilenet_v2.build,
    "ssd300": ssd300.build,
    "ssd_mobilenet": ssd_mobilenet.build,
    "tiny_yolov2": tiny_yolov2.build,
}
BERTS: Mapping[str, bert.BertShape] = {"bert_base": bert.BASE, "bert_large": bert.LARGE}
ZOO: Mapping[str, Entry] = {
    "resnet50": Entry(25_557_032, 8.178, "3x224x224", "He 2015, torchvision"),
    "googlenet": Entry(6_624_904, 2.997, "3x224x224", "Szegedy 2014, torchvision"),
    "efficientnet_b0": Entry(5_288_548, 0.772, "3x224x224", "Tan 2019, torchvision"),
    "mobilenet_v2": Entry(3_504_872, 0.602, "3x224x224", "Sandler 2018, torchvision"),
    "ssd300": Entry(35_641_826, 69.716, "3x300x300", "Liu 2015, torchvision"),
    "ssd_mobilenet": Entry(6_819_839, 2.474, "3x300x300", "Howard 2017, MLPerf"),
    "tiny_yolov2": Entry(15_861_773, 6.971, "3x416x416", "Redmon 2016, darknet"),
    "bert_base": Entry(108_893_186, 70.667, "384 tokens", "Devlin 2018, Hugging Face"),
    "bert_large": Entry(334_094_338, 246.425, "384 tokens", "Devlin 2018, MLPerf"),
    "dlrm": Entry(DlrmShape().parameters, 0.0000967, "13 + 8x80 ids", "Naumov 2019, RM1"),
}


def write(
    name: str,
    path: Path,
    seed: int = 0,
    shape: DlrmShape | None = None,
    progress: Progress = lambda done, total: None,
) -> list[Path]:
    """Builds a model of `ZOO` at `path`; the files written. The same arguments give the same bytes.

    What is too large for one message, DLRM's tables and BERT's matrices, goes to `<path>.data`, with progress in
    bytes. shape: DLRM's, the default `DlrmShape()` when None.
    ConfigError for an unknown name, a negative seed, a shape for another model, or a place that cannot be written.
    """
    if name not in ZOO:
        raise ConfigError(f"no model {name!r} in the zoo; there are {', '.join(ZOO)}")
    if seed < 0:
        raise ConfigError(f"seed must not be negative, got {seed}")
    if shape is not None and name != "dlrm":
        raise ConfigError(f"{name} has a fixed shape; tables, rows, dim, lookups and max_batch belong to dlrm")
    data = external.beside(path)
    try:
        with _whole(path) as file:  # the model appears last: there is never one without its external data
            proto, tensors = _built(name, seed, shape or DlrmShape(), data.name)
            file.write(proto.SerializeToString(deterministic=True))
            if not tensors:
                return [path]
            with _whole(data) as values:
                external.write(values, seed, tensors, progress)
        return [path, data]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def _built(name: str, seed: int, shape: DlrmShape, location: str) -> external.Built:
    if name in BERTS:
        return bert.build(seed, BERTS[name], location)
    if name == "dlrm":
        return dlrm.build(seed, shape, location)
    return IMAGE_MODELS[name](seed), []


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name only when it was written to the end."""
    if path.is_dir():
        raise IsADirectoryError(0, "is a folder, expected a file name")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

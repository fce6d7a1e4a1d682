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
from veltair.zoo import external_data
from veltair.zoo.external_data import Progress
from veltair.zoo.language import bert
from veltair.zoo.recommendation import dlrm
from veltair.zoo.recommendation.deepfm import DEEPFM
from veltair.zoo.recommendation.deeprecsys import NCF, RM1, RM2, RM3, WIDE_DEEP
from veltair.zoo.recommendation.dien import DIEN, DIEN_STRINGS
from veltair.zoo.recommendation.dlrm import DlrmShape
from veltair.zoo.recommendation.dlrm_dcnv2 import DLRM_DCNV2
from veltair.zoo.recommendation.elm_wdl import ELM_WDL
from veltair.zoo.recommendation.recom import RECOM_E, RECOM_F
from veltair.zoo.recommendation.table_sizes import Cut, cuts, fitted
from veltair.zoo.recommendation.towers import Recommender, recommendation
from veltair.zoo.vision import efficientnet_b0, googlenet, mobilenet_v2, resnet50, ssd300, ssd_mobilenet, tiny_yolov2


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
RECOMMENDERS: Mapping[str, Recommender] = {
    recommender.name: recommender
    for recommender in (
        RM1,
        RM2,
        RM3,
        WIDE_DEEP,
        NCF,
        DEEPFM,
        DIEN,
        DIEN_STRINGS,
        DLRM_DCNV2,
        RECOM_E,
        RECOM_F,
        ELM_WDL,
    )
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
    # Tables as published: `cut` says what this machine leaves of them.
    "dlrm_rm1": Entry(1_024_100_833, 0.000201, "128 + 8x80 ids", "Gupta 2020, DeepRecSys"),
    "dlrm_rm2": Entry(1_024_319_937, 0.000639, "256 + 32x120 ids", "Gupta 2020, DeepRecSys"),
    "dlrm_rm3": Entry(643_205_409, 0.006407, "2560 + 10x20 ids", "Gupta 2020, DeepRecSys"),
    "wide_deep": Entry(866_066_433, 0.004129, "512 + 27 ids", "Cheng 2016, DeepRecSys"),
    "ncf": Entry(21_652_224, 0.000295, "2 ids", "He 2017, DeepRecSys"),
    "deepfm": Entry(4_888_673, 0.001448, "13 + 26 strings", "Guo 2017, DeepRec"),
    "dien": Entry(3_681_134, 0.000704, "3 + 2x50 ids", "Zhou 2019, AtRec"),
    "dien_strings": Entry(3_681_134, 0.000704, "3 + 2 strings", "Zhou 2019, AtRec"),
    "dlrm_dcnv2": Entry(26_151_671_809, 0.032061, "13 + 214 ids", "Wang 2021, MLPerf"),
    "recom_e": Entry(1_357_658_977, 0.019057, "1032 features", "Pan 2023, RECom"),
    "recom_f": Entry(838_296_353, 0.047091, "1232 features", "Pan 2023, RECom"),
    "elm_wdl": Entry(21_879_566, 0.002155, "36 features", "Cheng 2016, AtRec"),
}


def write(
    name: str,
    path: Path,
    seed: int = 0,
    shape: DlrmShape | None = None,
    progress: Progress = lambda done, total: None,
    rows: int | None = None,
) -> list[Path]:
    """Builds a model of `ZOO` at `path`; the files written. The same arguments give the same bytes.

    What is too large for one message, tables and BERT's matrices, goes to `<path>.data`, with progress in bytes; a
    feature description to `<stem>.features.toml`. shape: DLRM's, the default `DlrmShape()` when None. rows: at most of
    each table of a model of `RECOMMENDERS`; None: as many as this machine has room for (see `cut`).
    ConfigError for an unknown name, a negative seed, a shape or rows for another model, or a place that cannot be
    written.
    """
    if name not in ZOO:
        raise ConfigError(f"no model {name!r} in the zoo; there are {', '.join(ZOO)}")
    if seed < 0:
        raise ConfigError(f"seed must not be negative, got {seed}")
    if shape is not None and name != "dlrm":
        raise ConfigError(f"{name} has a fixed shape; tables, rows, dim, lookups and max_batch belong to dlrm")
    if rows is not None and name not in RECOMMENDERS:
        raise ConfigError(f"{name} has a fixed shape; rows belong to dlrm, {', '.join(RECOMMENDERS)}")
    if rows is not None and rows < 1:
        raise ConfigError(f"{name}: rows must be at least 1, got {rows}")
    data, description = external_data.beside(path), path.with_suffix(".features.toml")
    written = [path]
    try:
        with _whole(path) as file:  # the model appears last: there is never one without what lies beside it
            features = ""
            if name in RECOMMENDERS:
                found = recommendation(RECOMMENDERS[name], seed, data.name, rows)
                proto, tensors, features = found.proto, found.tensors, found.features
            else:
                proto, tensors = _built(name, seed, shape or DlrmShape(), data.name)
            file.write(proto.SerializeToString(deterministic=True))
            if tensors:
                written.append(data)
                with _whole(data) as values:
                    external_data.write(values, seed, tensors, progress)
            if features:
                written.append(description)
                with _whole(description) as text:
                    text.write(features.encode())
        return written
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def cut(name: str, rows: int | None = None) -> list[Cut]:
    """Which tables `write` makes smaller than published."""
    tables = RECOMMENDERS[name].tables if name in RECOMMENDERS else ()
    return cuts(tables, fitted(tables, rows))


def _built(name: str, seed: int, shape: DlrmShape, location: str) -> external_data.Built:
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

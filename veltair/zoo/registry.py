"""The models that can be built, by name, and the function that writes their files: the place to add a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import onnx

from veltair.errors import ConfigError
from veltair.machine.whole_file import whole_file
from veltair.zoo import external_tensors
from veltair.zoo.external_tensors import ExternalTensor, WriteProgress
from veltair.zoo.graphs import gcn
from veltair.zoo.graphs.gcn import GcnShape
from veltair.zoo.graphs.sampled_neighbours import FUSEDMM, GRAPHSAGE, LIGHTGCN, TRANSE
from veltair.zoo.language import bert, bigbird
from veltair.zoo.language.bert import BertShape
from veltair.zoo.recommendation import dlrm
from veltair.zoo.recommendation.deepfm import DEEPFM
from veltair.zoo.recommendation.deeprecsys import NCF, RM1, RM2, RM3, WIDE_DEEP
from veltair.zoo.recommendation.dien import DIEN, DIEN_STRINGS
from veltair.zoo.recommendation.dlrm import DlrmShape
from veltair.zoo.recommendation.dlrm_dcnv2 import DLRM_DCNV2
from veltair.zoo.recommendation.elm_wdl import ELM_WDL
from veltair.zoo.recommendation.factorization_machine import FACTORIZATION_MACHINE
from veltair.zoo.recommendation.recom import RECOM_E, RECOM_F
from veltair.zoo.recommendation.recommender import RecommenderSpec, build_recommender
from veltair.zoo.recommendation.table_sizes import TableCut, find_cuts, fit_tables
from veltair.zoo.vision import efficientnet_b0, googlenet, mobilenet_v2, resnet50, ssd300, ssd_mobilenet, tiny_yolov2

BuildModel: TypeAlias = Callable[[int], onnx.ModelProto]  # from a seed


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A model of the zoo: facts about it, and what it is built from.

    >>> ZOO["resnet50"].input
    '3x224x224'
    """

    definition: BuildModel | BertShape | DlrmShape | GcnShape | RecommenderSpec
    parameters: int  # weights, biases, norms' scales and shifts; of tables as published
    gflops: float  # of a query of one sample; a multiply-add counts as two
    input: str
    source: str

    @property
    def facts(self) -> dict[str, int | float | str]:
        return {
            "parameters": self.parameters,
            "gflops": self.gflops,
            "input": self.input,
            "source": self.source,
        }


ZOO: Mapping[str, ZooModel] = {
    "resnet50": ZooModel(resnet50.build, 25_557_032, 8.178, "3x224x224", "He 2015, torchvision"),
    "googlenet": ZooModel(googlenet.build, 6_624_904, 2.997, "3x224x224", "Szegedy 2014, torchvision"),
    "efficientnet_b0": ZooModel(efficientnet_b0.build, 5_288_548, 0.772, "3x224x224", "Tan 2019, torchvision"),
    "mobilenet_v2": ZooModel(mobilenet_v2.build, 3_504_872, 0.602, "3x224x224", "Sandler 2018, torchvision"),
    "ssd300": ZooModel(ssd300.build, 35_641_826, 69.716, "3x300x300", "Liu 2015, torchvision"),
    "ssd_mobilenet": ZooModel(ssd_mobilenet.build, 6_819_839, 2.474, "3x300x300", "Howard 2017, MLPerf"),
    "tiny_yolov2": ZooModel(tiny_yolov2.build, 15_861_773, 6.971, "3x416x416", "Redmon 2016, darknet"),
    "bert_base": ZooModel(bert.BASE, 108_893_186, 70.667, "384 tokens", "Devlin 2018, Hugging Face"),
    "bert_large": ZooModel(bert.LARGE, 334_094_338, 246.425, "384 tokens", "Devlin 2018, MLPerf"),
    "bigbird": ZooModel(bigbird.build, 2_362_368, 25.77, "4096x768", "Zaheer 2020, Hugging Face"),
    "dlrm": ZooModel(DlrmShape(), DlrmShape().parameters, 0.0000967, "13 + 8x80 ids", "Naumov 2019, RM1"),
    "dlrm_rm1": ZooModel(RM1, 1_024_100_833, 0.000201, "128 + 8x80 ids", "Gupta 2020, DeepRecSys"),
    "dlrm_rm2": ZooModel(RM2, 1_024_319_937, 0.000639, "256 + 32x120 ids", "Gupta 2020, DeepRecSys"),
    "dlrm_rm3": ZooModel(RM3, 643_205_409, 0.006407, "2560 + 10x20 ids", "Gupta 2020, DeepRecSys"),
    "wide_deep": ZooModel(WIDE_DEEP, 866_066_433, 0.004129, "512 + 27 ids", "Cheng 2016, DeepRecSys"),
    "ncf": ZooModel(NCF, 21_652_224, 0.000295, "2 ids", "He 2017, DeepRecSys"),
    "deepfm": ZooModel(DEEPFM, 4_888_673, 0.001448, "13 + 26 strings", "Guo 2017, DeepRec"),
    "dien": ZooModel(DIEN, 3_681_134, 0.000704, "3 + 2x50 ids", "Zhou 2019, AtRec"),
    "dien_strings": ZooModel(DIEN_STRINGS, 3_681_134, 0.000704, "3 + 2 strings", "Zhou 2019, AtRec"),
    "dlrm_dcnv2": ZooModel(DLRM_DCNV2, 26_151_671_809, 0.032061, "13 + 214 ids", "Wang 2021, MLPerf"),
    "recom_e": ZooModel(RECOM_E, 1_357_658_977, 0.019057, "1032 features", "Pan 2023, RECom"),
    "recom_f": ZooModel(RECOM_F, 838_296_353, 0.047091, "1232 features", "Pan 2023, RECom"),
    "elm_wdl": ZooModel(ELM_WDL, 21_879_566, 0.002155, "36 features", "Cheng 2016, AtRec"),
    "factorization_machine": ZooModel(FACTORIZATION_MACHINE, 5_765_045, 0.000002, "36 + 8 ids", "Rendle 2010, AtRec"),
    "gcn": ZooModel(GcnShape(), GcnShape().parameters, 7.283, "169343x128", "Kipf 2017, ogbn-arxiv"),
    "graphsage": ZooModel(GRAPHSAGE, 21_762_216, 0.003449, "276 ids", "Hamilton 2017, Ember"),
    "lightgcn": ZooModel(LIGHTGCN, 4_533_696, 0.0, "66 ids + 64", "He 2020, Gowalla"),
    "fusedmm": ZooModel(FUSEDMM, 117_302_784, 0.0, "17 ids", "Rahman 2021, Ember"),
    "transe": ZooModel(TRANSE, 48_037_888, 0.0, "3 ids", "Bordes 2013, Ember"),
}
# Recommendation models, whose tables may be cut to what a machine has room for.
RECOMMENDERS: Mapping[str, RecommenderSpec] = {
    name: model.definition for name, model in ZOO.items() if isinstance(model.definition, RecommenderSpec)
}


def write(
    name: str,
    path: Path,
    seed: int = 0,
    shape: DlrmShape | None = None,
    progress: WriteProgress = lambda done, total: None,
    rows: int | None = None,
) -> list[Path]:
    """Builds a model of `ZOO` at `path` and returns the files written; the same arguments give the same bytes.

    Values that are too large for one message, tables and BERT's matrices, go to `<path>.data`; a feature description
    goes to `<stem>.features.toml`.

    Args:
        name: of the model.
        path: of the ONNX file.
        seed: of the weights, not negative.
        shape: of `dlrm` alone; None: `DlrmShape()`.
        progress: gets the bytes written to `<path>.data` and their total.
        rows: the most rows of each table of a model of `RECOMMENDERS`; None: as many as this machine has room for
            (see `table_cuts`).

    Raises ConfigError for an unknown name, a negative seed, a shape or rows for another model, or a place that cannot
    be written.
    """
    _check(name, seed, shape, rows)
    data, description = external_tensors.data_path(path), path.with_suffix(".features.toml")
    written = [path]
    try:
        with whole_file(path) as file:  # the model appears last: it is never there without the files beside it
            proto, tensors, features = _build(name, seed, shape, data.name, rows)
            file.write(proto.SerializeToString(deterministic=True))
            if tensors:
                written.append(data)
                with whole_file(data) as values:
                    external_tensors.write_tensors(values, seed, tensors, progress)
            if features:
                written.append(description)
                with whole_file(description) as text:
                    text.write(features.encode())
        return written
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def _check(name: str, seed: int, shape: DlrmShape | None, rows: int | None) -> None:
    """Raises ConfigError for what `write` cannot build."""
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


def table_cuts(name: str, rows: int | None = None) -> list[TableCut]:
    """Returns which tables `write` makes smaller than published."""
    tables = RECOMMENDERS[name].tables if name in RECOMMENDERS else ()
    return find_cuts(tables, fit_tables(tables, rows))


def _build(
    name: str, seed: int, shape: DlrmShape | None, location: str, rows: int | None
) -> tuple[onnx.ModelProto, Sequence[ExternalTensor], str]:
    """The model, the tensors that `location` is to hold, and the text of its feature description, if there is one."""
    match ZOO[name].definition:
        case BertShape() as bert_shape:
            return *bert.build(seed, bert_shape, location), ""
        case GcnShape() as gcn_shape:
            return *gcn.build(seed, gcn_shape), ""
        case DlrmShape() as default:
            return *dlrm.build(seed, shape or default, location), ""
        case RecommenderSpec() as spec:
            found = build_recommender(spec, seed, location, rows)
            return found.proto, found.tensors, found.features
        case build:
            return build(seed), [], ""

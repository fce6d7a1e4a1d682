"""Compares an artifact with ONNX Runtime on the ONNX file that it was made from.

The whole model is run once for each version index, core count and several batch sizes, and compared with ONNX
Runtime; along the way, version 0 of every layer is compared with the layer's reference on the layer's real inputs,
and every other version with version 0. Inputs are drawn on which ONNX Runtime's own outputs hardly move with roundings
(of a detection head, roundings may choose the boxes). Last, on the inputs of the answer that the artifact holds, the
model is compared with that answer and with ONNX Runtime.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.embedding.table_storage import LAYER_TOLERANCE, TableStorage
from veltair.compiler.features.description_file import load_description as load_features
from veltair.compiler.features.feature_model import FeatureModel, join_features
from veltair.compiler.features.random_features import RawValues, draw_features
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.recommendation import LookupFamily, LookupParameters
from veltair.compiler.onnx.dimensions.fixed_extent import FixedExtent
from veltair.compiler.onnx.dimensions.given_dimensions import GivenDimensions
from veltair.compiler.onnx.logits import find_probabilities
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.onnx.onnx_model import load_model as load_onnx
from veltair.compiler.pipeline import lower
from veltair.compiler.reference_model import Arrays, ReferenceModel
from veltair.compiler.references.layer_reference import reference_outputs, unpack_activation
from veltair.compiler.stitch.alternatives import ALTERNATIVES
from veltair.compiler.tuning.correctness import LOOKUPS, LayerJudge, largest_errors
from veltair.compiler.tuning.implementation_choice import as_chosen
from veltair.compiler.verification_report import VerificationReport, is_settled
from veltair.compiler.verified_extents import compare_extents
from veltair.errors import ModelError
from veltair.machine.scratch import ScratchFolder
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import Artifact
from veltair.profiles.artifact.expected_answer import draw_inputs, find_deviation
from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.manifest import Manifest, Port
from veltair.profiles.runtime.answer_check import run_versions
from veltair.profiles.runtime.executor import Executor, aligned_zeros
from veltair.profiles.runtime.pinned_threads import PinnedThreads
from veltair.types import CoreSet

SEED = 0
DRAWS = 8
CHOICES = 4  # draws on which a model that chooses is compared where it differs


def verify(found: Artifact, model: Path, features: Path | None = None) -> VerificationReport:
    """Compare an artifact with ONNX Runtime; where queries choose a dimension, each of its buckets, and then queries of
    several extents.

    Raises ModelError when the files cannot be run or are not those that the artifact was compiled from.

    Args:
        model: the ONNX file.
        features: a description of the features that some inputs are computed from; ONNX Runtime gets the inputs that
            the reference computes from random features.
    """
    dimension = found.manifest.dimension
    if dimension is None:
        return _verify_bucket(found, model, features)
    ids = {p.name: (p.low, p.high) for p in found.manifest.client_inputs if p.low is not None and p.high is not None}
    buckets = [
        (bucket, FixedExtent(dimension.name, extent, dimension.exact, ids=ids, last=dimension.last))
        for bucket, extent in zip(found.buckets(), dimension.extents, strict=True)
    ]
    whole = VerificationReport(found.manifest.tolerance, 0, 0, (), 0)
    for bucket, fixed in buckets:
        whole.add(_verify_bucket(bucket, model, features, fixed), f"{fixed.name} {fixed.extent}")
    rng = np.random.default_rng(SEED)
    reference = ReferenceModel(model, found.manifest, None)
    given = GivenDimensions.parse(found.manifest.given, str(found.path))
    activations = find_probabilities(load_onnx(model, found.manifest.max_batch, fixed=buckets[0][1], given=given))

    def record(name: str, output: NDArray[Any], expected: NDArray[Any], where: str) -> None:
        whole.record_output(output, expected, f"output {name}, {where}", activations.get(name))

    whole.extents = compare_extents(found, reference, lambda port, batch: _draw(port, batch, rng), record)
    return whole


def _verify_bucket(
    found: Artifact, model: Path, features: Path | None, fixed: FixedExtent | None = None
) -> VerificationReport:
    manifest = found.manifest
    rooms = {port.name: port.room for port in manifest.outputs if port.room}
    bags = {each.ids: each.room for each in manifest.ragged}
    given = GivenDimensions.parse(manifest.given, str(found.path))
    loaded = load_onnx(model, manifest.max_batch, output_room=rooms, fixed=fixed, bag_room=bags, given=given)
    described = load_features(features) if features else None
    with ScratchFolder("verify") as folder:
        kept = TableStorage(manifest.tables, folder)
        front = join_features(loaded, described, kept)
        graph = lower(loaded, manifest.precision, front, kept)
        wide = None
        if manifest.tables != "fp32":
            front = join_features(loaded, described, TableStorage("fp32", folder))
            wide = lower(loaded, manifest.precision, front).layers
    if graph.inputs != manifest.inputs:
        takes, ours = (", ".join(port.name for port in ports) for ports in (graph.inputs, manifest.inputs))
        hint = "; give the --features that it was compiled with" if manifest.packed_buffers and features is None else ""
        raise ModelError(f"{model}: takes {takes}; the artifact {found.path} takes {ours}{hint}")
    chosen = [layer.name for layer in manifest.layers]
    specs = as_chosen(graph.layers, chosen, ALTERNATIVES)
    wide_specs = specs if wide is None else as_chosen(wide, chosen, ALTERNATIVES)
    if specs is None or wide_specs is None:
        if manifest.calibrated:
            raise ModelError(
                f"{model}: computes in floats, and the artifact {found.path} was calibrated to 8-bit integers: no "
                "layers can be compared; give samples (--data DATA.npz) to compare their outputs"
            )
        raise ModelError(f"{model}: its layers are not those of the artifact {found.path}; compile it again")
    cores = usable_machine().cores  # before the pool pins this thread, which narrows the cores reported
    before = os.sched_getaffinity(0)
    try:
        return _Comparison(found, loaded, front, PinnedThreads(cores), cores).run(specs, wide_specs)
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Sample:
    """A query's inputs and features, what ONNX Runtime answers, and how far roundings move each output.

    ::

        sample = draw_settled(ReferenceModel(path, manifest, None), manifest, None, batch=1, rng=rng)
        sample.expected  # in the order of the outputs
    """

    feeds: dict[str, NDArray[Any]]
    raw: dict[str, RawValues]
    expected: Arrays
    spreads: list[float]

    @classmethod
    def answered(
        cls, onnx: ReferenceModel, feeds: dict[str, NDArray[Any]], raw: dict[str, RawValues], batch: int
    ) -> Sample:
        """The inputs with the answer of ONNX Runtime."""
        expected = onnx.outputs(feeds, raw, batch)
        return cls(feeds, raw, expected, onnx.spread(expected, feeds, raw, batch))


class _Comparison:
    """The kernels of an artifact, or of one of its buckets, beside ONNX Runtime."""

    def __init__(
        self, found: Artifact, model: OnnxModel, front: FeatureModel | None, pool: PinnedThreads, cores: CoreSet
    ) -> None:
        manifest = found.manifest
        self._found, self._manifest, self._front, self._pool, self._cores = found, manifest, front, pool, cores
        self._activations = find_probabilities(model)
        self._onnx = ReferenceModel(model.path, manifest, front)
        self._executor = Executor(found)
        self._rng = np.random.default_rng(SEED)
        batches = tuple(sorted({1, min(3, manifest.max_batch), manifest.max_batch}))
        versions = sum(len(layer.versions) for layer in manifest.layers)
        self._report = VerificationReport(manifest.tolerance, len(manifest.layers), versions, batches, len(pool.usable))

    def run(self, specs: Sequence[LayerSpec], wide: Sequence[LayerSpec]) -> VerificationReport:
        """`wide`: the same layers with tables in fp32."""
        for batch in self._report.batches:
            self._compare_batch(specs, wide, batch)
        self._pool.move_to(self._cores)
        self._compare_kept_answer()
        return self._report

    def _compare_batch(self, specs: Sequence[LayerSpec], wide: Sequence[LayerSpec], batch: int) -> None:
        """Compare at one batch size.

        Roundings may decide a choice by values where no move of the inputs shows it. So the outputs of a model that
        chooses count as wrong where they are on each of several draws; its layers count on each.
        """
        outputs, tries = self._compare_draw(specs, wide, batch), CHOICES if self._onnx.chooses else 1
        while not outputs.ok and (tries := tries - 1):
            outputs = self._compare_draw(specs, wide, batch)
        self._report.add(outputs)

    def _compare_draw(self, specs: Sequence[LayerSpec], wide: Sequence[LayerSpec], batch: int) -> VerificationReport:
        """Compare layers and whole models on random inputs, on every count of cores. Returns what outputs are."""
        manifest, report = self._manifest, self._report
        found = VerificationReport(report.tolerance, 0, 0, report.batches, report.cores)
        sample = draw_settled(self._onnx, manifest, self._front, batch, self._rng)
        arrays = [aligned_zeros(port.at(batch), port.dtype) for port in manifest.input_tensors]
        InputLayout.of(manifest).fill(arrays, sample.feeds | sample.raw, batch)
        outputs = [aligned_zeros(port.at(batch), port.dtype) for port in manifest.output_tensors]
        bound = self._executor.bind(batch, arrays, outputs)
        for count in range(1, len(self._pool.usable) + 1):
            self._pool.move_to(self._cores[:count])
            place = f"batch {batch}, {count} core{'s' * (count > 1)}"
            _compare_layers(report, self._found, specs, bound, batch, place)
            if manifest.tables != "fp32":
                _compare_stored_rows(report, self._found, wide, bound, place)
            for version in range(max(len(layer.versions) for layer in manifest.layers)):
                for output in outputs:
                    output.fill(0)
                for index, layer in enumerate(manifest.layers):
                    bound.layer(index, version % len(layer.versions))
                rows = zip(manifest.output_tensors, outputs, sample.expected, sample.spreads, strict=True)
                for port, output, wanted, own in rows:
                    where = f"output {port.name}, versions {version}, {place}"
                    found.record_output(output, np.asarray(wanted), where, self._activations.get(port.name), own)
        return found

    def _compare_kept_answer(self) -> None:
        """Compare the model, on the inputs of the answer that the artifact holds, with it and with ONNX Runtime."""
        manifest, report = self._manifest, self._report
        drawn = draw_inputs(manifest)
        feeds = {
            p.name: value for p in manifest.inputs if isinstance(value := drawn[p.name], np.ndarray) and not p.locations
        }
        raw = {name: value for name, value in drawn.items() if name not in feeds}
        sample = Sample.answered(self._onnx, feeds, raw, 1)
        for version, results in enumerate(run_versions(self._executor)):
            if deviation := find_deviation(manifest, results, version):
                report.mismatches.append(f"off the answer that the artifact holds: {deviation}")
            rows = zip(manifest.output_tensors, results, sample.expected, sample.spreads, strict=True)
            for port, output, wanted, own in rows:
                if is_settled(own):  # these inputs are given; the others were drawn so that outputs can be compared
                    where = f"output {port.name}, versions {version}, inputs of the artifact's answer"
                    report.record_output(output, np.asarray(wanted), where, self._activations.get(port.name), own)


def draw_settled(
    onnx: ReferenceModel, manifest: Manifest, front: FeatureModel | None, batch: int, rng: np.random.Generator
) -> Sample:
    """Random inputs and features on which roundings do not decide what outputs are.

    Where none of DRAWS are such, those on which outputs move least.
    """
    found = []
    for _ in range(DRAWS):
        feeds = {port.name: _draw(port, batch, rng) for port in manifest.inputs if not port.locations}
        raw = dict(draw_features(front.description, batch, rng)) if front else {}
        found.append(Sample.answered(onnx, feeds, raw, batch))
        if all(map(is_settled, found[-1].spreads)):
            return found[-1]
    return min(found, key=lambda sample: max(sample.spreads))


def _compare_layers(
    report: VerificationReport, found: Artifact, specs: Sequence[LayerSpec], bound: Any, batch: int, place: str
) -> None:
    """Compare every version of every layer, on the inputs that version 0 of the preceding layers computed."""
    for index, (layer, spec) in enumerate(zip(found.manifest.layers, specs, strict=True)):
        judge = LayerJudge(spec, found.manifest.precision, [bound.buffer(b) for b in layer.inputs])
        wanted = reference_outputs(spec, judge.inputs, batch)
        bound.layer(index, 0)
        first = [bound.buffer(b).copy() for b in layer.outputs]
        for output in judge.outputs(first, wanted or first):
            report.record_layer(*output, f"layer {layer.name}, {place}: off its reference")
        for version in range(1, len(layer.versions)):
            bound.layer(index, version)
            for output in judge.outputs([bound.buffer(b) for b in layer.outputs], first):
                report.record_layer(*output, f"layer {layer.name}, {place}: version {version} off version 0")
        for b, result in zip(layer.outputs, first, strict=True):
            bound.buffer(b)[...] = result


def _compare_stored_rows(
    report: VerificationReport, found: Artifact, wide: Sequence[LayerSpec], bound: Any, place: str
) -> None:
    """Compare lookup layers with their reference on the fp32 tables."""
    storage = found.manifest.tables
    for index, (layer, spec) in enumerate(zip(found.manifest.layers, wide, strict=True)):
        parameters = spec.parameters
        messages = isinstance(parameters, LookupParameters) and parameters.family is LookupFamily.MESSAGE_PASSING
        if spec.op not in LOOKUPS or messages:  # in message passing, rows weigh each other
            continue
        wanted = reference_outputs(spec, [bound.buffer(b) for b in layer.inputs])
        bound.layer(index, 0)
        for tensor, b, right in zip(spec.outputs, layer.outputs, wanted or (), strict=True):
            _, relative = largest_errors(unpack_activation(tensor, bound.buffer(b)), unpack_activation(tensor, right))
            report.max_table_err = max(report.max_table_err, relative)
            if not relative <= LAYER_TOLERANCE[storage]:
                report.mismatches.append(
                    f"layer {layer.name}, {place}: rows in {storage} off those in fp32 by {relative:.3g} of its "
                    f"largest value (allowed {LAYER_TOLERANCE[storage]:g})"
                )


def _draw(port: Port, batch: int, rng: np.random.Generator) -> NDArray[Any]:
    """Random values that the model takes: normal floats, ids in their range, a mask for integers without one."""
    shape, kind = port.at(batch), np.dtype(port.dtype).kind
    if kind == "f":
        return rng.standard_normal(shape).astype(port.dtype)
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    low, high = (0, 1) if port.low is None or port.high is None else (port.low, port.high)
    return rng.integers(low, high, shape, endpoint=True).astype(port.dtype)

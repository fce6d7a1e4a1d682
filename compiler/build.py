"""Compiles an ONNX file into a model artifact: options, temporary folders, and the phases of `pipeline` in order."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.progress import Progress

from veltair.compiler.dimension_plan import DimensionPlan, plan_dimension
from veltair.compiler.embedding.table_storage import TableStorage
from veltair.compiler.graph.layer_graph import NodeImporter
from veltair.compiler.joined_buckets import JoinedBuckets
from veltair.compiler.onnx.bags.bag_inputs import BagRoom
from veltair.compiler.onnx.dimensions.fixed_extent import FixedExtent
from veltair.compiler.onnx.dimensions.given_dimensions import NOTHING_GIVEN, GivenDimensions
from veltair.compiler.onnx.folding.sized_outputs import OUTPUT_ROOM
from veltair.compiler.onnx.onnx_model import load_model, parse_model
from veltair.compiler.phase_dump import PhaseDump
from veltair.compiler.pipeline import PHASES, Compilation
from veltair.compiler.quantisation.calibration import calibrate
from veltair.compiler.quantisation.chosen_nodes import is_quantised
from veltair.compiler.quantisation.samples import SampleSource
from veltair.compiler.stitch.alternatives import ALTERNATIVES
from veltair.compiler.stitch.regions import import_region
from veltair.compiler.timing.measure import Meter
from veltair.compiler.tuning.bf16_fitness import suits_bf16
from veltair.compiler.tuning.implementation_choice import Alternatives
from veltair.compiler.tuning.kernel_cache import KernelCache
from veltair.compiler.tuning.precision import Precision, dots_pay, pick_precision
from veltair.errors import ConfigError, ModelError
from veltair.machine.isa import ISAS, cpu_features, isa_features
from veltair.machine.scratch import ScratchFolder
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact, write_artifact
from veltair.profiles.artifact.manifest import LevelSource, Storage
from veltair.profiles.records.tuning_records import RecordStore


def compile_model(
    onnx: Path,
    out: Path,
    *,
    name: str | None = None,
    qos_ns: int | None = None,
    trials: int | None = None,
    precision: Precision = "auto",
    samples: SampleSource | None = None,
    isa: str | None = None,
    fresh: bool = False,
    max_batch: int | None = None,
    features: Path | None = None,
    levels: LevelSource = "measured",
    tables: Storage = "fp32",
    fallback: bool = True,
    output_room: int = OUTPUT_ROOM,
    bag_room: BagRoom | None = None,
    dimensions: GivenDimensions = NOTHING_GIVEN,
    progress: Progress | None = None,
    store: RecordStore | None = None,
    cache: KernelCache | None = None,
    dump: Path | None = None,
    importer: NodeImporter = import_region,
    alternatives: Alternatives = ALTERNATIVES,
) -> Artifact:
    """Compile an ONNX file into an artifact at `out`, which appears whole or not at all. The phases: `pipeline.PHASES`.

    Args:
        name: the model's name; the file's stem by default.
        qos_ns: latency target; by default the one that the file states in its metadata (`veltair.qos_ms`), else three
            times what the model takes alone.
        trials: candidates to measure of each workload without shipped records of this CPU; see `search`.
        precision: see `pick_precision`. "int8" makes products of 8-bit integers of a file of floats.
        samples: of the model's inputs, which such a file is calibrated with (`quantisation.calibrate`).
        isa: one of `machine.isa.ISAS`, beyond which no instruction is used; the richest of this CPU by default.
        fresh: search every layer from nothing, whatever is recorded.
        max_batch: the greatest batch where the file leaves it open.
        features: a description of the raw features that some inputs of the model are made from (docs/features.md).
        levels: "modelled" takes interference levels from a model where co-runners cost nothing measurable.
        tables: how rows of float tables that are looked up are kept (`embedding.row_storage`). Tables that the file
            keeps in float16 or in bytes with a scale stay as they are.
        fallback: whether ONNX Runtime may run what nothing of ours computes.
        output_room: elements for each sample of an output whose extents values decide; larger ones are refused when
            the model is served.
        bag_room: ids of a bag, at most, where bags differ in length (`bag_inputs`).
        dimensions: that the file leaves open: the extents of some, and the bounds of one that queries choose
            (`dimension_plan`).
        store: tuning records; the shipped ones and the user's by default.
        cache: objects and times of earlier compiles; by default none are used, and none kept.
        dump: a folder for the state after each phase, one text file each.
        importer: makes layers of the nodes that no pattern takes; benches compare others with the stitching one.
        alternatives: what competes with layers; benches leave it out.

    Raises UserError (ModelError, ConfigError, …) for a fault of the input, VeltairError when a layer has no version
    that works.
    """
    offered = isa_features(isa, cpu_features())
    chosen = pick_precision(precision, offered, isa, dots_pay, lambda: suits_bf16(parse_model(onnx)))
    used = offered if chosen == "bf16" else offered & ISAS["avx512"]  # fp32 code has no use for the rest
    phase_dump = PhaseDump(dump) if dump else None
    with ExitStack() as stack:
        scratch = stack.enter_context(ScratchFolder("compile"))
        compiled_file, calibrated = onnx, 0
        plan = _plan(onnx, dimensions, output_room, features, fallback=fallback)
        _check_samples(onnx, precision, samples)
        if samples is not None:
            if plan is None:  # otherwise it has read the file
                _check(onnx, max_batch, output_room, dimensions, fallback=fallback)
            compiled_file, calibrated = calibrate(onnx, samples, scratch, progress)
            plan = _plan(compiled_file, dimensions, output_room, features, fallback=fallback)
        draft = stack.enter_context(write_artifact(out))
        meter = stack.enter_context(Meter(usable_machine().cores))

        def compiled(folder: Path, fixed: FixedExtent | None = None) -> Compilation:
            compilation = Compilation(
                precision=chosen,
                storage=TableStorage(tables, scratch),
                fallback=fallback,
                importer=importer,
                alternatives=alternatives,
                output_room=plan.output_room if plan else output_room,
                bag_room=bag_room or {},
                given=dimensions,
                fixed=fixed,
                onnx=compiled_file,
                source=onnx,
                calibrated=calibrated,
                name=name or onnx.stem,
                max_batch=max_batch,
                description=features,
                qos_ns=qos_ns,
                trials=trials,
                level_source=levels,
                isa=used,
                draft=folder,
                scratch=scratch,
                meter=meter,
                store=store or RecordStore(used, fresh=fresh),
                cache=cache or KernelCache(),
                progress=progress or Progress(disable=True),
            )
            for phase in PHASES:
                phase(compilation)
                if phase_dump:
                    phase_dump.write(phase.__name__, compilation)
            return compilation

        if plan is None:
            return replace(compiled(draft).artifact, path=out)
        with JoinedBuckets(draft, plan.dimension) as joined:
            for fixed in plan.fixed:
                with tempfile.TemporaryDirectory(dir=scratch) as folder:
                    made = compiled(Path(folder), fixed)
                    joined.add(made.artifact, [v.object_file for group in made.versions.values() for v in group])
        return replace(load_artifact(draft), path=out)


def _check_samples(onnx: Path, precision: Precision, samples: SampleSource | None) -> None:
    """Raises ConfigError where samples are missing, or of no use."""
    if samples is not None and precision != "int8":
        raise ConfigError(f"samples to calibrate with are for precision int8, not {precision}")
    if samples is None and precision == "int8" and not is_quantised(parse_model(onnx)):
        raise ConfigError(f"{onnx}: computes in floats; int8 needs samples of its inputs (--calibrate DATA.npz)")


def _check(onnx: Path, max_batch: int | None, output_room: int, dimensions: GivenDimensions, *, fallback: bool) -> None:
    """Raises ModelError for a file that cannot be compiled as it is, or whose own columns would be lost."""
    model = load_model(onnx, max_batch, fallback=fallback, output_room=output_room, given=dimensions)
    if model.columns is not None:
        raise ModelError(f"{onnx}: computes feature columns of raw features; calibrate it without these operators")


def _plan(
    onnx: Path, dimensions: GivenDimensions, output_room: int, features: Path | None, *, fallback: bool
) -> DimensionPlan | None:
    """None where queries choose no dimension. Raises ModelError where the other options forbid that."""
    if dimensions.bounds is None:
        return None
    plan = plan_dimension(onnx, dimensions, output_room)
    where = f"{onnx}: dimension {plan.dimension.name!r}"
    if features is not None:
        raise ModelError(f"{where}: a model with a feature description has no dimension beside the batch")
    if plan.dimension.exact and not fallback:
        raise ModelError(f"{where} would be left to ONNX Runtime: {plan.dimension.reason}")
    return plan

"""The phases of a compile, in order: from an ONNX file to a model artifact.

`PHASES` is the whole list. Each phase is a function that reads and fills in the fields of a `Compilation`; the phases
up to the layer graph need only its base class, `Lowering`. `veltair compile --dump DIR` writes what is known after each
phase (`phase_dump`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import msgspec
from rich.progress import Progress

from veltair.compiler.assemble import ArtifactParts, assemble
from veltair.compiler.design_spaces import SPACES
from veltair.compiler.embedding.table_storage import TOLERANCE as TABLE_TOLERANCE
from veltair.compiler.embedding.table_storage import TableStorage
from veltair.compiler.features import feature_model
from veltair.compiler.features.description_file import load_description
from veltair.compiler.features.feature_model import FeatureModel
from veltair.compiler.features.kept_columns import keep_columns
from veltair.compiler.graph import completion
from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_graph import LayerGraph, NodeImporter
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.kernels.fallback.fallback_import import FallbackImporter
from veltair.compiler.onnx import onnx_model
from veltair.compiler.onnx.bags.bag_inputs import BagRoom
from veltair.compiler.onnx.dimensions.fixed_extent import FixedExtent
from veltair.compiler.onnx.dimensions.given_dimensions import GivenDimensions
from veltair.compiler.onnx.folding.sized_outputs import OutputRoom, client_ports
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.patterns import by_operator
from veltair.compiler.patterns.recommendation.feature_columns import round_columns
from veltair.compiler.patterns.rewritings import rewrite_model
from veltair.compiler.references.quantised_reference import quantised_tolerance
from veltair.compiler.stitch.alternatives import ALTERNATIVES
from veltair.compiler.stitch.regions import import_region
from veltair.compiler.timing.batch_sizes import batch_sizes
from veltair.compiler.timing.latency_tables import LatencyTables
from veltair.compiler.timing.measure import Meter
from veltair.compiler.tuning import code_versions
from veltair.compiler.tuning.checked_versions import TunedVersion
from veltair.compiler.tuning.frontier import Candidate
from veltair.compiler.tuning.implementation_choice import Alternatives, Choice, choose_implementations
from veltair.compiler.tuning.kernel_cache import KernelCache
from veltair.compiler.tuning.search import search
from veltair.compiler.tuning.setting import Setting
from veltair.machine.environment import describe_environment, flat_facts
from veltair.machine.isa import tvm_target
from veltair.profiles.artifact.artifact_folder import KERNELS, MANIFEST, Artifact, file_digest, load_artifact
from veltair.profiles.artifact.manifest import SCHEMA, LevelSource, Manifest
from veltair.profiles.records.tuning_records import RecordStore
from veltair.profiles.runtime.answer_check import store_answer
from veltair.types import Environment

# Of the whole model: error over the output's largest value. Layers are held to much less (`tuning/correctness`), but
# roundings add up with depth: 3.5 % measured on ResNet-50 and MobileNet-V2 with random weights.
TOLERANCE = {"fp32": 1e-3, "bf16": 0.1}
QOS_FACTOR = 3  # the default target is this times the model's solo time, rounded up to a millisecond


@dataclass(kw_only=True)
class Lowering:
    """What the phases up to the layer graph work on. A field without a value is filled in by a phase.

    >>> Lowering(precision="bf16").features is None
    True
    """

    precision: str  # "fp32" or "bf16"
    storage: TableStorage = field(default_factory=TableStorage)  # how rows of float tables are kept
    fallback: bool = True  # whether ONNX Runtime may run what nothing of ours computes
    importer: NodeImporter = import_region  # of nodes that no pattern takes
    model: OnnxModel = field(init=False)
    features: FeatureModel | None = None  # the feature columns that give some of the model's inputs
    view: ModelView = field(init=False)
    refused: dict[str, str] | None = field(init=False)  # nodes that patterns refuse, and why; None: no fallback
    builder: GraphBuilder = field(init=False)
    graph: LayerGraph = field(init=False)


@dataclass(kw_only=True)
class Compilation(Lowering):
    """What all phases work on: the options of a compile, and what the phases have made so far.

    `build.compile_model` makes one, and runs the phases on it: `for phase in PHASES: phase(compilation)`.
    """

    onnx: Path  # the file that is compiled
    source: Path  # the file that was given: another one where `onnx` was calibrated
    calibrated: int  # samples that it was calibrated with, or 0
    name: str
    max_batch: int | None  # of a dynamic batch; None: as the file says
    output_room: OutputRoom  # elements for each sample of an output whose extents values decide
    bag_room: BagRoom  # ids of a bag where bags differ in length
    given: GivenDimensions  # what is said of dimensions that the file leaves open
    fixed: FixedExtent | None = None  # of the one that is left to queries
    description: Path | None  # a feature description
    qos_ns: int | None  # the latency target that was asked for
    trials: int | None  # see `search`
    level_source: LevelSource
    isa: frozenset[str]  # instruction sets that the code may use
    draft: Path  # the folder that becomes the artifact
    scratch: Path  # a folder for object files
    meter: Meter
    store: RecordStore
    cache: KernelCache
    progress: Progress
    environment: Environment = field(init=False)
    batches: tuple[int, ...] = field(init=False)  # sizes of a dynamic batch to time
    setting: Setting = field(init=False)
    candidates: Mapping[str, list[Candidate]] = field(init=False)  # by workload
    alternatives: Alternatives = field(default_factory=lambda: ALTERNATIVES)  # that compete with layers
    choices: list[Choice] = field(init=False)  # among them
    latency_tables: LatencyTables = field(init=False)
    versions: Mapping[str, list[TunedVersion]] = field(init=False)  # by `LayerSpec.symbol`
    parts: ArtifactParts = field(init=False)
    artifact: Artifact = field(init=False)  # as it lies in the draft


def import_model(c: Compilation) -> None:
    """Read the ONNX file, check it, simplify it, and infer every shape."""
    c.model = onnx_model.load_model(
        c.onnx,
        c.max_batch,
        fallback=c.fallback,
        output_room=c.output_room,
        fixed=c.fixed,
        bag_room=c.bag_room,
        given=c.given,
    )


def join_features(compilation: Compilation) -> None:
    """Put the feature columns of a description, and of the file's own operators, in front of the model."""
    description = load_description(compilation.description) if compilation.description else None
    compilation.features = feature_model.join_features(compilation.model, description, compilation.storage)


def find_patterns(lowering: Lowering) -> None:
    """Find the groups of nodes that one layer computes."""
    model = rewrite_model(lowering.features.model if lowering.features else lowering.model, lowering.precision)
    lowering.view = by_operator.find_matches(ModelView(model, lowering.precision))


def begin_graph(lowering: Lowering) -> None:
    """Begin the graph with the layers of feature columns, in the type in which they are read."""
    lowering.refused = {} if lowering.fallback else None
    importer = lowering.importer
    if lowering.refused is not None:
        importer = FallbackImporter(importer, lowering.refused, lowering.view.model.other_opsets)
    lowering.builder = GraphBuilder(lowering.view, lowering.storage, importer)
    if lowering.features:
        lowering.builder.begin(lowering.features.layers)
    round_columns(lowering.view, lowering.builder)


def lower_nodes(lowering: Lowering) -> None:
    """Make a layer of each node that a pattern takes, with its epilogue; import the others as generated code."""
    by_operator.lower_nodes(lowering.view, lowering.builder, lowering.refused)
    lowering.builder.import_deferred()


def complete_outputs(lowering: Lowering) -> None:
    """Make every output row-major, of its ONNX type, and in memory of its own."""
    completion.complete_outputs(lowering.view, lowering.builder)


def settle_halos(lowering: Lowering) -> None:
    """Give every blocked tensor the halo that its readers asked for; this completes the layer graph."""
    ports = (lowering.features.layout.inputs, lowering.features.layout.packed_buffers) if lowering.features else ()
    lowering.graph = completion.complete_graph(lowering.view, lowering.builder, *ports)


def search_candidates(compilation: Compilation) -> None:
    """Measure the design space of every workload without tuning records, and take the fastest way of each layer."""
    c, graph = compilation, compilation.graph
    c.batches, c.environment = batch_sizes(graph.max_batch), describe_environment()
    c.setting = Setting(
        target=tvm_target(c.isa),
        features=c.isa,
        cpu=c.environment.cpu,
        precision=c.precision,
        batch=c.batches[len(c.batches) // 2],
        bounds=graph.id_bounds(c.features.bounds if c.features else {}),
        spaces=SPACES,
    )

    def measure(layers: Sequence[LayerSpec], optional: Mapping[str, int]) -> Mapping[str, list[Candidate]]:
        return search(layers, c.store, c.meter, c.setting, c.trials, c.progress, c.scratch, c.cache, optional)

    c.graph, c.candidates, c.choices = choose_implementations(
        graph, c.alternatives, c.store, c.setting, c.trials, measure
    )


def choose_versions(compilation: Compilation) -> None:
    """Keep, check and time the candidates on the Pareto frontier that meet their layer's share of the target."""
    c = compilation
    alone_ns = sum(min(found.best_ns for found in c.candidates[layer.workload]) for layer in c.graph.layers)
    stated_ns = c.qos_ns or c.model.stated_qos_ns
    c.qos_ns = stated_ns or -(-QOS_FACTOR * alone_ns // 1_000_000) * 1_000_000
    memory = c.cache.memory_system(c.meter.cores) if c.level_source == "modelled" else None
    c.latency_tables, c.versions = code_versions.choose_versions(
        c.graph.layers, c.candidates, c.qos_ns, c.batches, c.meter, c.setting, c.scratch, c.progress, memory, c.cache
    )


def assemble_files(c: Compilation) -> None:
    """Place every tensor in the arena, pack the weights, and link the kernels."""
    c.parts = assemble(c.graph, c.versions, c.batches, c.setting, c.draft, c.progress)


def write_manifest(compilation: Compilation) -> None:
    """Write the manifest: what was compiled, with digests of the other files."""
    c, graph, parts = compilation, compilation.graph, compilation.parts
    assert c.qos_ns is not None  # chosen by `choose_versions`
    manifest = Manifest(
        schema=SCHEMA,
        model=c.name,
        precision="bf16" if c.precision == "bf16" else "fp32",
        tolerance=max(TOLERANCE["bf16" if c.model.halves else c.precision], quantised_tolerance(graph.layers))
        + TABLE_TOLERANCE[c.storage.storage],
        qos_ns=c.qos_ns,
        target={k: v if isinstance(v, int | str) else ",".join(v) for k, v in c.setting.target.items()},
        features=tuple(sorted(c.isa)),
        max_batch=graph.max_batch,
        mergeable=c.model.mergeable,
        ragged=c.model.ragged,
        batches=c.batches,
        levels=c.latency_tables.levels,
        level_sources=c.latency_tables.sources,
        inputs=graph.inputs,
        packed_buffers=graph.packed_buffers,
        outputs=client_ports(graph.outputs, c.model.sized, c.model.labels),
        buffers=parts.buffers,
        arena_bytes=parts.arena_bytes,
        layers=parts.layers,
        environment=flat_facts(c.environment) | {"timed_since": c.cache.counts.timed_since},
        source_digest=file_digest(c.source),
        given=c.given.texts,
        calibrated=c.calibrated,
        kernels_digest=file_digest(c.draft / KERNELS),
        weights_digest=parts.weights_digest,
        columns_digest=keep_columns(c.features.description if c.features else None, c.draft),
        tables=c.storage.storage,
        tables_error=c.storage.error,
    )
    (c.draft / MANIFEST).write_bytes(msgspec.json.encode(manifest))


def keep_answer(compilation: Compilation) -> None:
    """Run the model once in each version, keep its answer in the manifest, and read it back as its users will."""
    store_answer(compilation.draft)
    compilation.artifact = load_artifact(compilation.draft)  # an artifact that a reader would refuse is not published


LoweringPhase: TypeAlias = Callable[[Lowering], None]
Phase: TypeAlias = Callable[[Compilation], None]

LOWERING_PHASES: tuple[LoweringPhase, ...] = (find_patterns, begin_graph, lower_nodes, complete_outputs, settle_halos)

PHASES: tuple[Phase, ...] = (
    import_model,
    join_features,
    *LOWERING_PHASES,
    search_candidates,
    choose_versions,
    assemble_files,
    write_manifest,
    keep_answer,
)


def lower(
    model: OnnxModel,
    precision: str,
    features: FeatureModel | None = None,
    storage: TableStorage | None = None,
    *,
    fallback: bool = True,
) -> LayerGraph:
    """The layer graph of a loaded model. Raises ModelError naming what cannot be compiled.

    precision: "fp32" or "bf16"; features: the feature columns that give some of its inputs.
    storage: how rows of its float tables are kept; as they are in the file by default.
    fallback: whether ONNX Runtime may run what nothing of ours computes.
    """
    lowering = Lowering(precision=precision, storage=storage or TableStorage(), features=features, fallback=fallback)
    lowering.model = model
    for phase in LOWERING_PHASES:
        phase(lowering)
    return lowering.graph

"""The parts of `bench.run`: the result files that each part writes, and the commands that measure them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.paths import DEMO, SCENARIOS
from bench.recsys.feature_columns import COLUMN_SETS

MIXES = ("vision", "demo", "recsys")  # of scenarios/
Command = tuple[str, ...]  # a module of bench and its arguments


@dataclass(frozen=True, slots=True)
class Settings:
    """Where results go, where the kernels of benches are kept, and which Pythons have the peers that need their own."""

    results: Path
    work: Path
    triton: str | None = None
    tensorflow: str | None = None
    torch: str | None = None
    export: str | None = None

    def peer(self, option: str, python: str | None) -> Command:
        """The option that names a peer's Python; nothing where there is none."""
        return (option, python) if python else ()

    def result(self, name: str) -> str:
        return str(self.results / f"{name}.json")


@dataclass(frozen=True, slots=True)
class Part:
    """Some results that are measured together.

    `writes` are the files in the folder of results, as patterns; `fixed`: the commands write to `bench/results` or to
    the documentation wherever other results go.
    """

    writes: tuple[str, ...]
    commands: Callable[[Settings], Sequence[Command]]
    fixed: bool = False


def _networks(at: Settings) -> Sequence[Command]:
    return [("bench.kernels.networks", "--again", "--results", str(at.results / "kernels"))]


def _recommenders(at: Settings) -> Sequence[Command]:
    peers = at.peer("--tensorflow", at.tensorflow)
    return [("bench.recsys.models", "--again", "--json", at.result("recsys"), *peers)]


def _columns(at: Settings) -> Sequence[Command]:
    peers, module = at.peer("--tensorflow", at.tensorflow), "bench.recsys.columns"
    prepared = [(module, "prepare", name, str(at.work / f"columns-{name}")) for name in COLUMN_SETS]
    measured = [
        (module, "measure", name, str(at.work / f"columns-{name}"), "--json", at.result("columns"), *peers)
        for name in COLUMN_SETS
    ]
    steps = ("bench.recsys.column_ablations", "--json", at.result("column-ablations"))
    return [*prepared, *measured, steps]


def _saved_models(at: Settings) -> Sequence[Command]:
    peer, folder = at.peer("--tensorflow", at.tensorflow), str(at.work / "saved-models")
    written = at.result("saved-models")
    return [("bench.recsys.saved_models", "--folder", folder, "--json", written, *peer)] if peer else []


def _ember(at: Settings) -> Sequence[Command]:
    folder, peers = str(at.work / "ember"), at.peer("--torch", at.torch)
    return [
        ("bench.recsys.ember", "prepare", folder),
        ("bench.recsys.ember", "measure", folder, "--json", at.result("ember"), *peers),
    ]


def _graph_convolution(at: Settings) -> Sequence[Command]:
    artifact, peer = str(at.work / "gcn-fp32"), at.peer("--torch", at.torch)
    written = at.result("graph-convolution")
    return [("bench.kernels.graph_convolution", "--artifact", artifact, "--json", written, *peer)]


def _ladder(at: Settings) -> Sequence[Command]:
    return [("bench.recsys.ladder_choice", "--work", str(at.work / "ladder"), "--json", at.result("ladder"))]


def _atrec(at: Settings) -> Sequence[Command]:
    return [("bench.recsys.atrec", "--json", at.result("atrec"), *at.peer("--tensorflow", at.tensorflow))]


def _training_input(at: Settings) -> Sequence[Command]:
    return [("bench.recsys.training_input", "--json", at.result("training"), *at.peer("--tensorflow", at.tensorflow))]


def _training_step(at: Settings) -> Sequence[Command]:
    peer = at.peer("--torch", at.torch)
    return [("bench.recsys.training_step", "--json", at.result("training-step"), *peer)] if peer else []


def _stitched_models(at: Settings) -> Sequence[Command]:
    work, written = str(at.work / "stitched-models"), at.result("stitched-models")
    peer = at.peer("--tensorflow", at.tensorflow)
    return [("bench.kernels.stitched_models", "--work", work, "--json", written, *peer)]


def _coverage(at: Settings) -> Sequence[Command]:
    exporter = at.peer("--export-python", at.export)
    return [("bench.coverage", "--again", "--times", *exporter, "--out", at.result("coverage"))]


def _random_graphs(at: Settings) -> Sequence[Command]:
    out = ("--out", at.result("random-graphs"))
    opened = ("--open", "--count", "40", "--seed", "1001", "--nodes", "6")
    quantised = ("--int8", "--count", "60", "--seed", "2001")
    kinds = (("--count", "60"), opened, quantised)
    return [("bench.random_graphs", *kind, *out) for kind in kinds]


def _layer_launch(at: Settings) -> Sequence[Command]:
    artifacts = [str(DEMO / "bench" / f"{name}-bf16") for name in ("mobilenet_v2", "resnet50")]
    return [("bench.kernels.layer_launch", *artifacts, "--out", at.result("blocks"))]


def _mixes(at: Settings) -> Sequence[Command]:
    common = ("--again", "--results", str(at.results), *at.peer("--triton-python", at.triton))
    tight = ("--policies", "veltair", "--stacks", "veltair, ", "--rounds", "2")
    return [
        *(("bench.serving.mix", str(SCENARIOS / f"{name}.toml"), *common) for name in MIXES),
        ("bench.serving.mix", str(SCENARIOS / "vision-tight.toml"), *common, *tight),
    ]


def _way(at: Settings) -> Sequence[Command]:
    peers = at.peer("--triton-python", at.triton)
    return [
        ("bench.serving.way", "--again", "--out", at.result("way"), *peers),
        ("bench.serving.fronts", "--out", at.result("fronts")),
        ("bench.serving.front_end", "--out", at.result("front")),
    ]


def _model_loads(at: Settings) -> Sequence[Command]:
    served, loaded = DEMO / "artifacts" / "mobilenet_v2", DEMO / "recsys" / "dlrm_rm2-bf16"
    return [("bench.serving.model_loads", str(served), str(loaded), "--out", at.result("model-loads"))]


# In an order in which every part finds the artifacts that it needs: `blocks` runs those of `kernels`, `loads` those of
# `recsys`, and the demo's.
PARTS = {
    "kernels": Part(("kernels/*.json",), _networks),
    "recsys": Part(("recsys.json",), _recommenders),
    "columns": Part(("columns.json", "column-ablations.json"), _columns),
    "saved-models": Part(("saved-models.json",), _saved_models),
    "ember": Part(("ember.json",), _ember),
    "ladder": Part(("ladder.json",), _ladder),
    "graph-convolution": Part(("graph-convolution.json",), _graph_convolution),
    "atrec": Part(("atrec.json",), _atrec),
    "training": Part(("training.json",), _training_input),
    "training-step": Part(("training-step.json",), _training_step),
    "stitching": Part(("stitching.json",), lambda at: [("bench.kernels.stitching", "--json", at.result("stitching"))]),
    "stitched-models": Part(("stitched-models.json",), _stitched_models),
    "blocks": Part(("blocks.json",), _layer_launch),
    "scheduler": Part(
        ("scheduler.json",), lambda at: [("bench.paper.scheduling_cost", "--out", at.result("scheduler"))]
    ),
    "simulator": Part(
        ("simulator.json",), lambda at: [("bench.paper.simulator_speed", "--out", at.result("simulator"))]
    ),
    "policies": Part(("policies.json",), lambda at: [("bench.policies", "--out", at.result("policies"))]),
    "routers": Part(("routers.json",), lambda at: [("bench.paper.routers", "--out", at.result("routers"))]),
    "node-cases": Part(("node-cases.json",), lambda at: [("bench.node_cases", "--out", at.result("node-cases"))]),
    "random-graphs": Part(("random-graphs.json",), _random_graphs),
    "coverage": Part(("coverage.json",), _coverage),
    "micro": Part(("micro/*.json",), lambda at: [("bench.micro.run", "--save")], fixed=True),
    "way": Part(("way.json", "fronts.json", "front.json"), _way),
    "loads": Part(("model-loads.json",), _model_loads),
    "trees": Part(
        ("trees.json",), lambda at: [("bench.trees", "--work", str(at.work / "trees"), "--out", at.result("trees"))]
    ),
    "int8": Part(("int8.json",), lambda at: [("bench.int8", "--out", at.result("int8"))]),
    "short-floods": Part(
        ("short-floods.json",),
        lambda at: [("bench.serving.short_floods", "--seconds", "5", "--out", at.result("short-floods"))],
    ),
    "overload": Part(("overload.json",), lambda at: [("bench.serving.overload", "--out", at.result("overload"))]),
    "mixes": Part(("mix-*.json",), _mixes),
    "reality": Part(("reality.json",), lambda at: [("bench.paper.reality", "--again", "--results", str(at.results))]),
    "versions": Part(("versions.json",), lambda at: [("bench.paper.versions", "--build", "--search")], fixed=True),
    "figures": Part((), lambda at: [("bench.paper.figures",)], fixed=True),
    "faults": Part(("faults.json",), lambda at: [("bench.faults", "--again")], fixed=True),
    "fuzz": Part(("fuzz.json",), lambda at: [("bench.fuzz",)], fixed=True),
}

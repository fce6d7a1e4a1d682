"""What is served of each family of embedding operations beside every point of Ember's ladder; and smaller tables.

    python -m bench.recsys.ladder_choice [--work DIR] [--models NAME …] [--json FILE]

`choices`: each layer of the families in the zoo's models, with tables as published where they fit this machine. What
`veltair compile` serves, from records or a search, is timed beside all points of its space, and beside emb-opt0 and
emb-opt1, which are in no space: all once, then the fastest FINALISTS and the served one in turn. `over_best` is the
served one's time over that of the fastest. The bar is 1.02.
`storages`: one table of 2 GB in fp32, its rows in fp16 and in bytes with scale and bias; each storage at the best of
its points. The bars are 1.6 and 2.5 times fp32's rate.
Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import Progress

from bench.paths import result_path
from veltair.compiler.design_spaces import SPACES
from veltair.compiler.embedding.table_storage import TableStorage
from veltair.compiler.graph.layer_graph import LayerGraph
from veltair.compiler.graph.layer_spec import LayerSpec, Point, version_symbol
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import batch_sizes, lower
from veltair.compiler.shared_library import ObjectFile, link_library
from veltair.compiler.timing.measure import CandidateError, Meter, result_operands
from veltair.compiler.tuning.cache_keys import object_key
from veltair.compiler.tuning.kernel_cache import KernelCache
from veltair.compiler.tuning.search import search
from veltair.compiler.tuning.setting import Setting
from veltair.machine.environment import describe_environment
from veltair.machine.isa import cpu_features, tvm_target
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.manifest import Storage
from veltair.profiles.records.tuning_records import RecordStore
from veltair.zoo.recommendation.dlrm import DlrmShape
from veltair.zoo.registry import ZOO, write

MODELS = ("graphsage", "lightgcn", "fusedmm", "transe", "gcn", "bigbird", "dlrm_rm3")
FAMILIES = ("embedding_bag", "lookups", "spmm", "block_gather")
FINALISTS, ROUNDS = 4, 7
LARGE = DlrmShape(tables=1, rows=1 << 24, dim=32, lookups=100, max_batch=256)
STORAGES: tuple[Storage, ...] = ("fp32", "fp16", "int8")


@dataclass(frozen=True, slots=True)
class LadderTimer:
    """Times points of layers as `veltair compile` does: ids are new for each run, tables are not in a cache."""

    meter: Meter
    cache: KernelCache
    folder: Path

    def setting(self, graph: LayerGraph) -> Setting:
        batches, facts = batch_sizes(graph.max_batch), describe_environment()
        batch = batches[len(batches) // 2]
        return Setting(tvm_target(), cpu_features(), facts.cpu, "fp32", batch, graph.id_bounds({}), SPACES)

    def choice(self, spec: LayerSpec, setting: Setting) -> dict[str, Any]:
        """The served point of a layer beside the fastest of all."""
        store = RecordStore(cpu_features())
        found = search([spec], store, self.meter, setting, None, Progress(disable=True), cache=self.cache)
        served = min(found[spec.workload], key=lambda candidate: candidate.best_ns).point
        points = ladder(spec, served)
        alone = self.times(spec, points, setting, 1)
        ranked = sorted(range(len(points)), key=lambda i: alone[i])[:FINALISTS]
        names = [points[i] for i in dict.fromkeys([points.index(served), *ranked])]
        last = self.times(spec, names, setting, ROUNDS)
        best = min(last)
        facts = {"served": served, "best": names[last.index(best)], "points": len(points)}
        return facts | {"served_us": last[0] / 1e3, "best_us": best / 1e3, "over_best": last[0] / best}

    def times(self, spec: LayerSpec, points: Sequence[Point], setting: Setting, rounds: int) -> list[float]:
        """Medians in ns on all cores, the points in turn; infinite where a point fails."""
        space, taken = SPACES[spec.op], [list[int]() for _ in points]
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            kernels = [space.build(spec, point, setting.features) for point in points]
            symbols = [version_symbol(spec, point) for point in points]
            sources = [
                ObjectFile(kernel.function, symbol, Path(scratch, f"{symbol}.o"))
                for kernel, symbol in zip(kernels, symbols, strict=True)
            ]
            keys = [object_key(spec, p, kernel, setting) for p, kernel in zip(points, kernels, strict=True)]
            faults = self.cache.compile(sources, keys, setting.target)
            library = Path(scratch, "ladder.so")
            link_library([source.path for source, fault in zip(sources, faults, strict=True) if not fault], library)
            for _ in range(rounds):
                for kernel, symbol, fault, into in zip(kernels, symbols, faults, taken, strict=True):
                    operands = [*self.meter.inputs(spec, setting.batch, setting.bounds), *self.meter.weights(kernel)]
                    operands += result_operands(spec, setting.batch)
                    try:
                        into += [] if fault else self.meter.time(library, symbol, operands, [len(self.meter.cores)])
                    except CandidateError:
                        continue
            self.meter.forget()
        return [median(each) if each else float("inf") for each in taken]


def ladder(spec: LayerSpec, served: Point) -> list[Point]:
    """All points of a layer's space, and emb-opt0 and emb-opt1 with the served point's tasks."""
    lower_levels = [
        {name: value for name, value in served.items() if name != "stores"} | {"level": level, "ahead": 0}
        for level in (0, 1)
    ]
    return [*SPACES[spec.op].points(spec, cpu_features()), *lower_levels]


def family_layers(graph: LayerGraph) -> Iterator[LayerSpec]:
    """The layers of Ember's families, one of each workload."""
    yield from {spec.workload: spec for spec in graph.layers if spec.op in FAMILIES}.values()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("ladder-bench"), help="where models and tables are written")
    parser.add_argument("--models", nargs="*", choices=tuple(ZOO), default=list(MODELS))
    parser.add_argument("--no-storages", action="store_true", help="leave out the tables of 2 GB")
    parser.add_argument("--json", type=result_path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"environment": asdict(describe_environment()), "choices": [], "storages": {}}
    with Meter(usable_machine().cores) as meter:
        timer = LadderTimer(meter, KernelCache(), options.work)
        for name in options.models:
            path = options.work / f"{name}.onnx"
            write(name, path)
            graph = lower(load_model(path), "fp32")
            for spec in family_layers(graph):
                found = timer.choice(spec, timer.setting(graph))
                result["choices"].append({"model": name, "workload": spec.workload} | found)
                print(f"{name}: {found['over_best']:.3f} of the best, {found['best']}, {spec.workload}", flush=True)
        if not options.no_storages:
            path = options.work / "large.onnx"
            write("dlrm", path, shape=LARGE)
            for storage in STORAGES:
                with tempfile.TemporaryDirectory(dir=options.work) as folder:
                    graph = lower(load_model(path), "fp32", storage=TableStorage(storage, Path(folder)))
                    (spec,) = family_layers(graph)
                    result["storages"][storage] = found = timer.choice(spec, timer.setting(graph))
                gain = result["storages"]["fp32"]["best_us"] / found["best_us"]
                print(f"{storage}: {found['best_us']:.0f} us, {gain:.2f}x fp32", flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

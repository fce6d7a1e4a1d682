"""Code versions under interference, the paper's Fig. 6, 7 and 9: `python -m bench.paper.versions`.

Times alone are measured here; times under pressure are modelled from them (`timing.modelled_interference`), and some
are measured beside a real co-runner for comparison. At each of ten pressures the best of all samples of a layer is what
a separate search would find (the paper's naive search); Alg. 1's single pass must come close with a few of them.

    --build    make the candidates of the representative layers
    --search   and time them, alone and beside a co-runner, into bench/results/versions.json; on a machine that does
               nothing else
    --models   networks of the zoo whose every layer is taken with the samples of the shipped records
               (default: resnet50,googlenet)
    --figures  where the figures go (default: docs/figures)

Without --build or --search the figures are drawn from what was measured before.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from bench.paths import DEMO, RESULTS, ROOT
from veltair.machine.environment import describe_environment
from veltair.machine.isa import ISAS, tvm_target
from veltair.machine.topology import usable_machine

RESULT = RESULTS / "versions.json"
BUILD = ROOT / "build" / "versions"
MODELS = DEMO / "models"
FEATURES = ISAS["avx512"]
BUDGET_NS = 8_000_000  # of one measurement
CO_RUNNER = 1.0  # of the time it streams
# Model, kernel size (0: a product), input and output shape.
REPRESENTATIVE = (
    ("resnet50", 3, (1, 256, 14, 14), (1, 256, 14, 14)),  # the paper's of Fig. 6
    ("resnet50", 1, (1, 256, 14, 14), (1, 1024, 14, 14)),
    ("resnet50", 1, (1, 1024, 14, 14), (1, 256, 14, 14)),
    ("resnet50", 7, (1, 3, 224, 224), (1, 64, 112, 112)),
    ("googlenet", 1, (1, 832, 7, 7), (1, 384, 7, 7)),  # the paper's of Fig. 9
    ("mobilenet_v2", 3, (1, 144, 56, 56), (1, 144, 56, 56)),
    ("bert_base", 0, (384, 768), (384, 3072)),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--models", default="resnet50,googlenet")
    parser.add_argument("--figures", type=Path, default=ROOT / "docs" / "figures")
    args = parser.parse_args()
    if args.build or (args.search and not (BUILD / "plan.json").exists()):
        build(args.models.split(","))
    if args.search:
        search()
    if not args.build or args.search:
        from bench.paper.version_figures import draw

        draw(json.loads(RESULT.read_text("utf-8")), args.figures)
    return 0


@dataclass(frozen=True)
class LayerKind:
    """A layer to sample, and how many layers of its kind the model has."""

    model: str
    name: str
    spec: Any
    count: int


def layers(model: str) -> list[LayerKind]:
    """The distinct layers of a network of the zoo that carry products, in fp32."""
    from veltair.compiler.onnx.onnx_model import load_model
    from veltair.compiler.pipeline import lower

    found: dict[str, LayerKind] = {}
    for spec in lower(load_model(MODELS / f"{model}.onnx", None), "fp32").layers:
        if spec.op in ("conv2d", "depthwise_conv2d", "matmul"):
            count = found[spec.workload].count if spec.workload in found else 0
            found[spec.workload] = LayerKind(model, _title(spec), spec, count + 1)
    return list(found.values())


def _title(spec: Any) -> str:
    x, y = spec.inputs[0].shape, spec.outputs[0].shape
    if spec.op == "matmul":
        return f"{x[0]}x{x[1]} times {x[1]}x{y[1]}"
    more = ", residual" if len(spec.inputs) > 1 else ""
    more += ", linear" if spec.parameters.activation == "none" else ""
    kind = "depthwise " if spec.op == "depthwise_conv2d" else ""
    kernel = "x".join(map(str, spec.parameters.kernel))
    stride = spec.parameters.strides[0]
    kernel += f" stride {stride}" if stride > 1 else ""
    return f"{kind}{kernel}, {x[1]} to {y[1]} channels, {y[2]}x{y[3]}{more}"


def build(models: Sequence[str]) -> None:
    """Candidates of the representative layers as libraries; the records' samples of all layers of `models`."""
    import tempfile

    from veltair.compiler.design_spaces import SPACES
    from veltair.compiler.locality.kernel_reuse import kernel_reuse
    from veltair.compiler.shared_library import ObjectFile, compile_objects, link_library
    from veltair.profiles.records.tuning_records import RecordStore

    BUILD.mkdir(parents=True, exist_ok=True)
    known = {model: layers(model) for model in {*models, *(model for model, *_ in REPRESENTATIVE)}}
    plan: dict[str, Any] = {"layers": [], "records": []}
    for number, (model, kernel_size, inside, outside) in enumerate(REPRESENTATIVE):
        wanted = (inside, outside, kernel_size)
        layer = next(each for each in known[model] if _shape_key(each.spec) == wanted)
        space = SPACES[layer.spec.op]
        points = list(_points(layer.spec, space.points(layer.spec, FEATURES)))
        with tempfile.TemporaryDirectory() as folder:
            sources, samples = [], []
            for i, point in enumerate(points):
                kernel = space.build(layer.spec, point, FEATURES)
                sources.append(ObjectFile(kernel.function, f"v{i}", Path(folder, f"{i}.o")))
                samples.append(_sample(point, kernel, kernel_reuse(layer.spec, kernel)))
            faults = compile_objects(sources, tvm_target(FEATURES))
            link_library(
                [s.path for s, fault in zip(sources, faults, strict=True) if not fault], BUILD / f"{number}.so"
            )
        for sample, fault in zip(samples, faults, strict=True):
            sample["fault"] = fault
        plan["layers"].append({"model": model, "name": layer.name, "samples": samples})
        print(f"{model} {layer.name}: {len(samples)} candidates", flush=True)
    store = RecordStore(FEATURES, user=BUILD)
    for layer in (layer for model in models for layer in known[model]):
        space = SPACES[layer.spec.op]
        allowed = space.points(layer.spec, FEATURES)
        samples = []
        for record in store.shipped(layer.spec.workload):
            if record.run_ns and record.point in allowed:
                kernel = space.build(layer.spec, record.point, FEATURES)
                sample = _sample(record.point, kernel, kernel_reuse(layer.spec, kernel))
                samples.append(sample | {"run_ns": record.run_ns})
        if samples:
            entry = {"model": layer.model, "name": layer.name, "count": layer.count, "samples": samples}
            plan["records"].append(entry)
    (BUILD / "plan.json").write_text(json.dumps(plan), "utf-8")
    print(f"{len(plan['records'])} layers from records, {sum(len(r['samples']) for r in plan['records'])} samples")


def _shape_key(spec: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Input shape, output shape and kernel size (0: a product)."""
    return spec.inputs[0].shape, spec.outputs[0].shape, getattr(spec.parameters, "kernel", (0, 0))[0]


def _sample(point: Any, kernel: Any, reuse: Iterable[Any]) -> dict[str, Any]:
    levels = [(level.task_bytes, level.shared_bytes, level.traffic_bytes) for level in reuse]
    return {"point": point, "block_size": kernel.block_size, "parallelism": kernel.parallelism, "reuse": levels}


def _points(spec: Any, first: Sequence[dict[str, Any]], most: int = 64) -> Iterator[dict[str, Any]]:
    """The space's own points, then others that its generator takes, most different first."""
    from veltair.compiler.kernels.conv.register_tiles import max_tile_outputs, registers_per_vector, rows_per_strip

    more: list[dict[str, Any]] = []
    if spec.op == "conv2d":
        (oh, ow), each = spec.outputs[0].shape[2:], registers_per_vector(FEATURES)
        for rows, channels in product(sorted({min(oh, r) for r in (1, 2, 4, 7, 14, 28, oh)}), (1, 2, 4)):
            tile = max_tile_outputs(channels, FEATURES)
            more += [
                {"algorithm": "direct", "channels": channels, "pixels": pixels, "rows": rows}
                for pixels in sorted({tile, -(-tile * 2 // 3), -(-tile // 3)}, reverse=True)
                if rows == oh or rows % rows_per_strip(oh, ow, pixels, channels, each) == 0  # strips are whole
            ]
    elif spec.op == "depthwise_conv2d":
        more = [{"pixels": p, "rows": r} for r, p in product((1, 2, 4, 7, 14, 28, 56), (4, 7, 8, 14))]
    else:
        sizes = [(c, r) for c, r in product((4, 2, 1), (12, 8, 6, 4, 2, 1)) if c * (r + 1) <= 30]
        more = [{"columns": c, "rows": r, "tall": t} for t, (c, r) in product((1, 4, 16, 64), sizes)]
    fresh = [point for point in more if point not in first]
    room = max(most - len(first), 0)
    step = max(1, -(-len(fresh) // room)) if room else len(fresh) + 1
    yield from [*first, *fresh[::step]][:most]


def search() -> None:
    """Time what was built."""
    from veltair.compiler.timing.modelled_interference import measure_memory

    plan = json.loads((BUILD / "plan.json").read_text("utf-8"))
    cores = usable_machine().cores
    memory = measure_memory(cores)
    for number, entry in enumerate(plan["layers"]):
        time_layer(number, entry, prepared(entry), cores)
        print(f"{entry['model']} {entry['name']}: {len(entry['samples'])} timed", flush=True)
    facts = {"memory": asdict(memory), "environment": asdict(describe_environment())}
    RESULT.write_text(json.dumps(facts | plan) + "\n", "utf-8")


def prepared(entry: dict[str, Any]) -> tuple[Any, list[Any]]:
    """A layer and the kernels of its candidates."""
    from veltair.compiler.design_spaces import SPACES

    spec = next(layer.spec for layer in layers(entry["model"]) if layer.name == entry["name"])
    return spec, [SPACES[spec.op].build(spec, sample["point"], FEATURES) for sample in entry["samples"]]


def time_layer(number: int, entry: dict[str, Any], made: tuple[Any, Sequence[Any]], cores: Sequence[int]) -> None:
    """Alone on one and on all cores, and on one beside a co-runner on each of the others. What fails is dropped."""
    from veltair.compiler.timing.co_runners import run_co_runners
    from veltair.compiler.timing.measure import CandidateError, Meter, input_operands, result_operands

    spec, kernels = made
    alone = tuple(range(1, len(cores) + 1))
    rounds = [("run_ns", (), alone), ("pressed_ns", tuple(cores[1:]), (1,))]
    with Meter(tuple(cores)) as meter:
        for key, pressed, counts in rounds if len(cores) > 1 else rounds[:1]:
            with run_co_runners(pressed, CO_RUNNER):
                for i, (sample, kernel) in enumerate(zip(entry["samples"], kernels, strict=True)):
                    operands = [*input_operands(spec, 1, {}), *meter.weights(kernel), *result_operands(spec, 1)]
                    try:
                        if not sample["fault"]:
                            library = BUILD / f"{number}.so"
                            sample[key] = meter.time(library, f"v{i}", operands, counts, budget_ns=BUDGET_NS)
                    except CandidateError as error:
                        sample["fault"] = str(error)
    entry["samples"] = [sample for sample in entry["samples"] if not sample["fault"]]


if __name__ == "__main__":
    raise SystemExit(main())

"""Quantised models beside ONNX Runtime and OpenVINO on the same file, and beside bfloat16 of the float file.

    python -m bench.int8 [--models resnet50,…] [--trials N] [--rounds N] [--threads 1,2] [--prepare] [--out FILE]

Models of the zoo are quantised by ONNX Runtime's tool, as its users do: vision models and `bert_base` statically (QDQ,
weights by channel, random samples), `bert_base_dynamic` dynamically. Engines are timed in turn. Models, quantised files
and artifacts are kept in `demo/int8`, and each model's times are written as soon as they are known: a run that was
interrupted continues. `--prepare` stops before the times; `--fresh` measures those again that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from bench.part_tables import markdown_table
from bench.paths import CLI, RESULTS, result_path
from veltair.commands.bench import ENGINE_PROCESS
from veltair.commands.timing.alternate_runs import run_alternately
from veltair.compiler.quantisation.samples import ModelInput, model_inputs
from veltair.machine.environment import describe_environment
from veltair.machine.isa import cpu_features

KEPT = Path("demo/int8")
MODELS = {
    "resnet50": "resnet50",
    "mobilenet_v2": "mobilenet_v2",
    "bert_base": "bert_base",
    "bert_base_dynamic": "bert_base",
}
TITLE = "8-bit integers"
TEXT = """Networks of the zoo that ONNX Runtime's tool quantised (`python -m bench.int8`), ms of a batch of one; engines
in turn on the same file, and our own kernels on the file in floats. Our 8-bit kernels stand where no search has tried
them; the others have records. The bars: 0.85 times OpenVINO's time, and on ResNet-50 0.65 times our own in bfloat16."""
SAMPLES = 4  # that a static model is calibrated with
ROUNDS = 7


class RandomSamples(CalibrationDataReader):  # type: ignore[misc]
    """Standard normal values for inputs of floats, small ids for integers; masks let everything through.

    ::

        quantize_static(source, target, RandomSamples(source))
    """

    def __init__(self, model: Path) -> None:
        rng, inputs = np.random.default_rng(0), model_inputs(onnx.load(model, load_external_data=False).graph)
        self._left = iter([{each.name: _draw(each, rng) for each in inputs} for _ in range(SAMPLES)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


def _draw(port: ModelInput, rng: np.random.Generator) -> NDArray[Any]:
    shape = [dim or 1 for dim in port.shape]
    if port.dtype == "float32":
        return rng.standard_normal(shape, np.float32)
    if "mask" in port.name:
        return np.ones(shape, port.dtype)
    return rng.integers(0, 2 if "type" in port.name else 1000, shape).astype(port.dtype)


def quantise(model: Path, target: Path, *, dynamic: bool) -> None:
    """Write the quantised model of a float one."""
    if dynamic:
        quantize_dynamic(model, target, weight_type=QuantType.QInt8, per_channel=True)
        return
    form = {"quant_format": QuantFormat.QDQ, "activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    folded = target.with_suffix(".folded.onnx")
    _fold(model, folded)
    quantize_static(folded, target, RandomSamples(folded), per_channel=True, **form)


def _fold(model: Path, target: Path) -> None:
    """The model with its batch norms folded. The tool's own function for that refuses weights beside the file."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def main() -> int:
    args = _arguments()
    result: dict[str, Any] = {"environment": {}, "models": {}}
    if args.out.exists() and not args.fresh:
        result = json.loads(args.out.read_text("utf-8"))
    KEPT.mkdir(parents=True, exist_ok=True)
    names = args.models.split(",")
    for name in names:
        prepare(name, args.trials)
    if args.prepare:
        return 0
    for name in names:
        found = result["models"].setdefault(name, {})
        for threads in args.threads.split(","):
            if threads not in found:
                found[threads] = measure(name, int(threads), args.rounds)
                result["environment"] = asdict(describe_environment())
                whole = args.out.with_suffix(".partial")
                whole.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
                whole.replace(args.out)
            print(name, threads, json.dumps(found[threads]), flush=True)
    return 0


def prepare(name: str, trials: int | None) -> None:
    """Make the files and artifacts of a model that are not there yet."""
    floats, quantised = KEPT / f"{MODELS[name]}.onnx", KEPT / f"{name}_int8.onnx"
    _keep(floats, lambda: _call("zoo", MODELS[name], "--out", floats))
    _keep(quantised, lambda: _quantise_whole(floats, quantised, dynamic=name.endswith("_dynamic")))
    more = [] if trials is None else ["--trials", trials]
    for model in (quantised, floats):
        artifact = model.with_suffix("")
        _keep(artifact, lambda m=model, a=artifact: _call("compile", m, "--out", a, "--max-batch", 1, *more))


def _quantise_whole(floats: Path, target: Path, *, dynamic: bool) -> None:
    draft = target.with_suffix(".draft.onnx")
    quantise(floats, draft, dynamic=dynamic)
    draft.replace(target)


def _keep(path: Path, make: Callable[[], object]) -> None:
    if not path.exists():
        print(f"{path} …", flush=True)
        make()


def measure(name: str, threads: int, rounds: int) -> list[dict[str, Any]]:
    """The median of each engine in ms: engine, what it computes in, and whether on the quantised file."""
    floats, quantised = KEPT / f"{MODELS[name]}.onnx", KEPT / f"{name}_int8.onnx"
    own = "bf16" if cpu_features() & {"avx512_bf16", "amx_bf16"} else "fp32"
    engines = [
        ("veltair", "int8", quantised),
        ("veltair", own, floats),
        ("onnxruntime", "int8", quantised),
        ("openvino", "default", quantised),  # what is not quantised in what it takes for fastest
    ]
    tasks = [
        {"engine": engine, "precision": precision, "artifact": str(model.with_suffix("")), "model": str(model)}
        | {"threads": threads, "batch": 1}
        for engine, precision, model in engines
    ]
    commands = [(f"{task['engine']} {task['precision']}", [*ENGINE_PROCESS, json.dumps(task)]) for task in tasks]
    medians = run_alternately(commands, rounds, quiet=True)
    return [
        {"engine": engine, "precision": precision, "median_ms": round(median, 4)}
        for (engine, precision, _), median in zip(engines, medians, strict=True)
    ]


def table(found: Mapping[str, Any]) -> str:
    """Markdown: the medians, and ours over OpenVINO's and over ours in floats."""
    rows = []
    for name, by_threads in found["models"].items():
        for threads, engines in by_threads.items():
            ms = [each["median_ms"] for each in engines]
            label = name if name.endswith("_dynamic") else f"{name}, QDQ"
            rows.append([label, threads, *(f"{each:.2f}" for each in ms), *(f"{ms[0] / ms[i]:.2f}x" for i in (3, 1))])
    first = next(iter(next(iter(found["models"].values())).values()))
    names = [f"{each['engine']}, {each['precision']}" for each in first]
    return markdown_table(["", "threads", *names, "over OpenVINO", f"over {first[1]['precision']}"], rows)


def _call(*words: Any) -> None:
    subprocess.run([*CLI, *map(str, words)], check=True, stdout=subprocess.DEVNULL, env=os.environ)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.int8", description="Quantised models beside ONNX Runtime and OpenVINO.")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--trials", type=int, help="of layers without records, when artifacts are made")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--prepare", action="store_true", help="make files and artifacts, and measure nothing")
    parser.add_argument("--fresh", action="store_true", help="measure again what the result has already")
    parser.add_argument("--out", type=result_path, default=RESULTS / "int8.json")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())

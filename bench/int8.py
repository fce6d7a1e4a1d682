"""Quantised models beside ONNX Runtime and OpenVINO, each engine on the same file.

    python -m bench.int8 [--models resnet50,mobilenet_v2,bert_base] [--trials N] [--threads 1,2] [--out FILE]

Vision models of the zoo are quantised by ONNX Runtime's tool with random images (QDQ, weights by channel), BERT
dynamically. `veltair bench` times them in turn; the artifact in bfloat16 or fp32 of the float file stands beside.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from bench.paths import CLI, RESULTS
from veltair.machine.environment import describe_environment

DYNAMIC = frozenset({"bert_base", "bert_large"})
IMAGES = 4  # that a vision model is calibrated with


class RandomImages(CalibrationDataReader):  # type: ignore[misc]
    """Standard normal values for every input of a model.

    ::

        quantize_static(source, target, RandomImages(source))
    """

    def __init__(self, model: Path) -> None:
        rng, session = np.random.default_rng(0), ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        self._left = iter(
            [
                {
                    port.name: rng.standard_normal([d if isinstance(d, int) else 1 for d in port.shape], np.float32)
                    for port in session.get_inputs()
                }
                for _ in range(IMAGES)
            ]
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


def quantise(model: Path, dynamic: bool) -> Path:
    """The quantised file beside a float one."""
    target = model.with_name(f"{model.stem}_int8.onnx")
    if dynamic:
        quantize_dynamic(model, target, weight_type=QuantType.QInt8, per_channel=True)
        return target
    prepared = model.with_name(f"{model.stem}_prepared.onnx")
    quant_pre_process(model, prepared, skip_symbolic_shape=True)
    form = {"quant_format": QuantFormat.QDQ, "activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(prepared, target, RandomImages(prepared), per_channel=True, **form)
    return target


def main() -> int:
    args = _arguments()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models.split(","):
            floats = Path(folder, f"{name}.onnx")
            _call("zoo", name, "--out", floats)
            times = {}
            for model in (quantise(floats, name in DYNAMIC), floats):
                artifact = model.with_suffix("")
                trials = [] if args.trials is None else ["--trials", args.trials]
                _call("compile", model, "--out", artifact, "--max-batch", 1, *trials)
                _call("verify", artifact, model)
                times[model.stem] = json.loads(_call("bench", artifact, model, "--threads", args.threads, "--json"))
            found[name] = times
            print(json.dumps({name: times}, indent=1), flush=True)
    result = {"environment": asdict(describe_environment()), "models": found}
    args.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return 0


def _call(*words: Any) -> str:
    return subprocess.run([*CLI, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True).stdout


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.int8", description="Quantised models beside ONNX Runtime and OpenVINO.")
    parser.add_argument("--models", default="resnet50,mobilenet_v2,bert_base")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--out", type=Path, default=RESULTS / "int8.json")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())

"""`veltair verify`: an artifact against ONNX Runtime on the ONNX file that it was made from.

With data, it states instead how far the artifact's outputs are from those of that file, or of the float file that a
quantised one was made from.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from veltair.api.accuracy import OutputAccuracy, measure_accuracy
from veltair.compiler.onnx.tensorflow.saved_model import as_onnx
from veltair.compiler.verification_report import VerificationReport
from veltair.compiler.verify import verify
from veltair.errors import ConfigError
from veltair.profiles.artifact.artifact_folder import load_artifact


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="DIR")
    parser.add_argument("model", type=Path, metavar="MODEL", help="the ONNX file or SavedModel that it was made from")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DATA.npz",
        help="samples of the inputs, an array of each name: states the accuracy on them, and compares no layers",
    )
    parser.add_argument("--features", type=Path, metavar="FEATURES.toml", help="the description it was compiled with")
    parser.add_argument(
        "--tensorflow-python", metavar="PYTHON", help="one that has TensorFlow and tf2onnx, for a SavedModel"
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    parser.epilog = """\
examples:
  veltair verify artifacts/resnet50 resnet50.onnx
  veltair verify artifacts/resnet50-int8 resnet50.onnx --data images.npz"""


def run(args: argparse.Namespace) -> int:
    """Exit code 0 when everything agrees, 1 when something does not; with data, 1 for outputs that are not numbers.

    UserError is raised to the caller.
    """
    if args.data is not None:
        return _state_accuracy(args)
    with as_onnx(args.model, args.tensorflow_python) as onnx:
        report = verify(load_artifact(args.artifact), onnx, args.features)
    if args.json:
        print(json.dumps(facts(report)))
    else:
        show(report, Console())
    return 0 if report.ok else 1


def _state_accuracy(args: argparse.Namespace) -> int:
    if args.features is not None:
        raise ConfigError("--data: is for models whose inputs are arrays, without --features")
    with as_onnx(args.model, args.tensorflow_python) as onnx:
        found = measure_accuracy(args.artifact, onnx, args.data)
    if args.json:
        print(json.dumps({"outputs": [asdict(each) for each in found]}))
    else:
        for each in found:
            Console().print(describe(each), markup=False, highlight=False, soft_wrap=True)
    return 0 if all(each.ok for each in found) else 1


def describe(found: OutputAccuracy) -> str:
    """The accuracy of an output as a sentence."""
    if not found.ok:
        return f"output {found.name}: holds NaN or infinity on some of {found.samples} samples"
    classes = "" if found.same_argmax is None else f", the same greatest score in {found.same_argmax:.2%} of rows"
    return (
        f"output {found.name}, {found.samples} samples: largest error {found.max_abs_err:.3g}, "
        f"{found.max_rel_err:.2e} of the largest value; mean error {found.mean_abs_err:.3g}, "
        f"{found.mean_rel_err:.2e} of the mean magnitude; cosine {found.cosine:.6f}, "
        f"signal to noise {'exact' if found.snr_db is None else f'{found.snr_db:.1f} dB'}{classes}"
    )


def facts(report: VerificationReport) -> dict[str, Any]:
    """The report, ready for JSON."""
    return {
        "ok": report.ok,
        "max_abs_err": report.max_abs_err,
        "max_rel_err": report.max_rel_err,
        "spread": report.spread,
        "min_cosine": report.min_cosine,
        "layers": report.layers,
        "versions": report.versions,
        "max_layer_err": report.max_layer_err,
        "max_table_err": report.max_table_err,
        "tolerance": report.tolerance,
        "batches": report.batches,
        "extents": report.extents,
        "cores": report.cores,
        "mismatches": report.mismatches,
    }


def show(report: VerificationReport, console: Console) -> None:
    """Print the report for people."""
    for text in report.mismatches:
        console.print(text, style="red", highlight=False)
    verdict = "[green]agrees[/]" if report.ok else "[red]differs[/]"
    extents = f"extents {', '.join(map(str, report.extents))}, " if report.extents else ""
    console.print(
        f"{verdict}: {report.versions} versions of {report.layers} layers, batches "
        f"{', '.join(map(str, report.batches))}, {extents}1 … {report.cores} cores; "
        f"largest error {report.max_abs_err:.3g}, "
        f"{report.max_rel_err:.2e} of the largest value (allowed {report.tolerance:g}), "
        f"cosine {report.min_cosine:.6f}; of a layer {report.max_layer_err:.2e}",
        highlight=False,
        soft_wrap=True,
    )

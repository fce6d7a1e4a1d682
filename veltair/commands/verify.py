"""`veltair verify`: an artifact against ONNX Runtime on the ONNX file that it was made from."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from veltair.compiler.onnx.saved_model import as_onnx
from veltair.compiler.verify import VerificationReport, verify
from veltair.profiles.artifact.artifact_folder import load_artifact


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="DIR")
    parser.add_argument("model", type=Path, metavar="MODEL", help="the ONNX file or SavedModel that it was made from")
    parser.add_argument("--features", type=Path, metavar="FEATURES.toml", help="the description it was compiled with")
    parser.add_argument(
        "--tensorflow-python", metavar="PYTHON", help="one that has TensorFlow and tf2onnx, for a SavedModel"
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    parser.epilog = "example:\n  veltair verify artifacts/resnet50 resnet50.onnx"


def run(args: argparse.Namespace) -> int:
    """Exit code 0 when everything agrees, 1 when something does not. UserError is raised to the caller."""
    with as_onnx(args.model, args.tensorflow_python) as onnx:
        report = verify(load_artifact(args.artifact), onnx, args.features)
    if args.json:
        print(json.dumps(facts(report)))
    else:
        show(report, Console())
    return 0 if report.ok else 1


def facts(report: VerificationReport) -> dict[str, Any]:
    """The report, ready for JSON."""
    return {
        "ok": report.ok,
        "max_abs_err": report.max_abs_err,
        "max_rel_err": report.max_rel_err,
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

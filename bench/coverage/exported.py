"""Exports networks to ONNX: started by `bench.coverage` in the Python that has PyTorch.

    PYTHON -m bench.coverage.exported FOLDER < lines

Each line of its input is a JSON list of a family, a network, what `networks.toml` says of it, and an exporter; each
line of its output says `null`, or why the export failed. It needs nothing of veltair.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

SEED = 1
OPSET = 18
BUILDERS = {
    "torchvision-classification": "vision:classification",
    "torchvision-segmentation": "vision:segmentation",
    "torchvision-detection": "vision:detection",
    "torchvision-video": "vision:video",
    "torchvision-flow": "vision:flow",
    "timm": "vision:timm",
    "images": "images:network",
    "sequences": "sequences:network",
    "transformers": "language:transformers",
    "recommendation": "recommendation:recommender",
    "scikit-learn": "scikit_learn:pipeline",
}


@dataclass(frozen=True, slots=True)
class Built:
    """A network of PyTorch with an example of its inputs, by name.

    batch: whether their first dimension may vary in the file.
    """

    module: Any
    inputs: Mapping[str, Any]
    batch: bool = True


def main() -> int:
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")  # libraries print what they like to standard output
    os.dup2(2, 1)
    for line in sys.stdin:
        family, name, facts, exporter = json.loads(line)
        path = folder / f"{family}.{name}.{exporter}.onnx"
        try:
            export(family, name, facts, exporter, path)
            answer = None
        except Exception as error:  # a library's own, of any type; its text is the result
            answer = f"{type(error).__name__}: {str(error).strip()[:400]}"
        print(json.dumps(answer), file=answers, flush=True)
    return 0


def export(family: str, name: str, facts: Mapping[str, Any], exporter: str, path: Path) -> None:
    """Write a network to `path`; a file that is there is whole, since it gets its name last."""
    module, _, function = BUILDERS[family].partition(":")
    build = getattr(import_module(f"bench.coverage.builders.{module}"), function)
    draft = path.with_suffix(".draft")
    if exporter == "skl2onnx":
        draft.write_bytes(build(name, facts))
    else:
        _export_torch(build, name, facts, exporter, draft)
    draft.rename(path)


def _export_torch(build: Any, name: str, facts: Mapping[str, Any], exporter: str, draft: Path) -> None:
    import torch

    torch.manual_seed(SEED)
    built = build(name, facts)
    model = built.module.eval()
    names = list(built.inputs)
    common: dict[str, Any] = {"input_names": names, "opset_version": OPSET}
    varying = {name: {0: "batch"} for name in names} if built.batch else None
    arguments = tuple(built.inputs.values())
    with torch.no_grad():
        if exporter == "torchscript":
            torch.onnx.export(model, arguments, str(draft), dynamo=False, dynamic_axes=varying, **common)
        else:
            axis = torch.export.Dim("batch", min=1, max=64)
            shapes = tuple({0: axis} for _ in names) if built.batch else None
            torch.onnx.export(
                model, arguments, str(draft), dynamo=True, external_data=False, dynamic_shapes=shapes, **common
            )


if __name__ == "__main__":
    sys.exit(main())

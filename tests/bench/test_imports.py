"""Every bench can be imported, so that a rename in the code that it measures does not break it unnoticed."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
MODULES = sorted(
    ".".join(path.relative_to(BENCH.parent).with_suffix("").parts)
    for path in BENCH.rglob("*.py")
    if path.name != "__init__.py"
)

NEED_TORCH = {"bench.recsys.training_step.dien", "bench.recsys.training_step.timed_steps"}


@pytest.mark.parametrize("module", MODULES)
def test_every_bench_can_be_imported(module: str) -> None:
    if module in NEED_TORCH:
        pytest.importorskip("torch", reason=f"torch is not installed: {module} is not imported")
    importlib.import_module(module)

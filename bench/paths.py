"""Where the benches find the repository, their results and the command line of veltair."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"  # committed: JSON, each file with the environment it was measured in
DEMO = ROOT / "demo"  # models and artifacts that `make demo` and the benches write; not committed
SCENARIOS = ROOT / "scenarios"
CLI = [sys.executable, "-m", "veltair.cli"]

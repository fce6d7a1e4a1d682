"""Standing orders in native threads, which lose their core at any instruction."""

from __future__ import annotations

import subprocess
from pathlib import Path

import veltair.server.wire

QUERIES = 1_000_000  # of each of three threads
SOURCES = Path(veltair.server.wire.__file__).parent


def test_every_claim_is_run_or_taken_back_once(tmp_path: Path) -> None:
    program, driver = tmp_path / "races", Path(__file__).with_name("claim_races.c")
    sources = [SOURCES / "standing_orders.c", SOURCES / "claim_lines.c", SOURCES / "done_queries.c"]
    flags = ["-std=gnu11", "-O2", "-pthread", f"-I{SOURCES.parents[1]}"]
    subprocess.run(["gcc", *flags, "-o", program, driver, *sources], check=True)
    ended = subprocess.run([program, str(QUERIES)], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout

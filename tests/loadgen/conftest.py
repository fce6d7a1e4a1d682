from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Oracle:
    """The inference server of oracle.py, running in a process of its own."""

    process: subprocess.Popen[str]
    http: int
    grpc: int

    def url(self, scheme: str) -> str:
        return f"{scheme}://127.0.0.1:{self.http if scheme == 'http' else self.grpc}"

    def stats(self, model: str) -> dict[str, int]:
        with urllib.request.urlopen(f"{self.url('http')}/v2/models/{model}/stats", timeout=30) as reply:
            counts: dict[str, int] = json.load(reply)
            return counts


@contextmanager
def started() -> Iterator[Oracle]:
    command = [sys.executable, str(Path(__file__).with_name("oracle.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            http, grpc = map(int, process.stdout.readline().split())
            yield Oracle(process, http, grpc)
        finally:
            process.kill()


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    with started() as server:
        yield server


@pytest.fixture
def own_oracle() -> Iterator[Oracle]:
    """One that the test may kill, and whose counts are its own."""
    with started() as server:
        yield server


@pytest.fixture
def scenario_file(tmp_path: Path) -> Any:
    """write(target, [(name, qps, target_ms), …], **load) -> path of a scenario file."""

    def write(target: str, tenants: list[tuple[str, float, float]], **load: float) -> Path:
        options = {"duration_s": 0.5, "warmup_s": 0.1, "timeout_s": 5.0} | load
        lines = ["[load]", f'target = "{target}"', *(f"{key} = {value}" for key, value in options.items())]
        for name, qps, target_ms in tenants:
            lines += ["[[tenants]]", f'name = "{name}"', f"qps = {qps}", f"target_ms = {target_ms}"]
        path = tmp_path / "scenario.toml"
        path.write_text("\n".join(lines))
        return path

    return write

"""Starts the fake inference server of fake_server.py, and writes scenario files for it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FakeServer:
    """The running server, in a process of its own."""

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
def start_fake_server() -> Iterator[FakeServer]:
    command = [sys.executable, str(Path(__file__).with_name("fake_server.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            http, grpc = map(int, process.stdout.readline().split())
            yield FakeServer(process, http, grpc)
        finally:
            process.kill()


def write_scenario(folder: Path, target: str, tenants: list[tuple[str, float, float]], **load: float) -> Path:
    """A scenario file; tenants are (name, qps, target_ms), `load` adds to or replaces keys of its `[load]` table."""
    options = {"duration_s": 0.5, "warmup_s": 0.1, "timeout_s": 5.0} | load
    lines = ["[load]", f'target = "{target}"', *(f"{key} = {value}" for key, value in options.items())]
    for name, qps, target_ms in tenants:
        lines += ["[[tenants]]", f'name = "{name}"', f"qps = {qps}", f"target_ms = {target_ms}"]
    path = folder / "scenario.toml"
    path.write_text("\n".join(lines))
    return path

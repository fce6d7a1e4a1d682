"""The daemon, or what stands in its place, as a process of a bench."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CLI = [sys.executable, "-m", "veltair.cli"]
Tenant = tuple[str, Path, float | None]  # name, artifact, target in milliseconds: None, the artifact's own


def configuration(tenants: Iterable[Tenant], policy: str = "") -> str:
    """Text of a configuration: HTTP and gRPC at free ports; the daemon's own policy where none is named."""
    text = '[server]\nhttp = "127.0.0.1:0"\ngrpc = "127.0.0.1:0"\nshared_memory = true\n'
    text += f'policy = "{policy}"\n' if policy else ""
    for name, artifact, qos_ms in tenants:
        text += f'\n[[tenants]]\nname = "{name}"\nartifact = "{artifact}"\n'
        text += "" if qos_ms is None else f"qos_ms = {qos_ms}\n"
    return text


def serve(config: Path) -> list[str]:
    """The daemon's command."""
    return [*CLI, "serve", str(config), "--json"]


@contextmanager
def running(command: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Its process, and its addresses by protocol. A bench that is terminated takes its processes with it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(command)} did not start (exit code {process.wait()})")
        yield process.pid, json.loads(line)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()

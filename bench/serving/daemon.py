"""The daemon, or a peer that takes its place, as a process of a bench."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from bench.paths import CLI


class ServedModel(NamedTuple):
    """A tenant of the daemon's configuration."""

    name: str
    artifact: Path
    target_ms: float | None = None  # None: the artifact's own


def configuration(models: Iterable[ServedModel], policy: str | None = None) -> dict[str, Any]:
    """A configuration with HTTP and gRPC at free ports. The daemon's default policy applies where none is named."""
    server: dict[str, Any] = {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0", "shared_memory": True}
    if policy is not None:
        server["policy"] = policy
    tenants: list[dict[str, Any]] = []
    for model in models:
        own_target = {} if model.target_ms is None else {"qos_ms": model.target_ms}
        tenants.append({"name": model.name, "artifact": str(model.artifact), **own_target})
    return {"server": server, "tenants": tenants}


def write_toml(path: Path, document: dict[str, Any]) -> None:
    """Writes a configuration or a scenario."""
    path.write_text(tomli_w.dumps(document), "utf-8")


def serve_command(config: Path) -> list[str]:
    """The command that starts the daemon."""
    return [*CLI, "serve", str(config), "--json"]


@contextmanager
def running(command: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Starts a server and stops it at the end: its process id, and its addresses by protocol.

    A bench that is terminated takes the server with it. Raises SystemExit where the server does not start.
    """
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

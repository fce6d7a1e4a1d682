"""Traces of queries at a collector by others: Phoenix, which takes OTLP over gRPC and HTTP and is asked by its API."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from example_models import SPIN_LAYERS
from free_ports import free_ports
from running_daemon import Daemon, configuration, running, spin, until

PHOENIX = shutil.which("phoenix")
START_S = 300.0  # it makes its database first
PARENT = "b7ad6b7169203331"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PHOENIX is None, reason="there is no collector (in an environment of its own: pip install arize-phoenix)"
    ),
]


class Phoenix:
    """A collector that can be ended and started again, with what it has stored."""

    def __init__(self, folder: Path) -> None:
        self.http, self.grpc = free_ports(2)
        self._folder = folder

    @contextmanager
    def running(self) -> Iterator[None]:
        own = {"PHOENIX_HOST": "127.0.0.1", "PHOENIX_PORT": str(self.http), "PHOENIX_GRPC_PORT": str(self.grpc)}
        own |= {"PHOENIX_WORKING_DIR": str(self._folder), "PHOENIX_TELEMETRY_ENABLED": "false"}
        with (self._folder / "log").open("w") as log:
            process = subprocess.Popen(
                [str(PHOENIX), "serve"], env=os.environ | own, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            until("Phoenix is there", lambda: process.poll() is not None or self._is_ready(), START_S)
            assert process.poll() is None, (self._folder / "log").read_text()
            yield
        finally:
            process.kill()
            process.wait()

    def traces(self) -> dict[str, list[Any]]:
        """Spans by their trace."""
        found: dict[str, list[Any]] = {}
        cursor = ""
        while cursor is not None:
            query = f"limit=1000&cursor={cursor}" if cursor else "limit=1000"
            page = json.loads(self._get(f"/v1/projects/default/spans?{query}"))
            for span in page["data"]:
                found.setdefault(span["context"]["trace_id"], []).append(span)
            cursor = page["next_cursor"]
        return found

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}") as answer:
            body: bytes = answer.read()
        return body

    def _is_ready(self) -> bool:
        try:
            self._get("/readyz")
        except (urllib.error.URLError, ConnectionError):
            return False
        return True


def ask(daemon: Daemon, first: int) -> dict[str, str]:
    """Over both protocols one query with a sampled context, one with a context that is not, and one without; the
    requests' ids by the traces that are to come."""
    asked = {}
    grpc, http = triton_grpc.InferenceServerClient(daemon.grpc), triton_http.InferenceServerClient(daemon.http)
    with grpc, http:
        for number, (name, module, client) in enumerate(
            [("grpc", triton_grpc, grpc), ("http", triton_http, http)] * 2,  # by Python, then by an I/O thread
            start=first,
        ):
            trace = f"{number:032x}"
            asked[trace] = f"{name}-{number}"
            for flag, key in (("01", asked[trace]), ("00", "unsampled")):
                context = {"traceparent": f"00-{trace if flag == '01' else 'f' * 32}-{PARENT}-{flag}"}
                client.infer("spin", spin(module, 2, 1), request_id=key, headers=context)
            client.infer("spin", spin(module, 2, 1))
    return asked


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_one_trace_a_query_and_a_collector_that_comes_back(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    (folder := tmp_path / "phoenix").mkdir()
    phoenix = Phoenix(folder)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    port = phoenix.grpc if protocol == "grpc" else phoenix.http
    with running(tmp_path, configuration(artifacts, "spin", otel=f"http://127.0.0.1:{port}")) as daemon:
        with phoenix.running():
            asked = ask(daemon, 1)
            until("their traces", lambda: phoenix.traces().keys() >= asked.keys())
        ask(daemon, 101)  # while it is away

        def count(outcome: str) -> float:
            return daemon.metric("veltair_traces_total", outcome=outcome)

        until("they are given up", lambda: count("failed") == 4)
        with phoenix.running():
            asked |= ask(daemon, 201)
            until("the later traces", lambda: phoenix.traces().keys() >= asked.keys())
            found = phoenix.traces()
        assert (count("sent"), count("dropped")) == (8, 0)

    assert found.keys() == asked.keys(), "nothing of the queries that nobody samples"
    for trace, request in asked.items():
        spans = found[trace]
        [root] = [span for span in spans if span["name"] == "infer"]
        children = [span for span in spans if span is not root]
        assert root["parent_id"] == PARENT and root["attributes"]["veltair.request_id"] == request
        assert root["attributes"]["network.protocol.name"] == request.partition("-")[0]
        assert {span["parent_id"] for span in children} == {root["context"]["span_id"]}
        assert {span["name"] for span in children} == {"decode", "queue", "block", "encode"}
        assert max(span["attributes"].get("veltair.layers.stop", 0) for span in children) == SPIN_LAYERS
        assert all(root["start_time"] <= span["start_time"] <= span["end_time"] <= root["end_time"] for span in spans)

"""What a web page can make its visitor's browser do to a daemon on the same machine: nothing."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_daemon import X_AS_JSON, Daemon, X, configuration, running

pytestmark = pytest.mark.slow

INFER, REGISTER = "/v2/models/mlp/infer", "/v2/systemsharedmemory/region/stolen/register"
MEMORY = json.dumps({"key": "secret", "byte_size": 8}).encode()


@pytest.fixture(scope="module")
def daemon(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    text = configuration(artifacts, "mlp", shared_memory=True, origins=["https://ours.example"])
    with running(tmp_path_factory.mktemp("daemon"), text) as started:
        yield started


def ask(daemon: Daemon, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON of an answer. `host` is the daemon's own unless it is given."""
    address, _, port = daemon.http.rpartition(":")
    connection = http.client.HTTPConnection(address, int(port), timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in ({"host": daemon.http} | headers).items():
            connection.putheader(name.replace("_", "-"), value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        data = answer.read()
        plain = answer.headers.get("content-type") == "application/json"
        return answer.status, json.loads(data) if plain else data
    finally:
        connection.close()


def test_a_name_that_leads_here_by_rebinding_reads_nothing(daemon: Daemon) -> None:
    for path in ("/v2/health/ready", "/metrics", "/admin", "/v2/models/mlp"):
        status, answer = ask(daemon, "GET", path, host="evil.example")
        assert status == 421 and "evil.example" in answer["error"]
        assert ask(daemon, "GET", path)[0] == ask(daemon, "GET", path, host="localhost")[0] == 200


def test_neither_does_inference_that_has_a_plan(daemon: Daemon) -> None:
    binary = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "shape": list(X.shape),
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": X.nbytes},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    headers = {"inference_header_content_length": str(len(binary))}
    for _ in range(2):
        assert ask(daemon, "POST", INFER, binary + X.tobytes(), **headers)[0] == 200
    refused = {"host": "evil.example"}, {"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"}
    for foreign, code in zip(refused, (421, 403, 403), strict=True):
        assert ask(daemon, "POST", INFER, binary + X.tobytes(), **headers, **foreign)[0] == code
    for host in ("", "a b", "u@localhost", "localhost:http", "localhost:99999"):
        assert ask(daemon, "POST", INFER, binary + X.tobytes(), **headers, host=host)[0] == 400


def test_a_target_that_names_a_server_decides_whatever_host_says(daemon: Daemon) -> None:
    for _ in range(2):
        assert ask(daemon, "POST", f"http://{daemon.http}{INFER}", X_AS_JSON, host="evil.example")[0] == 200
        assert ask(daemon, "POST", f"http://evil.example{INFER}", X_AS_JSON)[0] == 421
        assert ask(daemon, "POST", f"https://{daemon.http}{INFER}", X_AS_JSON)[0] == 421
    assert ask(daemon, "GET", f"http://{daemon.http}?a")[0] == 307  # the way to the dashboard
    assert ask(daemon, "OPTIONS", "*")[0] == 200


def test_pages_elsewhere_register_no_memory_and_ask_nothing(daemon: Daemon) -> None:
    for path, body in ((REGISTER, MEMORY), (INFER, X_AS_JSON), ("/v2/repository/index", b"{}")):
        status, answer = ask(daemon, "POST", path, body, origin="http://evil.example", content_type="text/plain")
        assert status == 403 and "evil.example" in answer["error"]
    assert ask(daemon, "POST", REGISTER, MEMORY, content_type="text/plain")[0] == 415
    assert ask(daemon, "GET", "/v2/systemsharedmemory/status") == (200, [])
    assert ask(daemon, "POST", INFER, X_AS_JSON, origin="https://ours.example")[0] == 200
    assert ask(daemon, "POST", INFER, X_AS_JSON, origin=f"http://{daemon.http}")[0] == 200


def test_connections_are_counted(daemon: Daemon) -> None:
    assert daemon.metric("veltair_connections") >= 1
    assert daemon.metric("veltair_connections_refused_total") == 0
    assert daemon.metric("veltair_refusals_total", tenant="mlp", reason="overload") == 0

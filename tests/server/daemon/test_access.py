"""Who may do what in a daemon with clients, by stock clients over HTTP and gRPC."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from example_models import mlp_outputs
from grpc_health.v1 import health_pb2, health_pb2_grpc
from running_daemon import X_AS_JSON, Daemon, X, configuration, running, tensor, until
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

INFER = "/v2/models/mlp/infer"
CLIENTS = {  # name: (roles, tenants)
    "shop": (["infer"], ["mlp"]),
    "lab": (["infer"], None),
    "probe": (["metrics"], None),
    "operator": (["admin"], None),
}


def clients(**tokens: str) -> str:
    """The tables of these clients, each with its token."""
    text = ""
    for name, token in tokens.items():
        roles, tenants = CLIENTS[name]
        text += f'[[clients]]\nname = "{name}"\ntoken_sha256 = ["{hashlib.sha256(token.encode()).hexdigest()}"]\n'
        text += f"roles = {json.dumps(roles)}\n" + (f"tenants = {json.dumps(tenants)}\n" if tenants else "")
    return text


EVERYBODY = clients(shop="s1", lab="l1", probe="p1", operator="o1")


@pytest.fixture(scope="module")
def daemon(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    text = configuration(artifacts, "mlp", "spin", model_control=True, shared_memory=True)
    with running(tmp_path_factory.mktemp("daemon"), text + EVERYBODY) as started:
        yield started


def ask(address: str, method: str, path: str, token: str = "", body: bytes | None = None, **headers: str) -> Any:
    """Status, headers and body of an answer."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    shown = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request(method, path, body, shown | headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def status(daemon: Daemon, path: str, token: str = "", body: bytes | None = None) -> int:
    found: int = ask(daemon.http, "GET" if body is None else "POST", path, token, body)[0]
    return found


@pytest.mark.parametrize(
    ("path", "body", "allowed"),
    [
        ("/v2/health/live", None, {"", "s1", "l1", "p1", "o1", "x"}),
        ("/v2/health/ready", None, {"", "s1", "l1", "p1", "o1", "x"}),
        ("/v2", None, {"s1", "l1"}),
        ("/v2/models/mlp", None, {"s1", "l1"}),
        (INFER, X_AS_JSON, {"s1", "l1"}),
        ("/v2/repository/index", b"{}", {"s1", "l1", "o1"}),
        ("/v2/systemsharedmemory/status", None, {"s1", "l1"}),
        ("/metrics", None, {"p1"}),
        ("/admin", None, {"o1"}),
        ("/admin/app.js", None, {"o1"}),
        ("/v2/repository/models/mlp/load", b"{}", {"o1"}),
        ("/admin/reload", b"", {"o1"}),
    ],
)
def test_each_path_takes_its_role(daemon: Daemon, path: str, body: bytes | None, allowed: set[str]) -> None:
    for token in ("", "x", "s1", "l1", "p1", "o1"):
        found = status(daemon, path, token, body)
        expected = 200 if token in allowed else 401 if token in ("", "x") else 403
        assert (token, found) == (token, expected)


def test_who_is_unknown_is_told_how_to_be_known(daemon: Daemon) -> None:
    code, headers, body = ask(daemon.http, "POST", INFER, body=X_AS_JSON)
    assert (code, headers["www-authenticate"]) == (401, "Bearer")
    assert "token" in json.loads(body)["error"]
    code, headers, _ = ask(daemon.http, "GET", "/admin")
    assert code == 401 and headers["www-authenticate"].startswith("Basic ")
    password = base64.b64encode(b"anyone:o1").decode()  # as a browser sends it
    assert ask(daemon.http, "GET", "/admin", Authorization=f"Basic {password}")[0] == 200


def test_a_client_of_some_tenants_sees_no_others(daemon: Daemon) -> None:
    code, _, body = ask(daemon.http, "GET", "/v2/models/spin", "s1")
    unknown = ask(daemon.http, "GET", "/v2/models/spun", "s1")[2]
    assert code == 404 and body == unknown.replace(b"spun", b"spin")
    assert ask(daemon.http, "GET", "/v2/models/spin", "l1")[0] == 200
    for path, key in (("/v2/models/stats", "model_stats"), ("/v2/repository/index", "")):
        names = {}
        for token in ("s1", "l1"):
            body = ask(daemon.http, "POST" if not key else "GET", path, token, None if key else b"{}")[2]
            names[token] = {row["name"] for row in (json.loads(body)[key] if key else json.loads(body))}
        assert names == {"s1": {"mlp"}, "l1": {"mlp", "spin"}}


def infer_http(daemon: Daemon, token: str) -> Any:
    with triton_http.InferenceServerClient(daemon.http) as client:
        headers = {"Authorization": f"Bearer {token}"} if token else None
        return client.infer("mlp", [tensor(triton_http, "x", X, "FP32")], headers=headers).as_numpy("y")


def infer_grpc(daemon: Daemon, token: str) -> Any:
    with triton_grpc.InferenceServerClient(daemon.grpc) as client:
        headers = {"authorization": f"Bearer {token}"} if token else None
        return client.infer("mlp", [tensor(triton_grpc, "x", X, "FP32")], headers=headers).as_numpy("y")


def denied(daemon: Daemon) -> dict[str, float]:
    page = ask(daemon.http, "GET", "/metrics", "p1")[2].decode().splitlines()
    rows = [line.split() for line in page if line.startswith("veltair_denied_total{")]
    return {name.split('"')[1]: float(value) for name, value in rows}


def test_denied_requests_are_counted_by_reason(daemon: Daemon) -> None:
    before = denied(daemon)
    assert (status(daemon, INFER, "", X_AS_JSON), status(daemon, INFER, "x", X_AS_JSON)) == (401, 401)
    assert status(daemon, INFER, "p1", X_AS_JSON) == 403
    for token in ("", "o1"):
        with pytest.raises(InferenceServerException):
            infer_grpc(daemon, token)
    counted = {reason: count - before[reason] for reason, count in denied(daemon).items()}
    assert counted == {"unauthenticated": 3, "forbidden": 2}


@pytest.mark.parametrize("infer", [infer_http, infer_grpc])
def test_a_plan_learnt_from_one_client_serves_no_other(daemon: Daemon, infer: Any) -> None:
    expected = mlp_outputs(X)
    for _ in range(3):  # from the second one on by a plan
        np.testing.assert_allclose(infer(daemon, "s1"), expected, rtol=1e-5)
    for token in ("", "x", "s", "s11", "p1", "o1"):
        with pytest.raises(InferenceServerException) as refused:
            infer(daemon, token)
        known = token in ("p1", "o1")
        assert str(refused.value.status()).endswith(
            ("403", "PERMISSION_DENIED") if known else ("401", "UNAUTHENTICATED")
        )


def test_over_grpc_health_is_for_all_and_the_rest_by_role(daemon: Daemon) -> None:
    with grpc.insecure_channel(daemon.grpc) as channel:
        asked = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert asked.status == health_pb2.HealthCheckResponse.SERVING
    with triton_grpc.InferenceServerClient(daemon.grpc) as client:
        assert client.is_server_live() and client.is_server_ready()
        for call, allowed in (
            (lambda headers: client.get_model_metadata("mlp", headers=headers), {"s1"}),
            (lambda headers: client.get_model_repository_index(headers=headers), {"s1", "o1"}),
            (lambda headers: client.load_model("mlp", headers=headers), {"o1"}),
        ):
            for token in ("", "s1", "o1", "p1"):
                headers = {"authorization": f"Bearer {token}"} if token else None
                if token in allowed:
                    call(headers)
                    continue
                with pytest.raises(InferenceServerException, match="token" if not token else "lacks the role"):
                    call(headers)


def test_shared_memory_belongs_to_the_client_that_registered_it(daemon: Daemon) -> None:
    key = f"veltair-test-access-{daemon.process.pid}"
    Path("/dev/shm", key).write_bytes(bytes(64))
    try:
        where = "/v2/systemsharedmemory"
        body = json.dumps({"key": key, "byte_size": 64}).encode()
        for token in ("s1", "l1"):  # each has a name of its own
            assert status(daemon, f"{where}/region/r/register", token, body) == 200
        assert status(daemon, f"{where}/region/r/unregister", "l1", b"") == 200
        assert status(daemon, f"{where}/region/r/status", "l1") == 400
        assert status(daemon, f"{where}/region/r/status", "s1") == 200
        assert status(daemon, f"{where}/unregister", "l1", b"") == 200
        assert len(json.loads(ask(daemon.http, "GET", f"{where}/status", "s1")[2])) == 1
    finally:
        Path("/dev/shm", key).unlink()


def test_a_token_is_withdrawn_by_a_reload_also_where_there_is_a_plan(artifacts: Path, tmp_path: Path) -> None:
    plain = configuration(artifacts, "mlp")
    with running(tmp_path, plain + clients(shop="s1", probe="p1")) as daemon:
        for _ in range(3):
            for infer in (infer_http, infer_grpc):
                infer(daemon, "s1")
        (tmp_path / "serve.toml").write_text(plain + clients(shop="s2", probe="p1"))
        daemon.process.send_signal(signal.SIGHUP)
        until("the new token is known", lambda: status(daemon, "/v2/models/mlp", "s2") == 200)
        for infer in (infer_http, infer_grpc):
            with pytest.raises(InferenceServerException, match="token"):
                infer(daemon, "s1")
            infer(daemon, "s2")


def test_a_reload_that_would_let_everybody_in_is_refused(artifacts: Path, tmp_path: Path) -> None:
    """A file that is cut short has its tenants, maybe, and no clients any more."""
    plain = configuration(artifacts, "mlp", model_control=True)
    with running(tmp_path, plain + clients(shop="s1", probe="p1")) as daemon:
        (tmp_path / "serve.toml").write_text(plain)
        daemon.process.send_signal(signal.SIGHUP)
        until("the log to say so", lambda: "clients: the file names none any more" in (tmp_path / "log").read_text())
        assert (status(daemon, "/v2/models/mlp"), status(daemon, "/v2/models/mlp", "s1")) == (401, 200)
        with pytest.raises(InferenceServerException, match="token"):
            infer_grpc(daemon, "nobody")


def test_administration_and_metrics_on_an_address_of_their_own(artifacts: Path, tmp_path: Path) -> None:
    with running(tmp_path, configuration(artifacts, "mlp", model_control=True, admin="127.0.0.1:0")) as daemon:
        paths = ("/metrics", "/admin", "/admin/app.js")
        loading = "/v2/repository/models/mlp/load"
        for path in paths:
            assert ask(daemon.http, "GET", path)[0] == 404
            assert ask(daemon.admin, "GET", path)[0] == 200
        assert ask(daemon.http, "GET", "/")[0] == 404
        assert ask(daemon.admin, "GET", "/")[0] == 307  # to the dashboard
        assert ask(daemon.http, "POST", loading, body=b"{}")[0] == 404
        assert ask(daemon.admin, "POST", loading, body=b"{}")[0] == 200
        for _ in range(3):  # there is a plan, which is for the other address
            assert ask(daemon.http, "POST", INFER, body=X_AS_JSON)[0] == 200
        assert ask(daemon.admin, "POST", INFER, body=X_AS_JSON)[0] == 404
        for address in (daemon.http, daemon.admin):
            assert ask(address, "GET", "/v2/health/ready")[0] == 200
            assert ask(address, "POST", "/v2/repository/index", body=b"{}")[0] == 200
        with triton_grpc.InferenceServerClient(daemon.grpc) as client:
            assert client.is_model_ready("mlp")
            with pytest.raises(InferenceServerException, match="address for administration"):
                client.load_model("mlp")

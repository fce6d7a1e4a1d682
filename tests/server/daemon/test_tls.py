"""TLS: stock clients, clients' certificates, files that change, and what is no TLS."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from certificates import authority, certificate
from example_models import mlp_outputs
from running_daemon import X_AS_JSON, Daemon, X, configuration, running, serve, tensor, until
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    authority(folder, "ours")
    authority(folder, "theirs")
    certificate(folder, "server", "ours", "IP:127.0.0.1,DNS:localhost", key="rsa")
    certificate(folder, "renewed", "ours", "IP:127.0.0.1,DNS:localhost")
    certificate(folder, "shop.internal", "theirs")
    certificate(folder, "other", "theirs", "DNS:lab.internal")
    certificate(folder, "stranger", "theirs", "DNS:*.internal")
    certificate(folder, "forged", "ours", "DNS:lab.internal")
    return folder


def tls_tables(files: Path, *, clients: bool = False) -> str:
    text = f'[server.tls]\ncertificate = "{files}/server.pem"\nkey = "{files}/server.key"\n'
    if clients:
        text += f'client_authorities = "{files}/theirs.pem"\n'
        text += '[[clients]]\nname = "shop"\ncertificate = "shop.internal"\n'
        text += '[[clients]]\nname = "lab"\ncertificate = "lab.internal"\nroles = ["infer", "metrics"]\n'
        text += f'[[clients]]\nname = "robot"\ntoken_sha256 = ["{hashlib.sha256(b"t").hexdigest()}"]\n'
    return text


@pytest.fixture(scope="module")
def daemon(artifacts: Path, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    text = configuration(artifacts, "mlp", admin="127.0.0.1:0") + tls_tables(files)
    with running(tmp_path_factory.mktemp("daemon"), text) as started:
        yield started


@pytest.fixture(scope="module")
def mutual(artifacts: Path, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    text = configuration(artifacts, "mlp")
    with running(tmp_path_factory.mktemp("mutual"), text + tls_tables(files, clients=True)) as started:
        yield started


def context(files: Path, client: str = "") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(files / "ours.pem"))
    if client:
        made.load_cert_chain(files / f"{client}.pem", files / f"{client}.key")
    return made


def get(address: str, path: str, how: ssl.SSLContext, token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        asked = urllib.request.Request(f"https://{address}{path}", headers=headers)
        with urllib.request.urlopen(asked, context=how) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def grpc_client(daemon: Daemon, files: Path, client: str = "") -> Any:
    own = {"private_key": str(files / f"{client}.key"), "certificate_chain": str(files / f"{client}.pem")}
    how = own if client else {}
    return triton_grpc.InferenceServerClient(daemon.grpc, ssl=True, root_certificates=str(files / "ours.pem"), **how)


def infer(client: Any, module: Any, **options: Any) -> Any:
    return client.infer("mlp", [tensor(module, "x", X, "FP32")], **options).as_numpy("y")


def test_stock_clients_over_http_and_grpc(daemon: Daemon, files: Path) -> None:
    options = {"ca_certs": str(files / "ours.pem")}
    with triton_http.InferenceServerClient(daemon.http, ssl=True, ssl_options=options) as client:
        for _ in range(3):
            np.testing.assert_allclose(infer(client, triton_http), mlp_outputs(X), rtol=1e-4, atol=1e-4)
    with grpc_client(daemon, files) as client:
        for _ in range(3):
            np.testing.assert_allclose(infer(client, triton_grpc), mlp_outputs(X), rtol=1e-4, atol=1e-4)
    for path in ("/metrics", "/admin"):
        assert get(daemon.admin, path, context(files)) == 200
    with urllib.request.urlopen(f"https://{daemon.admin}/metrics", context=context(files)) as answer:
        days = [
            line for line in answer.read().decode().splitlines() if line.startswith("veltair_certificate_days_left{")
        ]
    [(name, _, left)] = [line.partition(" ") for line in days]
    assert name == 'veltair_certificate_days_left{file="certificate"}' and 28 < float(left) <= 30


def test_large_messages_both_ways(daemon: Daemon, files: Path) -> None:
    padded = X_AS_JSON + b" " * (20 << 20)  # many records, read in turns
    asked = urllib.request.Request(f"https://{daemon.http}/v2/models/mlp/infer", padded)
    with urllib.request.urlopen(asked, context=context(files)) as answer:
        found = json.load(answer)["outputs"][0]["data"]
    np.testing.assert_allclose(found, mlp_outputs(X).ravel(), rtol=1e-4, atol=1e-4)
    with urllib.request.urlopen(f"https://{daemon.admin}/admin/uPlot.iife.min.js", context=context(files)) as answer:
        assert len(answer.read()) == int(answer.headers["content-length"]) > 1 << 15


def test_what_tls_holds_already_is_read_without_an_event_of_the_socket(daemon: Daemon, files: Path) -> None:
    """More requests than are read ahead, so that reading stops within a record, which is the last one."""
    host, _, port = daemon.http.rpartition(":")
    one = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    most, record = 1 << 16, 1 << 14  # http1.h, and TLS
    first, rest = 100 * one, most // len(one) * one
    rest = rest[: -len(one)] + one[:-2] + b"a: " + b"b" * (most - len(rest) - 5) + b"\r\n\r\n"
    assert len(rest) == 4 * record
    with (
        socket.create_connection((host, int(port)), 30) as plain,
        context(files).wrap_socket(plain, server_hostname="localhost") as client,
    ):
        client.sendall(first)
        client.sendall(rest)
        heard, count = b"", 100 + most // len(one)
        while heard.count(b"HTTP/1.1 200") < count:
            part = client.recv(1 << 16)
            assert part
            heard += part


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\0" * 5000])
def test_what_is_no_tls_ends_the_connection(daemon: Daemon, files: Path, data: bytes) -> None:
    for address in (daemon.http, daemon.grpc):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 30) as client:
            client.sendall(data)
            client.settimeout(30)
            while True:
                try:
                    if not client.recv(1 << 12):
                        break
                except ConnectionResetError:
                    break
    assert get(daemon.http, "/v2/health/live", context(files)) == 200


def test_old_versions_and_other_protocols_are_refused(daemon: Daemon, files: Path) -> None:
    host, _, port = daemon.grpc.rpartition(":")
    old, foreign = context(files), context(files)
    with pytest.deprecated_call():
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    foreign.set_alpn_protocols(["http/1.1"])
    for how in (old, foreign):
        with socket.create_connection((host, int(port)), 30) as plain, pytest.raises(ssl.SSLError):
            how.wrap_socket(plain, server_hostname="localhost")


def test_a_client_is_known_by_its_certificate(mutual: Daemon, files: Path) -> None:
    infers, reads = "/v2/models/mlp", "/metrics"
    for client, token, expected in (
        ("shop.internal", "", (200, 403)),
        ("other", "", (200, 200)),
        ("stranger", "", (401, 401)),  # a name for any is no name
        ("stranger", "t", (200, 403)),
        ("shop.internal", "x", (401, 401)),
    ):
        how = context(files, client)
        assert (get(mutual.http, infers, how, token), get(mutual.http, reads, how, token)) == expected, client
        assert get(mutual.http, "/v2/health/ready", how) == 200


@pytest.mark.parametrize("client", ["", "forged"])
def test_without_a_certificate_of_the_authority_nobody_gets_in(mutual: Daemon, files: Path, client: str) -> None:
    with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
        get(mutual.http, "/v2/health/live", context(files, client))
    with grpc_client(mutual, files, client) as caller, pytest.raises(InferenceServerException, match="UNAVAILABLE"):
        caller.is_server_live()


def test_over_grpc_too_and_no_plan_is_shared(mutual: Daemon, files: Path) -> None:
    with grpc_client(mutual, files, "shop.internal") as shop, grpc_client(mutual, files, "stranger") as stranger:
        for _ in range(3):
            np.testing.assert_allclose(infer(shop, triton_grpc), mlp_outputs(X), rtol=1e-4, atol=1e-4)
        with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
            infer(stranger, triton_grpc)
        with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):  # it says what only the server may
            infer(stranger, triton_grpc, headers={"certificate": "shop.internal"})
        infer(stranger, triton_grpc, headers={"authorization": "Bearer t"})


def served_certificate(daemon: Daemon, files: Path) -> bytes:
    host, _, port = daemon.http.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 30) as plain,
        context(files).wrap_socket(plain, server_hostname="localhost") as client,
    ):
        found = client.getpeercert(binary_form=True)
        assert found is not None
        return found


def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(artifacts: Path, files: Path, tmp_path: Path) -> None:
    for kind in ("pem", "key"):
        (tmp_path / f"server.{kind}").write_bytes((files / f"server.{kind}").read_bytes())
    text = configuration(artifacts, "mlp") + '[server.tls]\ncertificate = "server.pem"\nkey = "server.key"\n'
    renewed = ssl.PEM_cert_to_DER_cert((files / "renewed.pem").read_text())
    with running(tmp_path, text) as daemon:
        before = served_certificate(daemon, files)
        (tmp_path / "server.key").write_text("no key")
        daemon.process.send_signal(signal.SIGHUP)
        until("the reload has failed", lambda: "nothing is reloaded: server.tls" in (tmp_path / "log").read_text())
        assert served_certificate(daemon, files) == before
        for kind in ("key", "pem"):
            (tmp_path / f"server.{kind}").write_bytes((files / f"renewed.{kind}").read_bytes())
        daemon.process.send_signal(signal.SIGHUP)
        until("the new one is used", lambda: served_certificate(daemon, files) == renewed)


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ('[server.tls]\ncertificate = "none.pem"\nkey = "server.key"\n', "server.tls.certificate: "),
        ('[server.tls]\ncertificate = "server.pem"\nkey = "renewed.key"\n', "server.tls: certificate and key: "),
        ('[server.tls]\ncertificate = "server.pem"\nkey = "server.pem"\n', "server.tls: certificate and key: "),
        ('[[clients]]\nname = "a"\n', "clients ('a'): expected token_sha256 or certificate"),
        ('[[clients]]\nname = "a"\ncertificate = "a"\n', "expected client_authorities under [server.tls]"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_starts(
    artifacts: Path, files: Path, tmp_path: Path, tables: str, says: str
) -> None:
    for name in ("server.pem", "server.key", "renewed.key"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    process = serve(tmp_path, configuration(artifacts, "mlp") + tables)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 2 and says in log

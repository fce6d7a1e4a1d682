"""The daemon under a service manager such as systemd, whose socket is a test's."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_daemon import configuration, running
from running_engine import WAIT_S

from veltair.server.service_manager import ServiceManager


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """What NOTIFY_SOCKET says, and the socket."""
    name = f"@veltair-test-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0", 1))
        receiver.settimeout(WAIT_S)
        yield name, receiver


def receive(receiver: socket.socket) -> dict[str, str]:
    """The next message that is no sign of life."""
    for _ in range(10_000):
        if (data := receiver.recv(4096)) != b"WATCHDOG=1":
            return dict(line.split("=", 1) for line in data.decode().split("\n"))
    raise AssertionError("nothing but signs of life")


@pytest.mark.slow
def test_the_daemon_says_what_it_does(
    manager: tuple[str, socket.socket], artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, receiver = manager
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    patience = {"lame_duck_s": 0.25, "drain_timeout_s": 120.0}
    with running(tmp_path, configuration(artifacts, "mlp", **patience)) as daemon:
        assert receive(receiver) == {"STATUS": "loading the models"}
        assert receive(receiver) == {"READY": "1", "STATUS": "serving"}
        assert receiver.recv(4096) == b"WATCHDOG=1"
        daemon.process.send_signal(signal.SIGHUP)
        reloading = receive(receiver)
        assert reloading["RELOADING"] == "1" and int(reloading["MONOTONIC_USEC"]) > 0
        assert receive(receiver)["READY"] == "1"
        daemon.process.send_signal(signal.SIGTERM)
        stopping = {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "130250000", "STATUS": "draining"}
        assert receive(receiver) == stopping
        assert daemon.process.wait(WAIT_S) == 0


def test_without_a_service_manager_nothing_is_sent(tmp_path: Path) -> None:
    assert not ServiceManager({}).tell("READY=1")
    assert not ServiceManager({"NOTIFY_SOCKET": "vsock:2:1234"}).tell("READY=1")
    assert not ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).tell("READY=1")


def test_the_watchdog_of_another_process_is_not_ours(tmp_path: Path) -> None:
    told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"}
    assert ServiceManager(dict(told)).watchdog_s == 30.0
    assert ServiceManager(told | {"WATCHDOG_PID": str(os.getpid())}).watchdog_s == 30.0
    assert ServiceManager(told | {"WATCHDOG_PID": "1"}).watchdog_s == 0.0
    environment = dict(told)
    ServiceManager(environment)
    assert environment == {}

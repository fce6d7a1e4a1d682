"""File systems that fail under the repository of a daemon that serves: by an error number, without an answer, by an
unmount. One model that cannot be read is never the end of the others, nor of what is served of it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
from certificates import authority, certificate
from running_daemon import Daemon, configuration, reload, running, until
from running_engine import WAIT_S
from traffic import nothing_left, traffic

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]

FAULTS = (
    *[("stat", number, "models/spin") for number in (errno.EACCES, errno.EIO)],
    *[("stat", number, "models/spin/tenant.toml") for number in (errno.EIO, errno.ESTALE)],
    *[("open", errno.EIO, "models/spin/tenant.toml"), ("read", errno.EIO, "models/spin/tenant.toml")],
    *[("list", errno.EIO, "models/spin"), ("stat", errno.ESTALE, "models/spin/1/manifest.json")],
    *[("open", errno.EACCES, "models/spin/1"), ("read", errno.EIO, "models/spin/1/weights.bin")],
)


@pytest.fixture
def repository(artifacts: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    for name in ("mlp", "spin"):
        shutil.copytree(artifacts / name, folder / name / "1")
        (folder / name / "tenant.toml").write_text("qos_ms = 33.0\n")
    return folder


@pytest.fixture
def breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`breaks("stat", errno.EIO, "models/spin")`; `breaks()` mends it. For daemons that the test starts."""
    library, rule = tmp_path / "faulty_files.so", tmp_path / "rule"
    source = Path(__file__).with_name("faulty_files.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    rule.write_text("")
    monkeypatch.setenv("FAULTY_FILES", str(rule))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    yield lambda *words: rule.write_text(" ".join(map(str, words)))
    rule.write_text("")


def load(daemon: Daemon, model: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{daemon.http}/v2/repository/models/{model}/load", data=b"") as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["error"]


def index(daemon: Daemon) -> dict[str, tuple[str, str]]:
    """State and reason by model, over HTTP; gRPC says the same."""
    with urllib.request.urlopen(f"http://{daemon.http}/v2/repository/index", data=b"") as answer:
        rows = json.load(answer)
    with triton_grpc.InferenceServerClient(daemon.grpc) as client:
        told = client.get_model_repository_index().models
    assert [(row.name, row.state, row.reason) for row in told] == [(r["name"], r["state"], r["reason"]) for r in rows]
    return {row["name"]: (row["state"], row["reason"]) for row in rows}


def target_ms(daemon: Daemon, model: str) -> str:
    with urllib.request.urlopen(f"http://{daemon.http}/v2/models/{model}/config") as answer:
        return str(json.load(answer)["parameters"]["qos_ms"]["string_value"])


def test_one_model_that_cannot_be_read(
    rounds: Rounds, repository: Path, tmp_path: Path, breaks: Callable[..., None]
) -> None:
    """A model's file system gives errors: it goes on as it was with its settings, and others load and serve."""
    text = configuration(tmp_path, repository=str(repository), model_control=True)
    with nothing_left(running(tmp_path, text)) as daemon, traffic(daemon) as asking:
        for _ in rounds(quick=1, full=10):
            for fault in FAULTS:
                breaks(*fault)
                status, error = load(daemon, "spin")
                assert (status, str(repository) in error) == (400, False), (fault, error)
                assert os.strerror(int(fault[1])) in error, (fault, error)
                assert load(daemon, "mlp") == (200, ""), fault
                status, answer = reload(daemon)
                assert (status, answer["error"]) == (400, error), fault
                assert (target_ms(daemon, "spin"), index(daemon)["spin"][0]) == ("33.0", "READY"), fault
                assert daemon.status("/v2/models/spin/ready") == 200
                breaks()
                assert reload(daemon) == (200, {"done": []}), fault
                assert index(daemon)["spin"] == ("READY", ""), fault
        asking.served(20)
        assert set(asking.outcomes) == {"right"}, asking.outcomes


@pytest.mark.parametrize("fault", FAULTS[::3], ids=str)
def test_a_daemon_starts_beside_a_model_that_cannot_be_read(
    rounds: Rounds, repository: Path, tmp_path: Path, breaks: Callable[..., None], fault: tuple[Any, ...]
) -> None:
    """The daemon is started where a model's file system gives errors: the others are served, and it once it is well."""
    text = configuration(tmp_path, repository=str(repository), model_control=True)
    for _ in rounds(quick=1, full=10):
        breaks(*fault)
        with running(tmp_path, text) as daemon:
            state, reason = index(daemon)["spin"]
            assert (state, os.strerror(fault[1]) in reason) == ("UNAVAILABLE", True), reason
            assert index(daemon)["mlp"] == ("READY", "")
            breaks()
            assert load(daemon, "spin") == (200, "")
            assert index(daemon)["spin"] == ("READY", "")


@pytest.mark.parametrize("fault", [("stat", "models/mlp/tenant.toml"), ("list", "models")], ids=str)
def test_a_file_system_that_does_not_answer_keeps_no_daemon(
    rounds: Rounds, repository: Path, tmp_path: Path, breaks: Callable[..., None], fault: tuple[str, str]
) -> None:
    """The repository's file system does not answer: others are served, and SIGTERM ends the daemon in time."""
    text = configuration(tmp_path, repository=str(repository), model_control=True)
    for _ in rounds(quick=1, full=10):
        ends: list[tuple[int, Any]] = []
        breaks()
        with nothing_left(running(tmp_path, text)) as daemon, traffic(daemon) as asking:
            breaks(fault[0], -1, fault[1])
            waiting = threading.Thread(target=lambda d=daemon, e=ends: e.append(reload(d)))
            waiting.start()
            asking.served(50)
            assert daemon.status() == 200
            daemon.process.send_signal(signal.SIGTERM)
            assert daemon.process.wait(WAIT_S) == 0
            waiting.join(WAIT_S)
            assert ends and ends[0][0] == 503, ends  # who waits is refused
        assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("call", ["stat", "open"])
def test_certificates_on_a_file_system_that_does_not_answer(
    rounds: Rounds, artifacts: Path, tmp_path: Path, breaks: Callable[..., None], call: str
) -> None:
    """The file system of the certificates does not answer: others are answered, a reload waits, SIGTERM refuses it."""
    authority(tmp_path, "ours")
    certificate(tmp_path, "server", "ours", "IP:127.0.0.1")
    text = configuration(artifacts, "mlp", model_control=True)
    text += f'[server.tls]\ncertificate = "{tmp_path}/server.pem"\nkey = "{tmp_path}/server.key"\n'
    secure, ends = ssl.create_default_context(cafile=str(tmp_path / "ours.pem")), []
    with nothing_left(running(tmp_path, text)) as daemon:

        def ask(path: str, body: bytes | None = None) -> int:
            try:
                with urllib.request.urlopen(f"https://{daemon.http}{path}", body, WAIT_S, context=secure) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        def reload_waits() -> threading.Thread:
            waiting = threading.Thread(target=lambda: ends.append(ask("/admin/reload", b"")))
            waiting.start()
            return waiting

        tried = rounds(quick=2, full=20)
        for _ in tried:
            certificate(tmp_path, "server", "ours", "IP:127.0.0.1")  # renewed
            breaks(call, -1, "server.pem")
            waiting = reload_waits()
            assert {ask("/v2/health/ready") for _ in range(20)} == {200}
            breaks()
            waiting.join(WAIT_S)
        breaks(call, -1, "server.pem")
        certificate(tmp_path, "server", "ours", "IP:127.0.0.1")
        waiting = reload_waits()
        assert {ask("/v2/health/ready") for _ in range(20)} == {200}
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(WAIT_S) == 0
        waiting.join(WAIT_S)
        assert ends == [200] * len(tried) + [503]
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_what_is_not_there_any_more(rounds: Rounds, repository: Path, artifacts: Path, tmp_path: Path) -> None:
    """An empty mount point, a link whose store is away, a loop of links: what is served goes on."""
    store = tmp_path / "store"
    shutil.copytree(artifacts / "spin", store)
    (repository / "linked").symlink_to(store)
    text = configuration(tmp_path, repository=str(repository), model_control=True)
    with running(tmp_path, text) as daemon, traffic(daemon) as asking:
        for number in rounds(quick=1, full=20):
            repository.rename(tmp_path / "away")
            repository.mkdir()  # as it is beneath a disk that is not mounted
            status, answer = reload(daemon)
            assert (status, "is it mounted?" in answer["error"]) == (400, True), answer
            os.kill(daemon.process.pid, signal.SIGHUP)
            until("the log to say so", lambda n=number: mounted(tmp_path) > n)
            assert {state for state, _ in index(daemon).values()} == {"READY"}
            repository.rmdir()
            (tmp_path / "away").rename(repository)
            store.rename(tmp_path / "elsewhere")
            for link in ("nowhere", "linked"):  # then a loop
                (repository / "linked").unlink()
                (repository / "linked").symlink_to(link)
                status, answer = reload(daemon)
                assert (status, "linked: cannot be read" in answer["error"]) == (400, True), answer
                assert index(daemon)["linked"][0] == "READY"
            (repository / "linked").unlink()
            assert reload(daemon) == (200, {"done": ["unloaded linked 1"]})
            assert "linked" not in index(daemon)
            (tmp_path / "elsewhere").rename(store)
            (repository / "linked").symlink_to(store)
            assert reload(daemon) == (200, {"done": ["loaded linked 1"]})
        asking.served(20)
        assert set(asking.outcomes) == {"right"}, asking.outcomes


def mounted(folder: Path) -> int:
    """How often the log has asked whether the repository is mounted."""
    return (folder / "log").read_text().count("is it mounted?")


def test_names_of_folders_that_are_no_names_of_models(
    rounds: Rounds, repository: Path, artifacts: Path, tmp_path: Path
) -> None:
    """Folders whose names are no names of models come and go: the index has them escaped, and others load and serve."""
    text = configuration(tmp_path, repository=str(repository), model_control=True)
    for name in ("lost+found", ".snapshot"):
        (repository / name).mkdir()
    make_odd_folders(repository, artifacts / "mlp")
    with running(tmp_path, text) as daemon:
        for number in rounds(quick=1, full=20):
            if number:
                make_odd_folders(repository, artifacts / "mlp")
                assert reload(daemon)[0] == 400
            found = index(daemon)
            assert {name for name, (state, _) in found.items() if state == "READY"} == {"mlp", "spin"}
            assert found["caf\\xe9"][1].startswith("caf\\xe9: no name of a model: expected 1 to 64 letters")
            assert len(found) == 9
            assert load(daemon, "mlp") == (200, "")
            for name in ("..", ".", ".snapshot", "a%20b", "%C3%BC", "lost+found"):
                assert load(daemon, name)[0] == 404
            for entry in repository.iterdir():
                if entry.name not in ("mlp", "spin", "lost+found", ".snapshot"):
                    shutil.rmtree(entry)
            assert reload(daemon) == (200, {"done": []})
            assert list(index(daemon)) == ["mlp", "spin"]


def make_odd_folders(repository: Path, artifact: Path) -> None:
    for name in (b"caf\xe9", "ü".encode(), b"a b", b"new\nline", b"\x1b[31m", b"m" * 65, b"%2e%2e"):
        shutil.copytree(os.fsencode(artifact), os.fsencode(repository) + b"/" + name)

"""Logs as lines of JSON: every line of every process is one, and each request has one, whoever answered it."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from running_daemon import SERVE, configuration, reload, running, spin, until
from running_engine import WAIT_S
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow


def lines(folder: Path) -> list[dict[str, Any]]:
    """Complete ones."""
    return [json.loads(line) for line in (folder / "log").read_text().split("\n")[:-1]]


def requests(folder: Path) -> dict[str, dict[str, Any]]:
    """By the id that the client gave."""
    return {line["request_id"]: line for line in lines(folder) if line.get("event") == "request"}


def test_each_request_has_a_line(artifacts: Path, tmp_path: Path, fronts: int) -> None:
    text = configuration(artifacts, "spin", "brittle", fronts=fronts, log_format="json", model_control=True)
    with running(tmp_path, text) as daemon:
        ways: list[tuple[Any, str]] = [(triton_grpc, daemon.grpc), (triton_http, daemon.http)]
        for module, address in ways:
            name = module.__name__.rpartition(".")[2]
            with module.InferenceServerClient(address, **({"network_timeout": WAIT_S} if "http" in name else {})) as c:
                for turn in range(3):  # the first is Python's, the others follow its plan
                    c.infer("spin", spin(module, 1, 1), request_id=f"{name}-{turn}")
                c.infer("brittle", spin(module, 0, 50), request_id=f"{name}-good")
                with pytest.raises(InferenceServerException):
                    c.infer("brittle", spin(module, 1, 50), request_id=f"{name}-bad")
                with pytest.raises(InferenceServerException):
                    c.infer("nobody", spin(module, 1, 1), request_id=f"{name}-lost")
        expected = {f"{n}-{k}" for n in ("grpc", "http") for k in (0, 1, 2, "good", "bad", "lost")}
        until("a line for each", lambda: requests(tmp_path).keys() >= expected)
        found = requests(tmp_path)
        assert found.keys() == expected
        for name in ("grpc", "http"):
            for turn in range(3):
                line = found[f"{name}-{turn}"]
                assert (line["tenant"], line["model"], line["outcome"], line["status"]) == ("spin", "spin", "ok", 200)
                assert 0 < line["execute_ms"] < line["duration_ms"] and line["queue_ms"] > 0
            bad = found[f"{name}-bad"]
            assert (bad["outcome"], bad["status"], bad["reason"]) == ("failed", 500, "kernel")
            lost = found[f"{name}-lost"]
            assert (lost["tenant"], lost["model"], lost["status"]) == (None, "nobody", 404)
        assert reload(daemon)[0] == 200
        daemon.process.send_signal(signal.SIGHUP)
        until("the reload", lambda: any(line.get("event") == "reload" for line in lines(tmp_path)))
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(WAIT_S) == 0
    told = [line["event"] for line in lines(tmp_path) if "event" in line and line["event"] != "request"]
    assert told == ["start", "ready", "reload", "drain"]
    assert len({line["pid"] for line in lines(tmp_path) if "pid" in line}) >= 2, "the engine logs JSON too"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_both_streams_as_one_are_lines_of_json(artifacts: Path, tmp_path: Path, options: list[str]) -> None:
    """As a container or a journal keeps them; the models are those of a repository, which no configuration names."""
    (models := tmp_path / "models").mkdir()
    (models / "spin").symlink_to(artifacts / "spin")
    config = tmp_path / "serve.toml"
    config.write_text(configuration(artifacts, admin="127.0.0.1:0", repository=str(models), log_format="json"))
    command = [sys.executable, "-c", SERVE, str(config), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        told = []
        for line in process.stdout:
            told.append(json.loads(line))
            if told[-1].get("event") == "ready":
                process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    [ready] = [line for line in told if line.get("event") == "ready"]
    assert ready["tenants"] == ["spin"]
    assert all(line.keys() >= {"time", "level", "logger", "pid", "message"} for line in told)
    listening = [line for line in told if line.get("event") == "listening"]
    assert len(listening) == len(options)
    for line in (ready, *listening):
        assert {line[key].partition(":")[0] for key in ("http", "grpc", "admin")} == {"127.0.0.1"}
    assert re.fullmatch(r"ready: http \S+:\d+, grpc \S+:\d+, admin \S+:\d+", ready["message"])


@pytest.mark.parametrize("by", ["option", "configuration"])
def test_a_daemon_that_does_not_start_says_it_in_a_line_of_json(artifacts: Path, tmp_path: Path, by: str) -> None:
    """An artifact that is none is found once the configuration has said how the log is written."""
    (artifact := tmp_path / "none").mkdir()
    config = tmp_path / "serve.toml"
    if by == "option":
        config.write_text("[server]\nnothing = 1\n")
    else:
        config.write_text(
            configuration(artifacts, log_format="json") + f'[[tenants]]\nname = "a"\nartifact = "{artifact}"\n'
        )
    command = [sys.executable, "-c", SERVE, str(config), *(["--log-format", "json"] if by == "option" else [])]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert (ended.returncode, ended.stdout) == (2, "")
    told = [json.loads(line) for line in ended.stderr.splitlines()]
    assert (told[-1]["event"], told[-1]["level"]) == ("failed", "CRITICAL")
    assert ("nothing" if by == "option" else str(artifact)) in told[-1]["message"]


def test_a_path_that_is_not_utf8_is_named_in_a_line_of_json(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVE, os.fsencode(tmp_path) + b"/\xff\n.toml", "--log-format", "json"]
    ended = subprocess.run(command, capture_output=True, timeout=WAIT_S)
    [told] = [json.loads(line) for line in ended.stderr.splitlines()]
    assert ended.returncode == 2 and told["message"].endswith(
        "/\\udcff\n.toml: cannot be read: No such file or directory"
    )


def test_no_access_log(artifacts: Path, tmp_path: Path) -> None:
    with running(tmp_path, configuration(artifacts, "spin", log_format="json", access_log=False)) as daemon:
        with triton_grpc.InferenceServerClient(daemon.grpc) as client:
            for turn in range(2):
                client.infer("spin", spin(triton_grpc, 1, 1), request_id=str(turn))
        with urllib.request.urlopen(f"http://{daemon.http}/metrics") as page:
            page.read()
    assert requests(tmp_path) == {}
    assert lines(tmp_path)[-1]["event"] == "drain"


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_log_that_nobody_reads_stops_nobody(artifacts: Path, tmp_path: Path, log_format: str) -> None:
    """Neither what Python answers, nor a reload, which logs, nor the end."""
    config = tmp_path / "serve.toml"
    config.write_text(configuration(artifacts, "spin", log_format=log_format, drain_timeout_s=5.0))
    reading, writing = os.pipe()
    room = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    command = [sys.executable, "-c", SERVE, str(config), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, text=True) as process:
        assert process.stdout is not None
        listening = json.loads(process.stdout.readline())
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while os.write(writing, b"x" * room):  # what other processes log there
                pass
        os.set_blocking(writing, True)
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
            with urllib.request.urlopen(f"http://{listening['http']}/v2/models/spin", timeout=WAIT_S) as answer:
                assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    os.close(reading)
    os.close(writing)

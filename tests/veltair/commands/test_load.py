"""The command as a user runs it, against a server in another process."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest
import uvloop
from fake_server_process import write_scenario

from veltair.commands.load import add_arguments, run
from veltair.ending_signals import handled_in, tidied_up

TENANT_KEYS = {
    *("name", "offered_qps", "qps", "p50_ms", "p95_ms", "p99_ms", "target_ms", "qos_rate", "refused", "errors"),
    "admitted_rate",
    "refused_p99_ms",
    "failures",
}
ENOUGH_MS = 60_000.0


def load(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([str(a) for a in arguments]))


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_json(own_fake_server, tmp_path, capsys, scheme):
    tenants = [("echo", 200.0, ENOUGH_MS), ("third", 90.0, ENOUGH_MS), ("later_internal", 60.0, ENOUGH_MS)]
    path = write_scenario(tmp_path, own_fake_server.url(scheme), tenants, duration_s=1.0, warmup_s=0.0)
    assert load(path, "--json") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(document) == {"tenants", "peak_qps", "environment", "max_lag_ms", "client_cpu_us_per_query"}
    assert document["client_cpu_us_per_query"] > 0
    assert document["peak_qps"] is None
    assert document["environment"]["cores"] >= 1
    rows = {row["name"]: row for row in document["tenants"]}
    assert all(set(row) == TENANT_KEYS for row in rows.values())

    sent = {name: own_fake_server.stats(name)["queries"] - 1 for name in rows}  # less the one before the run
    assert all(own_fake_server.stats(name)["bad"] == 0 for name in rows)
    for name, row in rows.items():
        assert row["offered_qps"] == sent[name]  # in a window of 1 s

    echo, third, broken = rows["echo"], rows["third"], rows["later_internal"]
    assert (echo["qos_rate"], echo["refused"], echo["errors"]) == (1.0, 0, 0)
    assert 0 < echo["p50_ms"] <= echo["p95_ms"] <= echo["p99_ms"] < ENOUGH_MS
    assert third["refused"] == (sent["third"] + 1) // 3
    assert third["qos_rate"] == pytest.approx(1 - third["refused"] / sent["third"])
    assert (broken["errors"], broken["qps"], broken["qos_rate"]) == (sent["later_internal"], 0, 0)
    assert broken["p50_ms"] is None
    assert [sum(row["failures"].values()) for row in (echo, third, broken)] == [0, third["refused"], broken["errors"]]


def test_a_table_for_people(fake_server, tmp_path, capsys):
    path = write_scenario(tmp_path, fake_server.url("http"), [("echo", 50.0, ENOUGH_MS), ("third", 50.0, ENOUGH_MS)])
    assert load(path) == 0
    captured = capsys.readouterr()
    assert "echo" in captured.out and "QoS rate" in captured.out
    assert "client lag at most" in captured.err and "us of the client's CPU time a query" in captured.err
    assert "503 queue full" in captured.err


def test_the_same_seed_offers_the_same(fake_server, tmp_path, capsys):
    offered = []
    for seed in (1, 1, 2):
        path = write_scenario(tmp_path, fake_server.url("http"), [("echo", 300.0, ENOUGH_MS)], seed=seed)
        assert load(path, "--json") == 0
        offered.append(json.loads(capsys.readouterr().out)["tenants"][0]["offered_qps"])
    assert offered[0] == offered[1] != offered[2]


@pytest.mark.parametrize(
    ("line", "key"),
    [("qps = 0", "tenants[0].qps"), ("speed = 3", "speed"), ("batch = 4", "tenants[0].batch"), ("qps = [", "TOML")],
)
def test_a_bad_scenario_is_one_line_and_exit_code_2(fake_server, tmp_path, capsys, line, key):
    path = tmp_path / "bad.toml"
    model = "fixed" if "batch" in line else "echo"
    qps = "" if "qps" in line else "qps = 5\n"
    head = f'[load]\ntarget = "{fake_server.url("http")}"\n[[tenants]]\nname = "{model}"\n'
    path.write_text(f"{head}{qps}target_ms = 5\n{line}\n")
    assert load(path, "--json") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("veltair load: ") and captured.err.count("\n") == 1
    assert key in captured.err


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("nobody", "unknown model `nobody`"),
        ("odd", "cannot draw FP8"),
        ("wild", "only the first dimension"),
        ("refuse", "a first query failed: 503 queue full"),
    ],
)
def test_a_model_that_cannot_be_driven(fake_server, tmp_path, capsys, model, expected):
    assert load(write_scenario(tmp_path, fake_server.url("http"), [(model, 5.0, 5.0)])) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--connections", "0"], "--connections: expected 1 to 256, got 0"),
        (["--seeds", "0"], "--seeds: expected at least 1"),
        (["--engine", "mlperf", "--find-peak"], "--find-peak"),
        (["--engine", "mlperf"], "--tenant: expected one of echo, third, got none"),
        (["--engine", "mlperf", "--tenant", "x"], "--tenant: expected one of echo, third, got x"),
    ],
)
def test_arguments_that_do_not_go_together(fake_server, tmp_path, capsys, arguments, expected):
    path = write_scenario(tmp_path, fake_server.url("http"), [("echo", 5.0, 5.0), ("third", 5.0, 5.0)])
    assert load(path, *arguments) == 2
    assert expected in capsys.readouterr().err


def test_nobody_listens(tmp_path, capsys):
    assert load(write_scenario(tmp_path, "grpc://127.0.0.1:1", [("echo", 5.0, 5.0)])) == 2
    assert "load.target: cannot reach grpc://127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.slow
def test_the_peak_of_a_server_whose_capacity_is_known(own_fake_server, tmp_path, capsys):
    """`serial` takes 5 ms a query, one at a time: it cannot serve 200 per second, and easily 40."""
    tenants = [("serial", 40.0, 100.0), ("echo", 10.0, ENOUGH_MS)]
    path = write_scenario(tmp_path, own_fake_server.url("grpc"), tenants, duration_s=1.0)
    assert load(path, "--find-peak", "--seeds", "2", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    probes = document["probes"]
    assert [p["scale"] for p in probes[:2]] == [1.0, 2.0 if probes[0]["held"] else 0.5]
    best = max((p for p in probes if p["held"]), key=lambda p: p["scale"])
    missed = min(p["scale"] for p in probes if not p["held"])
    assert missed <= best["scale"] * 1.031
    assert document["peak_qps"] == best["qps"]
    assert best["qps"] < 200 * 1.25
    assert best["seeds"] == [1, 2]
    assert min(best["qos_rate"].values()) >= 0.95
    assert sum(row["qps"] for row in document["tenants"]) == pytest.approx(best["qps"], abs=0.01)
    assert document["tenants"][0]["qos_rate"] == best["qos_rate"]["serial"]


@pytest.mark.parametrize(
    ("arguments", "number"), [([], signal.SIGINT), ([], signal.SIGTERM), (["--find-peak"], signal.SIGINT)]
)
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_signal_has_printed_what_was_measured_so_far(own_fake_server, tmp_path, scheme, arguments, number):
    path = write_scenario(
        tmp_path, own_fake_server.url(scheme), [("echo", 100.0, 200.0)], duration_s=3_000.0, warmup_s=0.0
    )
    command = [sys.executable, "-m", "veltair.commands.load", str(path), "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while own_fake_server.stats("echo")["queries"] < 20:
            assert process.poll() is None
        os.kill(process.pid, number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    document = json.loads(output)
    (row,) = document["tenants"]
    assert row["offered_qps"] > 0 and row["qps"] > 0
    assert document["peak_qps"] is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
@pytest.mark.parametrize("arguments", [[], ["--find-peak"]])
def test_a_signal_before_anything_is_measured_ends_it(tmp_path, arguments, number):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        path = write_scenario(tmp_path, url, [("echo", 100.0, 200.0)], duration_s=1.0, warmup_s=0.0)
        command = [sys.executable, "-m", "veltair.cli", "load", str(path), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        with process, silent.accept()[0] as client:
            assert client.recv(24) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            os.kill(process.pid, number)
            output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (128 + number, "")


def test_a_signal_between_callbacks_is_no_failure_of_a_transport():
    """Raised within one it would be lost, and the connection with it."""

    class Receiver(asyncio.BufferedProtocol):
        def __init__(self):
            self.received = asyncio.get_running_loop().create_future()

        def get_buffer(self, size):
            os.kill(os.getpid(), signal.SIGTERM)
            self.buffer = bytearray(8)
            return self.buffer

        def buffer_updated(self, size):
            self.received.set_result(bytes(self.buffer[:size]))

    async def main():
        ours, theirs = socket.socketpair()
        loop, told = asyncio.get_running_loop(), asyncio.Queue()
        before = signal.getsignal(signal.SIGTERM)
        with handled_in(loop, told.put_nowait):
            transport, receiver = await loop.create_connection(Receiver, sock=ours)
            theirs.send(b"abc")
            assert (await receiver.received, await told.get()) == (b"abc", signal.SIGTERM)
            transport.close()
        theirs.close()
        assert signal.getsignal(signal.SIGTERM) == before

    with tidied_up():
        uvloop.run(main())

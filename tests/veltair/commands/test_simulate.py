"""`veltair simulate` on real models and the machines that ship, kept small."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from veltair.cli import main
from veltair.scheduler.event_log.replay import replay
from veltair.scheduler.policies.by_name import POLICIES
from veltair.simulation.machine_model.machine_model import load_machine_model
from veltair.simulation.machine_model.modelled_profiles import scenario_models
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import read_simulation_scenario

SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"
SMALL = """
[load]
queries = 60

[[tenants]]
name = "eyes"
model = "mobilenet_v2"
qps = 200
target_ms = 10
percentile = 0.9
"""


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def simulate(capsys, *arguments):
    code = main(["simulate", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_results_are_json_and_repeatable(capsys, scenario):
    asked = scenario, "--policy", "veltair,fcfs", "--cores", 8, "--seeds", 2, "--json"
    code, out, _ = simulate(capsys, *asked)
    assert code == 0
    assert simulate(capsys, *asked)[1] == out
    answer = json.loads(out)
    assert answer["environment"]["cores"] == 8 and answer["environment"]["seeds"] == [1, 2]
    assert [row["policy"] for row in answer["results"]] == ["veltair", "fcfs"]
    for row in answer["results"]:
        (tenant,) = row["tenants"]
        assert row["peak_qps"] is None and row["core_seconds_per_query"] > 0 and 0 <= row["conflict_rate"] <= 1
        assert tenant["name"] == "eyes" and tenant["p50_ms"] <= tenant["p95_ms"] <= tenant["p99_ms"]
        assert tenant["offered"] == pytest.approx(108, abs=40)


def test_a_peak_is_found_and_told_apart_by_policy(capsys, scenario):
    code, out, _ = simulate(capsys, scenario, "--policy", "fcfs", "--cores", 8, "--seeds", 1, "--find-peak", "--json")
    (row,) = json.loads(out)["results"]
    assert code == 0 and row["peak_qps"] > 200
    assert row["tenants"][0]["qos_rate"] >= 0.9
    code, out, _ = simulate(capsys, scenario, "--policy", "fcfs", "--cores", 8, "--seeds", 1, "--find-peak")
    assert code == 0 and f"{row['peak_qps']:.1f}" in out


def test_many_machines_have_a_row_for_each_router(capsys, scenario):
    failure = "[[failures]]\nmachine = 1\nat_s = 0.02\nback_s = 0.05\n"
    scenario.write_text(SMALL + failure)
    asked = scenario, "--machines", 3, "--router", "two-choices,deadlines", "--cores", 8, "--seeds", 1
    code, out, _ = simulate(capsys, *asked, "--json")
    answer = json.loads(out)
    assert code == 0 and [row["router"] for row in answer["results"]] == ["two-choices", "deadlines"]
    assert answer["results"][0]["offered_qps"] == 600
    assert answer["environment"]["machines"] == 3 and answer["environment"]["failures"][0]["back_s"] == 0.05
    code, out, _ = simulate(capsys, *asked)
    assert code == 0 and "veltair, deadlines" in out and "3 x AMD" in out
    code, out, err = simulate(capsys, scenario)
    assert (code, out) == (2, "") and "a scenario of many machines: expected --machines N" in err


def test_a_table_shows_every_tenant(capsys, scenario):
    code, out, _ = simulate(capsys, scenario, "--cores", 8, "--seeds", 1)
    assert code == 0 and "eyes" in out and "veltair" in out and "3990X" in out and ", 8 cores" in out


def test_the_log_replays_to_the_same_decisions(capsys, scenario, tmp_path):
    log = tmp_path / "log.jsonl"
    assert simulate(capsys, scenario, "--cores", 8, "--seeds", 1, "--log", log)[0] == 0
    read, model = read_simulation_scenario(scenario), load_machine_model("threadripper-3990x")
    simulation = Simulation(read, model, scenario_models(read, model, cores=8), 8)
    assert replay(simulation.scheduler("veltair"), log.read_text().splitlines()) > 60


TRACES = """
import io, sys, zlib
from pathlib import Path
from random import Random
from veltair.scheduler.policies.by_name import POLICIES
from veltair.simulation.machine_model.machine_model import load_machine_model
from veltair.simulation.machine_model.modelled_profiles import scenario_models
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import read_simulation_scenario

scenario, model = read_simulation_scenario(Path(sys.argv[1])), load_machine_model("threadripper-3990x")
simulation = Simulation(scenario, model, scenario_models(scenario, model, cores=8), 8)
for policy in POLICIES:
    holes = [bytes(size) for size in range(0, 480, 8) for _ in range(500)]
    Random(sys.argv[2]).shuffle(holes)  # what is made next lies where these lay, in an order of chance
    del holes
    log = io.StringIO()
    simulation.run(policy, 1, log=log)
    print(policy, len(log.getvalue()), zlib.crc32(log.getvalue().encode()))
"""


def test_other_processes_tell_the_same_story(scenario, tmp_path):
    """Neither hashes nor places in memory decide, though queries come at the same moments."""
    (tmp_path / "t.txt").write_text("".join(f"{i // 4 / 200}\n" for i in range(60)))
    tenants = [
        f"""
        [[tenants]]
        name = "{name}"
        model = "mobilenet_v2"
        qps = 200
        target_ms = 10
        max_batch = 4
        arrivals = "file"
        file = "t.txt"
        """
        for name in ("left", "middle", "right")
    ]
    scenario.write_text("".join(tenants))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TRACES, scenario, seed],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
        )
        for seed in ("1", "2")
    ]
    one, other = (process.communicate(timeout=120)[0] for process in processes)
    assert one == other and len(one.splitlines()) == len(POLICIES)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "veltair,magic"], "--policy: unknown policy 'magic': expected one of veltair, "),
        (["--machines", "0"], "--machines 0: expected 1 to 10000 machines, got 0"),
        (["--machines", "2", "--router", "tarot"], "--router: unknown router 'tarot': expected one of random, "),
        (["--router", "random"], "--router: expected --machines N with it"),
        (["--machines", "2", "--find-peak"], "--machines: not with --find-peak or --log"),
        (["--cores", "0"], "expected 1 to 64 cores, got 0"),
        (["--cores", "65"], "expected 1 to 64 cores, got 65"),
        (["--machine", "abacus"], "unknown machine 'abacus': expected "),
        (["--seeds", "0"], "--seeds: expected at least 1, got 0"),
        (["--seed", "-1"], "--seed: expected 0 to 2**32 - 1, got -1"),
        (["--queries", "0"], "--queries: expected 1 to 10000000, got 0"),
        (["--duration", "0"], "--duration: expected seconds above 0, got 0.0"),
        (["--duration", "nan"], "--duration: expected seconds above 0, got nan"),
        (["--percentile", "1.5"], "--percentile: expected above 0 and at most 1, got 1.5"),
        (["--find-peak", "--log", "x"], "--log: expected a single run"),
        (["--seeds", "1", "--log", "/no/such/folder/x"], "--log /no/such/folder/x: No such file or directory"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(capsys, scenario, arguments, said):
    code, out, err = simulate(capsys, scenario, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("veltair simulate: ") and said in err and err.count("\n") == 1


def test_wrong_files_are_one_line_and_exit_2(capsys, tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(SMALL.replace("mobilenet_v2", "perceptron"))
    code, _, err = simulate(capsys, path)
    assert code == 2 and "'perceptron'" in err and err.count("\n") == 1
    (tmp_path / "t.txt").write_text("0.2\n0.1\n")
    path.write_text(SMALL + 'arrivals = "file"\nfile = "t.txt"\n')
    code, _, err = simulate(capsys, path)
    assert code == 2 and "t.txt: line 2: 0.1 s is earlier than the line before (0.2 s)" in err and err.count("\n") == 1


def test_an_interrupt_ends_it_at_once_with_130(scenario):
    command = [sys.executable, "-m", "veltair.cli", "simulate", scenario, "--queries", "200000", "--cores", "8"]
    process = subprocess.Popen(
        [*command, "--log", scenario.parent / "log", "--seeds", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while process.poll() is None and not _begun(scenario.parent / "log"):
        time.sleep(0.01)  # leaves the core to it
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert b"interrupted" in err and b"Traceback" not in err


def _begun(log):
    return log.exists() and log.stat().st_size > 0

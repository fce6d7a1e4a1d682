"""`veltair doctor`, on this machine and with counters that answer differently."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import sys

import pytest
from rich.console import Console

from veltair.cli import main
from veltair.commands import doctor
from veltair.machine.hardware_counters import CountersMissingError, L3Counters
from veltair.machine.isa import CPU_FEATURES
from veltair.scheduler.scheduler import Scheduler
from veltair.server.ipc.status_records import SandboxStatus
from veltair.server.worker import landlock
from veltair.types import CoreSet, CounterSample, Machine


def test_json_is_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["cores"]["usable"]) <= set(found["cores"]["affinity"]) == os.sched_getaffinity(0)
    assert sorted(c for domain in found["l3_domains"] for c in domain) == found["cores"]["usable"]
    assert found["target"]["num-cores"] == len(found["cores"]["usable"])
    assert found["instruction_sets"].keys() == CPU_FEATURES.keys()
    assert found["counters"]["available"] is bool(found["counters"]["events"]) is not bool(found["counters"]["reason"])


def test_text_names_every_fact() -> None:
    args = argparse.ArgumentParser()
    doctor.add_arguments(args)
    found = doctor.report()
    found["cores"] |= {"usable": [0, 1, 2, 5], "quota_cpus": 4.5}
    found |= {"l3_domains": [[0, 1, 2], [5]], "huge_pages": "never"}
    found["sandbox"] = doctor.describe_sandbox(SandboxStatus(landlock_abi=3, gaps=("no seccomp filter: forbidden",)))
    console = Console(file=io.StringIO(), width=200)
    doctor.show(found, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in (
        "0-2,5",
        "0-2 | 5",
        "quota 4.5 CPUs",
        "2: ",
        "never",
        found["target"]["mcpu"],
        "observed",
        "weights of models",
        "✘ no seccomp filter: forbidden",
        "✔ Landlock, ABI 3 against writing",
        "truncating files",
        "apache-tvm",
    ):
        assert words in text
    assert "seccomp against" not in text and "TCP" not in text
    assert args.parse_args([]).json is False


def test_the_sandbox_is_what_a_process_that_confines_itself_gets() -> None:
    found = doctor.describe_sandbox(doctor.probe_sandbox())
    try:
        assert found["landlock_abi"] == landlock.abi_version()
        assert "starting programs" in found["denied"]["landlock"]
    except OSError as error:
        assert any(str(error.strerror) in gap for gap in found["gaps"])
    assert found["seccomp"] is ("new sockets and connections" in found["denied"]["seccomp"])
    assert found["seccomp"] is not any("no seccomp" in gap for gap in found["gaps"])


def test_a_trial_of_the_sandbox_that_fails_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert doctor.probe_sandbox() == SandboxStatus(gaps=("the trial ended with exit code 1",))


def test_the_source_named_is_the_one_that_the_scheduler_uses() -> None:
    scheduler = Scheduler(Machine(((0, 1),)), [], {}, "veltair-full", 1)
    assert doctor.interference({"available": False, "reason": "none"})["source"] == scheduler.level_source


EXPLANATIONS = {
    errno.ENOENT: "virtual machine",
    errno.EACCES: "perf_event_paranoid",
    errno.EPERM: "CAP_PERFMON",
    errno.ENOSYS: "ENOSYS",
}


@pytest.mark.parametrize(("code", "words"), EXPLANATIONS.items())
def test_missing_counters_are_explained(monkeypatch: pytest.MonkeyPatch, code: int, words: str) -> None:
    def refused(cores: CoreSet) -> L3Counters:
        raise CountersMissingError(code, f"perf_event_open: {os.strerror(code)} ({errno.errorcode[code]})")

    monkeypatch.setattr(doctor, "L3Counters", refused)
    found = doctor.probe_counters((0,))
    assert found["available"] is False and found["events"] == [] and words in found["reason"]


@pytest.mark.parametrize("accesses", [0, 12_345])
def test_counters_that_never_count_are_none(monkeypatch: pytest.MonkeyPatch, accesses: int) -> None:
    class Opened:
        closed = False

        def __init__(self, cores: CoreSet) -> None: ...

        def sample(self, now_ns: int) -> CounterSample:
            return CounterSample(now_ns, 1, accesses, 0, "test")

        def close(self) -> None:
            Opened.closed = True

    monkeypatch.setattr(doctor, "L3Counters", Opened)
    found = doctor.probe_counters((0,))
    assert found["available"] is (accesses > 0) and len(found["events"]) == (2 if accesses else 0) and Opened.closed
    assert ("stay at zero" in found["reason"]) is (accesses == 0)
    assert ("work" in doctor.interference(found)["why"]) is (accesses > 0)

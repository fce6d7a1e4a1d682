"""`veltair replay` on simulated logs, and on a daemon's whose artifact is gone; tests/server replays a daemon's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from veltair.cli import main

SCENARIO = """
[load]
queries = 40
proxy = "{proxy}"
grows_inside_layers = {inside}
layer_qos = "ops"

[[tenants]]
name = "eyes"
model = "mobilenet_v2"
qps = 400
target_ms = 10
max_batch = 2
"""


def record(folder: Path, *arguments: str, proxy: str = "observed", inside: str = "false") -> Path:
    """A simulated log of 40 queries on 8 cores."""
    scenario, log = folder / "small.toml", folder / "events.jsonl"
    scenario.write_text(SCENARIO.format(proxy=proxy, inside=inside))
    assert main(["simulate", str(scenario), "--cores", "8", "--seeds", "1", "--log", str(log), *arguments]) == 0
    return log


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of a log under the default policy."""
    return record(tmp_path_factory.mktemp("replay")).read_text().splitlines(keepends=True)


@pytest.fixture
def log(recorded: list[str], tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(recorded))
    return path


def edit(log: Path, number: int, old: str, new: str) -> None:
    """Changes a line of the log."""
    lines = log.read_text().splitlines(keepends=True)
    assert old in lines[number]
    lines[number] = lines[number].replace(old, new, 1)
    log.write_text("".join(lines))


@pytest.mark.parametrize(
    ("policy", "proxy", "inside"),
    [("veltair", "counters", "true"), ("veltair-full", "demand", "false"), ("block-6", "observed", "true")],
)
def test_a_simulated_log_replays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str, proxy: str, inside: str
) -> None:
    log = record(tmp_path, "--policy", policy, proxy=proxy, inside=inside)
    capsys.readouterr()
    assert main(["replay", str(log)]) == 0
    assert f"decisions: identical ({policy})" in capsys.readouterr().out


def test_a_changed_decision_is_found(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(log, 2, '"predicted_ns":', '"predicted_ns":1')
    assert main(["replay", str(log)]) == 1
    assert "the decisions differ: log line 3: expected StartBlock" in capsys.readouterr().out


def test_another_policy_decides_otherwise(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(log, 0, '"policy":"veltair"', '"policy":"prema"')
    assert main(["replay", str(log)]) == 1
    assert "the decisions differ" in capsys.readouterr().out


def test_a_torn_last_line_is_a_bad_file(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text(log.read_text()[:-9])
    assert main(["replay", str(log)]) == 2
    assert "is torn" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"policy":"veltair"', '"policy":"fifo"', "unknown policy 'fifo': expected one of ai-mt"),
        ('"version":3', '"version":4', "expected format version 3, got 4"),
        ('"mobilenet_v2":"', '"mobilenet_v2":"0', "mobilenet_v2: the log was recorded with another profile"),
        ('"kind":"simulation"', '"kind":"dream"', "expected a daemon or a simulation as its origin"),
        ('"queries":40', '"queries":"many"', "scheduler log: origin: Expected `int | null`"),
        ('"LogHeader"', '"QueryArrived"', 'expected "type" to be one of LogHeader'),
    ],
)
def test_a_wrong_header_is_a_bad_file(
    log: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, says: str
) -> None:
    edit(log, 0, old, new)
    assert main(["replay", str(log)]) == 2
    assert says in capsys.readouterr().err


def test_a_log_without_its_artifacts_is_a_bad_file(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = log.read_text().splitlines(keepends=True)
    header = json.loads(lines[0])
    for folders, says in [({"mobilenet_v2": str(tmp_path / "gone")}, "gone"), ({}, "profile, which is missing")]:
        header["origin"] = {"kind": "daemon", "artifacts": folders}
        log.write_text("".join([json.dumps(header) + "\n", *lines[1:]]))
        assert main(["replay", str(log)]) == 2
        assert says in capsys.readouterr().err
    assert main(["replay", str(log), "--artifact", "mobilenet_v2"]) == 2
    assert "expected MODEL=DIR" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "says"), [(b"", "is empty"), (b"\xff\n", "in UTF-8"), (None, "No such file")])
def test_what_is_no_log_is_a_bad_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, says: str
) -> None:
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert main(["replay", str(path)]) == 2
    assert says in capsys.readouterr().err

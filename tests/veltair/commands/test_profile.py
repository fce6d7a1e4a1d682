"""`veltair profile`: sources of samples, the files it writes, and its errors without counters."""

from __future__ import annotations

import errno
import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from veltair import cli, config
from veltair.commands.timing import slowdown_samples
from veltair.machine.hardware_counters import CountersMissingError
from veltair.simulation.machine_model.counter_fit import SlowdownSample, encode_samples
from veltair.types import CounterSample, Machine


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "samples.json"
    drawn = [
        SlowdownSample(window_ns=10, l3_accesses=100, l3_misses=100 * r, level=1 + r)
        for r in rng.uniform(0, 1, 40).tolist()
    ]
    varied = [
        SlowdownSample(window_ns=10, l3_accesses=100 + i, l3_misses=s.l3_misses, level=s.level)
        for i, s in enumerate(drawn)
    ]
    path.write_bytes(encode_samples(varied))
    return path


def test_what_is_written_configures_the_daemon(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "proxy.json"
    assert cli.main(["profile", "--fit-proxy", str(samples), "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = config.read_counter_coefficients(out)
    assert printed["per_miss_rate"] == found.per_miss_rate == pytest.approx(1.0, abs=0.3)
    assert printed["samples"] == 40 and printed["r2_cross_validated"] > 0.9


def test_a_file_that_is_there_is_overwritten_with_force_alone(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "proxy.json"
    out.write_text("mine", "utf-8")
    ask = ["profile", "--fit-proxy", str(samples), "--out", str(out)]
    assert cli.main(ask) == 2
    assert "is there already" in capsys.readouterr().err and out.read_text("utf-8") == "mine"
    assert cli.main([*ask, "--force"]) == 0
    assert json.loads(out.read_text("utf-8"))["samples"] == 40


@pytest.mark.parametrize("said", ["\n", "n\n", None], ids=["enter", "no", "nobody to ask"])
def test_artifacts_are_not_rewritten_without_a_yes(
    said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = io.StringIO("yes\n" if said is None else said)
    typed.isatty = lambda: said is not None  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", typed)
    assert cli.main(["profile", "--within-model", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "--yes" in err and ("[y/N]" in err) == (said is not None)


@pytest.mark.parametrize("options", [["--yes"], []], ids=["--yes", "typed"])
def test_a_yes_goes_on(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = io.StringIO("y\n")
    typed.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", typed)
    assert cli.main(["profile", "--within-model", str(tmp_path), *options]) == 2  # it is no artifact
    assert "rewrites" not in capsys.readouterr().err


def test_people_get_a_table(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "--fit-proxy", str(samples)]) == 0
    shown = capsys.readouterr().out
    assert "x L3 miss rate" in shown and "40 samples, R2 0.9" in shown and "l3_misses_per_ns" in shown


def test_bad_samples_and_places_end_with_2(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = str(tmp_path / "none" / "proxy.json")
    assert cli.main(["profile", "--fit-proxy", str(tmp_path / "none.json")]) == 2
    assert cli.main(["profile", "--fit-proxy", str(samples), "--out", nowhere]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and all("No such file" in line for line in said)


def test_without_counters_it_says_so_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(cores: object) -> object:
        raise CountersMissingError(errno.ENOENT, "perf_event_open on core 0: No such file or directory (ENOENT)")

    monkeypatch.setattr(slowdown_samples, "L3Counters", missing)
    monkeypatch.setattr(slowdown_samples, "load_artifact", lambda path: None)
    monkeypatch.setattr(slowdown_samples, "usable_machine", lambda: Machine(((0, 1),)))
    assert cli.main(["profile", "--fit-proxy", "--live", str(tmp_path)]) == 1
    assert "no L3 counters here: perf_event_open on core 0" in capsys.readouterr().err


def test_live_levels_are_slowdowns_against_idle_co_runners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Co-runners that take half of the time make a query of two thirds wait twice as long."""
    now_ns, slow = [0], [1.0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns[0])

    def query() -> None:
        now_ns[0] += round(2_000_000 * slow[0])

    class Counters:
        before = 0

        def sample(self, at: int) -> CounterSample:
            window, self.before = at - self.before, at
            return CounterSample(at, window, window // 10, window // 20, "fake")

    @contextmanager
    def start_co_runners(load: float) -> Iterator[None]:
        slow[0] = 1 + 2 * load
        yield

    found = list(slowdown_samples.sample_slowdowns(query, Counters(), [0.0, 0.5, 1.0], start_co_runners))  # type: ignore[arg-type]
    assert [round(sample.level, 3) for sample in found[:: slowdown_samples.WINDOWS]] == [1.0, 2.0, 3.0]
    assert len(found) == 3 * slowdown_samples.WINDOWS
    assert all(sample.l3_misses / sample.l3_accesses == pytest.approx(0.5, rel=1e-3) for sample in found)
    assert all(sample.window_ns >= slowdown_samples.WINDOW_NS for sample in found)

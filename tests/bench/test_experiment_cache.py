"""Experiments of all figures in one pool: kept results, the order, and the time that is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.paper import experiment_cache
from bench.paper.experiment_cache import expected_cost, run, seconds_left
from bench.paper.figures import PAPER_FIGURES


def doubled(number: int) -> int:
    return 2 * number


def fails(number: int) -> int:
    raise ValueError(str(number))


def test_results_come_in_order_and_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experiment_cache, "KEPT", tmp_path)
    assert run([(doubled, 3), (doubled, 1), (doubled, 3)], "trial") == [6, 2, 6]
    assert "trial: 2 of 2" in capsys.readouterr().out
    for kept in tmp_path.rglob("*.json"):
        kept.write_text("7")
    assert run([(doubled, 1)], "trial") == [7]
    assert not capsys.readouterr().out
    with pytest.raises(ValueError, match="5"):
        run([(fails, 5)], "trial")
    assert len(list(tmp_path.rglob("*.json"))) == 2 and not list(tmp_path.rglob("*.draft"))


def test_the_time_left_follows_the_cost_of_what_is_left() -> None:
    every = [call for shown in PAPER_FIGURES.values() for call in shown.calls(False)]
    assert seconds_left(10.0, [], every) is None
    half = sum(map(expected_cost, every)) / 2
    done, cost = [], 0.0
    while cost < half:
        done.append(every[len(done)])
        cost += expected_cost(done[-1])
    assert seconds_left(60.0, done, every) == pytest.approx(60.0, rel=0.1)
    assert seconds_left(60.0, every, every) == 0.0

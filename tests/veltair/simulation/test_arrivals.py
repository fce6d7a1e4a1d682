from __future__ import annotations

import numpy as np
import pytest

from veltair.errors import ConfigError
from veltair.simulation.arrivals import draw_arrivals, read_arrival_times
from veltair.simulation.simulation_scenario import SimulationScenario, TenantWorkload

SECOND = 10**9


def scenario(**kind):
    return SimulationScenario(
        (TenantWorkload(name="a", qps=100, target_ms=1, **kind), TenantWorkload(name="b", qps=50, target_ms=1))
    )


def test_gaps_of_a_poisson_process_are_exponential():
    times, others = draw_arrivals(scenario(), 1.0, 1, 200 * SECOND)
    gaps = np.diff(times) / 1e9
    assert len(times) == pytest.approx(20_000, rel=0.03)
    assert gaps.mean() == pytest.approx(gaps.std(), rel=0.03)  # equal for exponentials only among the usual ones
    assert len(others) == pytest.approx(10_000, rel=0.04)


def test_a_seed_gives_one_pattern_at_any_rate():
    once, twice = (draw_arrivals(scenario(), scale, 7, 10 * SECOND // scale)[0] for scale in (1, 2))
    assert np.abs(once / 2 - twice).max() <= 1
    assert not np.array_equal(draw_arrivals(scenario(), 1.0, 8, 10 * SECOND)[0], once)


def test_even_arrivals_keep_their_distance():
    times = draw_arrivals(scenario(arrivals="even"), 2.0, 1, SECOND)[0]
    assert len(times) == 200
    assert set(np.diff(times)) <= {4_999_999, 5_000_000, 5_000_001}


def test_arrivals_from_a_file(tmp_path):
    path = tmp_path / "times.txt"
    path.write_text("# seconds\n0\n0.5  # half\n\n0.5\n2\n")
    times = draw_arrivals(scenario(arrivals="file", file=str(path)), 2.0, 1, SECOND)[0]
    assert times.tolist() == [0, SECOND // 4, SECOND // 4]  # twice as fast; the last one at 1 s is too late


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.1\n0.3\n\n0.2\n", r"times.txt: line 4: 0.2 s is earlier than the line before \(0.3 s\)"),
        ("0.1\nsoon\n", "times.txt: line 2: expected a time in seconds, got 'soon'"),
        ("-1\n", "times.txt: line 1: expected 0 to 1e9 seconds, got -1"),
        ("nan\n", "times.txt: line 1: expected 0 to 1e9 seconds, got nan"),
        ("# nothing\n", "times.txt: expected 1 to 10000000 arrival times, got 0"),
    ],
)
def test_wrong_files_are_refused_with_the_line(tmp_path, text, said):
    path = tmp_path / "times.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_arrival_times(path)
    with pytest.raises(ConfigError, match="none: cannot be read: No such file"):
        read_arrival_times(tmp_path / "none")

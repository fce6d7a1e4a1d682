"""Counters of the simulated machine, and the proxy that is fitted to counters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from veltair.errors import ConfigError
from veltair.simulation.machine_model.counter_fit import (
    SlowdownSample,
    encode_samples,
    fit_counters,
    principal_components,
    read_samples,
)


def drawn(count: int = 200, noise: float = 0.0, seed: int = 0) -> list[SlowdownSample]:
    """level = 1.1 + 2 x miss rate + 0.5 x accesses per ns, and two counters that say nothing."""
    rng = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        rate, accesses = rng.uniform(0, 1), rng.uniform(0, 4)
        level = 1.1 + 2 * rate + 0.5 * accesses + noise * rng.normal()
        samples.append(
            SlowdownSample(
                window_ns=1000,
                l3_accesses=1000 * accesses,
                l3_misses=1000 * accesses * rate,
                level=max(1.0, level),
                instructions=rng.uniform(1, 2),
                cycles=1.0,
            )
        )
    return samples


def test_a_line_is_found() -> None:
    found = fit_counters(drawn())
    assert (found.constant, found.per_miss_rate, found.per_access_per_ns) == pytest.approx((1.1, 2.0, 0.5))
    assert found.r2 == found.r2_cross_validated == 1.0
    assert found.r2_alone["instructions_per_cycle"] < 0.1 < found.r2_alone["l3_miss_rate"]


def test_noise_is_not_explained() -> None:
    found = fit_counters(drawn(noise=0.5))
    assert found.per_miss_rate == pytest.approx(2.0, abs=0.3)
    assert 0.5 < found.r2_cross_validated <= found.r2 < 0.95
    rng = np.random.default_rng(1)
    unrelated = [
        SlowdownSample(window_ns=1, l3_accesses=2 + rng.random(), l3_misses=rng.uniform(0, 2), level=1 + rng.random())
        for _ in range(99)
    ]
    assert fit_counters(unrelated).r2_cross_validated < 0.05


def test_components_are_orthogonal_and_complete() -> None:
    rng = np.random.default_rng(2)
    one = rng.normal(size=300)
    found = principal_components({"a": one, "b": one + 0.01 * rng.normal(size=300), "c": rng.normal(size=300)})
    shares = [component.variance for component in found]
    assert sum(shares) == pytest.approx(1, abs=1e-5) and shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(2 / 3, abs=0.05)  # a and b are the same thing, c is another
    vectors = np.array([list(component.loadings.values()) for component in found])
    assert vectors @ vectors.T == pytest.approx(np.eye(3), abs=1e-3)


def test_samples_go_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    path.write_bytes(encode_samples(drawn(30)))
    assert read_samples(path) == drawn(30)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "truncated"),
        ('{"runs": []}', "expected an object with \"samples\", got 'runs'"),
        ('{"samples": [{"window_ns": 0, "l3_accesses": 1, "l3_misses": 1, "level": 1}]}', "window_ns"),
        ('{"samples": [{"window_ns": 5, "l3_accesses": 1, "l3_misses": 1, "level": 0.5}]}', "level"),
        ('{"samples": [{"window_ns": 5, "l3_accesses": 1, "l3_misses": 1}]}', "level"),
        ('{"samples": [{"window_ns": 5, "l3_accesses": 1, "l3_misses": 1, "level": 1, "llc": 1}]}', "llc"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "samples.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"samples\.json: ") as caught:
        read_samples(path)
    assert said in str(caught.value)


def test_samples_that_say_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 20 samples, got 19"):
        fit_counters(drawn(19))
    with pytest.raises(ConfigError, match="levels and counters that vary"):
        fit_counters(drawn(1) * 30)
    bad = [*drawn(30), SlowdownSample(window_ns=1, l3_accesses=1, l3_misses=2, level=1)]
    with pytest.raises(ConfigError, match="sample 30: more L3 misses than accesses"):
        fit_counters(bad)

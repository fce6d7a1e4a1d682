"""What the front side carries: the rates that follow from CPU times."""

from __future__ import annotations

from bench.serving import fronts


def test_rates_follow_from_the_medians_of_cpu_times() -> None:
    entries = [
        {"fronts": count, "body": body.name, "server_cpu_ms": {"front": front_ms, "engine": 0.2}}
        for body in fronts.BODIES
        for count, times_ms in ((1, (0.05, 0.9, 0.05)), (2, (0.04, 0.04, 0.7)))
        for front_ms in times_ms
    ]
    _, _, row, image = fronts.table({"measurements": entries}).splitlines()
    assert row == "| 7 KB | 50 / 40 | 20,000 / 50,000 | 3 for 50,000 | 200 | 5,000 |"
    assert image == "| 0.6 MB | 50 / 40 | 20,000 / 50,000 | 1 for 5,000 | 200 | 5,000 |"

"""How often queries meet, with those that nobody was asked about."""

from __future__ import annotations

import pytest

from veltair.scheduler.policies.veltair.contention import HIGH, Contention


def test_queries_that_ran_unasked_count_as_if_they_had_come_one_by_one() -> None:
    one_by_one, at_once = Contention(), Contention()
    for contention in (one_by_one, at_once):
        for _ in range(128):
            contention.arrives(meets_others=True)
    for _ in range(12):
        one_by_one.arrives(meets_others=False)
    at_once.arrive_alone(12)
    assert at_once._share == pytest.approx(one_by_one._share) and at_once._share > HIGH
    at_once.arrive_alone(64)
    assert not at_once.is_high

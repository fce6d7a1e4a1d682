from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.loadgen.client import Outcome
from veltair.loadgen.open_loop import ArrivalSchedule, Trace
from veltair.loadgen.tenant_results import count_outcomes, measure_send_lag, pool_outcomes, summarize
from veltair.loadgen.tenant_streams import TenantStream

MS = 1_000_000
STREAMS = [TenantStream("a", 1, 10 * MS, 0.95, (b"",)), TenantStream("b", 1, 200 * MS, 0.99, (b"",))]
START, STOP = 100 * MS, 400 * MS

queries = st.lists(
    st.tuples(
        st.integers(0, 500 * MS),  # arrival
        st.integers(0, 30 * MS),  # sent so much later
        st.integers(0, 300 * MS),  # answered so much after that
        st.sampled_from([0, 1]),
        st.sampled_from(list(Outcome)),
    ),
    max_size=60,
)


def trace_of(rows, window_ns=(START, STOP)) -> Trace:
    rows = sorted(rows)
    arrival, late, took, stream = (np.array([r[i] for r in rows], np.int64) for i in range(4))
    outcome = np.array([r[4] for r in rows], np.int8)
    schedule = ArrivalSchedule(arrival, stream, np.zeros(len(rows), np.int64), window_ns)
    unsent = outcome == Outcome.UNSENT
    sent = np.where(unsent, 0, arrival + late)
    return Trace(schedule, sent, np.where(unsent, 0, sent + took), outcome, window_ns, Counter(), 0)


@given(queries)
def test_against_a_plain_count(rows):
    for i, outcomes in enumerate(count_outcomes(trace_of(rows), STREAMS)):
        own = [r for r in rows if r[3] == i and r[4] != Outcome.UNSENT]
        measured = [r for r in own if START <= r[0] < STOP]
        ok = [r[1] + r[2] for r in measured if r[4] == Outcome.OK]
        assert outcomes.offered == len(measured)
        assert outcomes.refused == sum(r[4] == Outcome.REFUSED for r in measured)
        assert outcomes.errors == sum(r[4] == Outcome.ERROR for r in measured)
        assert outcomes.latency_ns.tolist() == sorted(ok)
        assert outcomes.in_time == sum(latency <= STREAMS[i].target_ns for latency in ok)
        served = [r for r in own if r[4] == Outcome.OK and START <= r[0] + r[1] + r[2] < STOP]
        assert outcomes.served == len(served)

        row = summarize(outcomes)
        assert row.offered_qps == pytest.approx(len(measured) / 0.3, abs=1e-3)
        assert row.qps == pytest.approx(len(served) / 0.3, abs=1e-3)
        assert row.qos_rate == (outcomes.in_time / len(measured) if measured else None)
        refused = [r[2] for r in measured if r[4] == Outcome.REFUSED]
        admitted = len(measured) - len(refused)
        assert row.admitted_rate == (outcomes.in_time / admitted if admitted else None)
        expected = pytest.approx(np.percentile(refused, 99) / 1e6, abs=1e-3) if refused else None
        assert row.refused_p99_ms == expected
        for value, q in ((row.p50_ms, 50), (row.p95_ms, 95), (row.p99_ms, 99)):
            assert value == (pytest.approx(np.percentile(ok, q) / 1e6, abs=1e-3) if ok else None)


@given(queries, queries)
def test_pooling_runs_is_counting_them_as_one(first, second):
    both = pool_outcomes([count_outcomes(trace_of(first), STREAMS), count_outcomes(trace_of(second), STREAMS)])
    for one, two in zip(both, count_outcomes(trace_of(first + second), STREAMS), strict=True):
        assert one.window_ns == 2 * two.window_ns
        assert (one.offered, one.refused, one.errors, one.served, one.in_time) == (
            *(two.offered, two.refused, two.errors, two.served),
            two.in_time,
        )
        np.testing.assert_array_equal(one.latency_ns, two.latency_ns)
        np.testing.assert_array_equal(np.sort(one.refusal_ns), np.sort(two.refusal_ns))


def of_hundred(in_time: int, late: int = 0, refused: int = 0, errors: int = 0):
    kinds = [(Outcome.OK, 10)] * in_time + [(Outcome.OK, 11)] * late
    kinds += [(Outcome.REFUSED, 1)] * refused + [(Outcome.ERROR, 1)] * errors
    rows = [(START + i, 0, ms * MS, 0, outcome) for i, (outcome, ms) in enumerate(kinds)]
    return count_outcomes(trace_of(rows), STREAMS[:1])[0]


@pytest.mark.parametrize("missed", ["late", "refused", "errors"])
def test_late_refused_and_failed_all_count_against_the_qos(missed):
    held, breached = of_hundred(95, **{missed: 5}), of_hundred(94, **{missed: 6})
    assert (held.qos_rate, held.qos_held) == (0.95, True)
    assert (breached.qos_rate, breached.qos_held) == (0.94, False)


def test_nothing_offered_holds_nothing():
    empty = of_hundred(0)
    assert empty.qos_rate is None and not empty.qos_held
    assert summarize(empty).p50_ms is None


def test_a_run_stopped_in_its_warm_up_has_an_empty_window():
    trace = trace_of([(0, 0, MS, 0, Outcome.OK)], window_ns=(50 * MS, 50 * MS))
    row = summarize(count_outcomes(trace, STREAMS)[0])
    assert (row.offered_qps, row.qps, row.qos_rate) == (0, 0, None)


def test_lag_is_measured_against_each_tenants_target():
    punctual = [(i, 900_000, 0, 0, Outcome.OK) for i in range(99)]
    late_for_a = (200 * MS, 1_100_000, 0, 0, Outcome.OK)  # over 1 ms
    fine_for_b = (200 * MS, 9 * MS, 0, 1, Outcome.OK)  # a 20th of 200 ms is 10
    unsent = (300 * MS, 0, 0, 0, Outcome.UNSENT)

    calm = measure_send_lag(trace_of([*punctual, late_for_a, unsent]), STREAMS)
    assert (calm.max_ns, calm.late_share, calm.too_large) == (1_100_000, 0.01, False)
    assert measure_send_lag(trace_of([*punctual, late_for_a, late_for_a]), STREAMS).too_large
    slow = measure_send_lag(trace_of([*punctual, fine_for_b]), STREAMS)
    assert (slow.max_ns, slow.late_share) == (9 * MS, 0)
    assert measure_send_lag(trace_of([]), STREAMS).max_ns == 0

"""`RequestCounts`: what the front counts for one tenant, request by request."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veltair.errors import (
    DeadlineError,
    FailureReason,
    OverloadedError,
    QueryError,
    RefusalReason,
    RefusedError,
    RequestError,
)
from veltair.server.front.counts.version_counts import VersionCounts
from veltair.server.front.recent_window import FAILED, LIMITED, OK, REFUSED, SECOND_NS, RecentWindow
from veltair.server.ipc.stages import EXECUTE, GAP, STAGES, WAIT
from veltair.types import QoSTarget

SLO_CAUSES = ("late", "overloaded", "deadline", "failed")  # of misses of a tenant's target
OUTCOMES = ("ok", "invalid", "overloaded", "deadline", "cancelled", "failed")

_WINDOW_OUTCOMES = {"ok": OK, "overloaded": REFUSED, "deadline": REFUSED, "failed": FAILED}
_NOT_IN_WINDOW = -1
_WINDOW_CODES = np.array([_WINDOW_OUTCOMES.get(outcome, _NOT_IN_WINDOW) for outcome in OUTCOMES], np.int8)
_EDGES_NS = tuple(step * 10**power for power in range(5, 10) for step in (1, 2, 5))  # 100 us … 5 s
_EDGES_PER_CENT = (25, 50, 75, 90, 100, 110, 125, 150, 200, 400)  # of the target, where a quantile decides something


def outcome_of_error(error: BaseException) -> str:
    """The one of OUTCOMES that a request with this error is counted as."""
    if isinstance(error, RequestError):
        return "invalid"
    if isinstance(error, OverloadedError):
        return "overloaded"
    if isinstance(error, DeadlineError):
        return "deadline"
    return "failed" if isinstance(error, Exception) else "cancelled"


class DurationHistogram:
    """Counts of durations, integers of nanoseconds, by upper edge (inclusive).

    >>> histogram = DurationHistogram()
    >>> histogram.add(150_000)
    >>> histogram.buckets()[:2]
    [('0.0001', 0.0), ('0.0002', 1.0)]
    """

    __slots__ = ("_counts", "_edges_ns", "_sum_ns")

    def __init__(self, *extra_edges_ns: int) -> None:
        """`extra_edges_ns` are added to the edges from 100 us to 5 s."""
        self._edges_ns = sorted({*_EDGES_NS, *extra_edges_ns})
        self._counts = [0] * (len(self._edges_ns) + 1)
        self._sum_ns = 0

    def add(self, duration_ns: int) -> None:
        self._counts[bisect_left(self._edges_ns, duration_ns)] += 1
        self._sum_ns += duration_ns

    def add_batch(self, durations_ns: NDArray[np.int64]) -> None:
        """Do the same as `add` for each of them."""
        added = np.bincount(np.searchsorted(self._edges_ns, durations_ns), minlength=len(self._counts))
        self._counts = [count + more for count, more in zip(self._counts, added.tolist(), strict=True)]
        self._sum_ns += int(durations_ns.sum())

    def move_edges(self, *extra_edges_ns: int) -> None:
        """Other extra edges. What is counted already stays so at the edges that stay, and above an edge that goes it
        counts below the next one.

        >>> histogram = DurationHistogram(3_000_000)
        >>> histogram.add(2_500_000)
        >>> histogram.move_edges(4_000_000)
        >>> [row for row in histogram.buckets() if row[1]][0]
        ('0.004', 1.0)
        """
        before, self._edges_ns = (*self._edges_ns, None), sorted({*_EDGES_NS, *extra_edges_ns})
        counts, self._counts = self._counts, [0] * (len(self._edges_ns) + 1)
        for edge, count in zip(before, counts, strict=True):
            self._counts[-1 if edge is None else bisect_left(self._edges_ns, edge)] += count

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def sum_ns(self) -> int:
        return self._sum_ns

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as (le in seconds, count)."""
        total, rows = 0, []
        for edge, count in zip([*self._edges_ns, None], self._counts, strict=True):
            total += count
            rows.append(("+Inf" if edge is None else repr(edge / SECOND_NS), float(total)))
        return rows


class StageTotals(NamedTuple):
    """What a tenant's answered requests took so far, by stage.

    >>> StageTotals(3, (0, 6_000_000)).means_ms(since=StageTotals(1, (0, 2_000_000)))
    [0.0, 2.0]
    """

    answered: int
    stage_ns: tuple[int, ...]

    def means_ms(self, since: StageTotals) -> list[float] | None:
        """Mean times of the requests that were answered in between; None without any."""
        answered = self.answered - since.answered
        if not answered:
            return None
        pairs = zip(self.stage_ns, since.stage_ns, strict=True)
        return [round((now - before) / answered / 1e6, 6) for now, before in pairs]


class RequestCounts:
    """Counts of one tenant's requests since the front started.

    >>> counts = RequestCounts("mlp", QoSTarget(10_000_000))
    >>> counts.count_answer(stage_ns=(100_000, 20_000, 80_000, 3_000_000, 0, 300_000, 500_000), batch=2)
    >>> counts.outcomes["ok"], counts.qos_met, counts.inferences
    (1, 1, 2)
    """

    def __init__(self, model: str, qos: QoSTarget) -> None:
        self.model = model
        self.target_ns = qos.latency_ns
        self.duration = DurationHistogram(*_edges_near(qos))  # arrival to answer; an edge at the target: exact QoS
        self.queue = DurationHistogram()
        self.execution = DurationHistogram()
        self.front = DurationHistogram()  # all but the wait for the first block, the blocks and the gaps between them
        self.window = RecentWindow(qos.latency_ns, qos.percentile)
        self.stage_ns = [0] * len(STAGES)  # of all answered requests
        self.outcomes: Counter[str] = Counter()  # requests by OUTCOMES
        self.refusals: Counter[str] = Counter()  # requests by RefusalReason
        self.failures: Counter[str] = Counter()  # requests by FailureReason
        self.qos_met = 0
        self.inferences = 0  # batch elements
        self.versions: defaultdict[str, VersionCounts] = defaultdict(VersionCounts)  # those that had any request

    def aim_at(self, qos: QoSTarget) -> None:
        """Another target from here on. What was counted stays as it was counted."""
        if (self.target_ns, self.window.percentile) != (qos.latency_ns, qos.percentile):
            self.target_ns = qos.latency_ns
            self.duration.move_edges(*_edges_near(qos))
            self.window.aim_at(qos.latency_ns, qos.percentile)

    def count_answer(self, stage_ns: Sequence[int], batch: int, version: str = "1") -> None:
        """Count a request that was answered. `stage_ns`: how long each of STAGES took. `version`: of the model."""
        duration_ns = sum(stage_ns)
        self.stage_ns = [total + taken for total, taken in zip(self.stage_ns, stage_ns, strict=True)]
        self.outcomes["ok"] += 1
        self.qos_met += duration_ns <= self.target_ns
        self.inferences += batch
        self.duration.add(duration_ns)
        self.queue.add(sum(stage_ns[:EXECUTE]))
        self.execution.add(stage_ns[EXECUTE])
        self.front.add(duration_ns - sum(stage_ns[WAIT : GAP + 1]))
        self.window.add(time.monotonic_ns(), duration_ns, OK)
        self.versions[version].add_answers(1, stage_ns, time.time_ns() // 1_000_000)

    def count_error(self, error: BaseException, duration_ns: int, version: str = "1") -> None:
        """Count a request that got an error or whose client left. A client's own faults do not lower the QoS rate."""
        outcome = outcome_of_error(error)
        self.outcomes[outcome] += 1
        if isinstance(error, RefusedError):
            self.refusals[error.reason] += 1
        elif outcome == "failed":
            self.failures[error.failure if isinstance(error, QueryError) else FailureReason.INTERNAL] += 1
        self.versions[version].add_failures(1, duration_ns)
        if outcome in _WINDOW_OUTCOMES:
            limited = isinstance(error, RefusedError) and error.reason is RefusalReason.RATE
            self.window.add(time.monotonic_ns(), duration_ns, LIMITED if limited else _WINDOW_OUTCOMES[outcome])

    def count_batch(self, records: NDArray[Any], monotonic_ns: int, wall_ns: int, version: str = "1") -> None:
        """Count requests that have ended, an array of ENDED_REQUEST, as if each had been counted when it ended.

        `monotonic_ns` and `wall_ns` are both clocks, read at one moment.

        >>> from veltair.server.ipc.stages import ENDED_REQUEST
        >>> counts = RequestCounts("mlp", QoSTarget(10_000_000))
        >>> stages = (100_000, 20_000, 80_000, 3_000_000, 0, 300_000, 500_000)
        >>> ended = (5_000_000, sum(stages), stages, 2, OUTCOMES.index("ok"), 0)
        >>> counts.count_batch(np.array([ended], ENDED_REQUEST), monotonic_ns=6_000_000, wall_ns=1_000_000_000)
        >>> counts.outcomes["ok"], counts.inferences, counts.versions["1"].last_ms
        (1, 2, 999)
        """
        outcome, duration_ns = records["outcome"], records["duration_ns"]
        by_outcome = np.bincount(outcome, minlength=len(OUTCOMES)).tolist()
        failed = outcome == OUTCOMES.index("failed")
        refusals = _by_reason(RefusalReason, records["reason"][~failed])
        failures = _by_reason(FailureReason, records["reason"][failed])
        self.outcomes.update(dict(zip(OUTCOMES, by_outcome, strict=True)))
        self.refusals.update(refusals)
        self.failures.update(failures)
        answered = records[outcome == OUTCOMES.index("ok")]
        if len(answered):
            self.qos_met += int((answered["duration_ns"] <= self.target_ns).sum())
            self.inferences += int(answered["batch"].sum())
            self.duration.add_batch(answered["duration_ns"])
            stage_ns = answered["stage_ns"]  # (requests, stages)
            taken = stage_ns.sum(axis=0).tolist()
            self.stage_ns = [total + more for total, more in zip(self.stage_ns, taken, strict=True)]
            self.queue.add_batch(stage_ns[:, :EXECUTE].sum(axis=1))
            self.execution.add_batch(stage_ns[:, EXECUTE])
            self.front.add_batch(answered["duration_ns"] - stage_ns[:, WAIT : GAP + 1].sum(axis=1))
            last_ns = int(answered["end_ns"].max()) + wall_ns - monotonic_ns
            self.versions[version].add_answers(len(answered), taken, last_ns // 1_000_000)
        if len(answered) < len(records):
            failed_ns = int(duration_ns.sum()) - int(answered["duration_ns"].sum())
            self.versions[version].add_failures(len(records) - len(answered), failed_ns)
        code = _WINDOW_CODES[outcome]
        code[~failed & (records["reason"] == RefusalReason.RATE.number)] = LIMITED
        seen = code != _NOT_IN_WINDOW
        self.window.add_batch(records["end_ns"][seen], duration_ns[seen], code[seen])

    def stage_totals(self) -> StageTotals:
        """The stages so far."""
        return StageTotals(self.outcomes["ok"], tuple(self.stage_ns))

    def slo_misses(self) -> dict[str, int]:
        """Misses of the target so far, by SLO_CAUSES. A tenant that asks more often than its rate allows misses nothing
        by that, nor by requests that are invalid or cancelled.
        """
        outcomes = self.outcomes
        overloaded = outcomes["overloaded"] - self.refusals[RefusalReason.RATE]
        return dict(
            zip(
                SLO_CAUSES,
                (outcomes["ok"] - self.qos_met, overloaded, outcomes["deadline"], outcomes["failed"]),
                strict=True,
            )
        )

    def slo_totals(self) -> tuple[int, int]:
        """Totals so far: requests that count for the target, and those of them that missed it."""
        misses = sum(self.slo_misses().values())
        return self.qos_met + misses, misses


def _edges_near(qos: QoSTarget) -> list[int]:
    return [qos.latency_ns * per_cent // 100 for per_cent in _EDGES_PER_CENT]


def _by_reason(reasons: type[StrEnum], numbers: NDArray[np.int32]) -> dict[str, int]:
    """How often each of the fixed list occurs, by its place from 1 on; 0 is none of them."""
    counts = np.bincount(numbers, minlength=1 + len(reasons)).tolist()
    return {reason: count for reason, count in zip(reasons, counts[1:], strict=True) if count}

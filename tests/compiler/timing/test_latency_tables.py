from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from veltair.compiler.timing import latency_tables
from veltair.compiler.timing.co_runners import buffer_bytes, distinct_levels, run_co_runners
from veltair.compiler.timing.latency_tables import TimingJob, count_passes, make_tables, measure_times
from veltair.compiler.timing.measure import Meter
from veltair.errors import VeltairError
from veltair.machine.topology import cache_bytes, usable_machine


def runners() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "veltair.compiler.timing.co_runners" in p.cmdline()]


def test_co_runners_hold_their_cores_from_start_to_end() -> None:
    cores = usable_machine().cores
    with run_co_runners(cores, 1.0):
        running = runners()
        assert sorted(core for p in running for core in p.cpu_affinity()) == sorted(cores)
        assert all(p.memory_info().rss > buffer_bytes(len(cores)) for p in running)
    assert runners() == []


def test_co_runners_end_with_an_error_too() -> None:
    with pytest.raises(KeyboardInterrupt), run_co_runners(usable_machine().cores[:1], 0.5):
        assert len(runners()) == 1
        raise KeyboardInterrupt
    assert runners() == []


def test_no_core_no_co_runner() -> None:
    with run_co_runners((), 1.0):
        assert runners() == []


def test_a_core_that_is_not_there_is_reported() -> None:
    with pytest.raises(VeltairError, match="did not start"), run_co_runners(((os.cpu_count() or 1) + 4096,), 1.0):
        pass


def test_the_buffer_misses_the_private_cache() -> None:
    assert buffer_bytes(1) > cache_bytes().get("L2", 0)
    assert buffer_bytes(10_000) * 10_000 <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("slowdowns", "levels"),
    [
        ([1.1, 1.5], [(0, 1.1), (1, 1.5)]),
        ([1.0, 1.5], [(1, 1.5)]),
        ([0.97, 1.005], []),
        ([1.5, 1.1], [(0, 1.5)]),
        ([1.5, 1.505, 1.6], [(0, 1.5), (2, 1.6)]),
        ([], []),
    ],
)
def test_levels_ascend_from_alone(slowdowns: list[float], levels: list[tuple[int, float]]) -> None:
    assert distinct_levels(slowdowns) == levels


class Scripted(Meter):
    """A meter that answers from a table: alone 100, 60, 50 ns on 1, 2, 3 cores, more beside co-runners."""

    def __init__(self, factors: dict[str, list[float]], cores: int = 3) -> None:
        super().__init__(tuple(range(cores)))
        self.factors, self.grade = factors, 0

    def time(self, library: Path, symbol: str, operands: object, counts: object = None, **_: object) -> list[int]:  # type: ignore[override]
        assert isinstance(counts, (tuple, range))
        alone = {1: 100, 2: 60, 3: 50}
        factor = self.factors[symbol][self.grade - 1] if self.grade else 1.0
        return [round(alone[count] * factor) for count in counts]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[float, list[tuple[int, ...]]]:
    """Replaces the co-runners by a note of grade and cores; the meter in use learns the grade."""
    noted: dict[float, list[tuple[int, ...]]] = {}

    class Noted:
        def __init__(self, cores: tuple[int, ...], grade: float) -> None:
            noted.setdefault(grade, []).append(cores)
            self.grade = list(noted).index(grade) + 1

        def __enter__(self) -> None:
            METERS[-1].grade = self.grade

        def __exit__(self, *_: object) -> None:
            METERS[-1].grade = 0

    monkeypatch.setattr(latency_tables, "run_co_runners", Noted)
    return noted


METERS: list[Scripted] = []


def tables(factors: dict[str, list[float]], layers: list[int], cores: int = 3) -> latency_tables.LatencyTables:
    METERS.append(Scripted(factors, cores))
    jobs = [TimingJob(Path("x.so"), symbol, ((),), count) for symbol, count in zip(factors, layers, strict=True)]
    ticks: list[None] = []
    with METERS[-1] as meter:
        times = measure_times(jobs, meter, (0.5, 1.0), tick=lambda: ticks.append(None))
    assert len(ticks) == len(jobs) * count_passes(cores, (0.5, 1.0))
    return make_tables(jobs, times)


def rows(found: latency_tables.LatencyTables, job: int) -> NDArray[np.int64]:
    return found.latency_ns[job, 0]


def test_every_core_count_is_timed_beside_co_runners_on_the_others(
    script: dict[float, list[tuple[int, ...]]],
) -> None:
    found = tables({"a": [1.2, 1.4], "b": [1.0, 1.2]}, [1, 1])
    assert script == {0.5: [(1, 2), (2,)], 1.0: [(1, 2), (2,)]}
    assert found.levels == (1.0, 1.1, 1.3)  # means over the layers
    assert rows(found, 0).tolist() == [[100, 60, 50], [120, 72, 60], [140, 84, 70]]  # 3 cores: as slow as 2
    assert rows(found, 1).tolist() == [[100, 60, 50], [100, 60, 50], [120, 72, 60]]


def test_what_disturbs_a_job_once_is_not_in_its_times() -> None:
    class Disturbed(Scripted):
        asked = 0

        def time(self, *args: Any, **_: object) -> list[int]:
            self.asked += 1
            alone = super().time(*args)
            return [alone[0] * 40, *alone[1:]] if self.asked in (2, 3) else alone  # "b" at first, "a" the second time

    jobs = [TimingJob(Path("x.so"), symbol, ((),), 1) for symbol in ("a", "b")]
    with Disturbed({"a": [], "b": []}) as meter:
        times = measure_times(jobs, meter, ())
    assert [job.alone_ns for job in times] == [((100, 60, 50),)] * 2


def test_between_the_ends_the_slowdown_follows_the_place_of_the_batch(
    script: dict[float, list[tuple[int, ...]]],
) -> None:
    """Of four batch sizes the first and the last are asked: 1.0 and 1.6 times as slow beside the others."""

    class Batches(Scripted):
        def time(self, library: Path, symbol: str, operands: Any, counts: object = None, **_: object) -> list[int]:  # type: ignore[override]
            [batch] = operands
            alone = super().time(library, "alone", operands, counts)
            return [time * batch * {1: 10, 8: 16}[batch] // 10 if self.grade else time * batch for time in alone]

    METERS.append(Batches({"alone": [1.0]}))
    job = TimingJob(Path("x.so"), "a", ((1,), (2,), (4,), (8,)))  # type: ignore[arg-type]
    with METERS[-1] as meter:
        [times] = measure_times([job], meter, (1.0,))
    assert times.alone_ns == tuple((100.0 * batch, 60.0 * batch, 50.0 * batch) for batch in (1, 2, 4, 8))
    slowdowns = np.array(times.pressed_ns[0]) / np.array(times.alone_ns)
    np.testing.assert_allclose(slowdowns, [[1.0] * 3, [1.2] * 3, [1.4] * 3, [1.6] * 3])


def test_layers_that_share_code_weigh_by_their_number(script: dict[float, list[tuple[int, ...]]]) -> None:
    assert tables({"a": [1.4, 2.0], "b": [1.0, 1.0]}, [3, 1]).levels == (1.0, 1.3, 1.75)


def test_a_grade_without_effect_is_no_level(script: dict[float, list[tuple[int, ...]]]) -> None:
    found = tables({"a": [1.0, 1.5]}, [1])
    assert found.levels == (1.0, 1.5)
    assert rows(found, 0).tolist() == [[100, 60, 50], [150, 90, 75]]


def test_no_slowdown_at_all_is_one_level_and_said_aloud(
    script: dict[float, list[tuple[int, ...]]], caplog: pytest.LogCaptureFixture
) -> None:
    assert tables({"a": [0.98, 1.0]}, [1]).levels == (1.0,)
    assert "one interference level only: co-runners cost 0.0%" in caplog.text


def test_one_core_has_no_neighbours(
    script: dict[float, list[tuple[int, ...]]], caplog: pytest.LogCaptureFixture
) -> None:
    found = tables({"a": [2.0, 3.0]}, [1], cores=1)
    assert (found.levels, script) == ((1.0,), {})
    assert rows(found, 0).tolist() == [[100]]
    assert "there is one core" in caplog.text

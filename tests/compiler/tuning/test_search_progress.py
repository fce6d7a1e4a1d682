"""What the progress line of a search says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from copy_search import TILES, WIDE, Copy, layer, setting, store, written
from rich.progress import Progress, TaskID

from veltair.compiler.timing.measure import Meter
from veltair.compiler.tuning.search import search


class Watched(Progress):
    """Keeps what was told, and (done, all) with it."""

    def __init__(self) -> None:
        super().__init__(disable=True)
        self.told: list[tuple[str, float, float | None]] = []

    def update(self, task_id: TaskID, **named: Any) -> None:
        super().update(task_id, **named)
        task = self.tasks[task_id]
        if "description" in named:
            self.told.append((task.description, task.completed, task.total))


def test_progress_tells_the_layer_the_trial_the_best_and_what_is_left_in_all(tmp_path: Path, meter: Meter) -> None:
    written(store(tmp_path), layer("b", rows=32), TILES[:1])
    watched = Watched()
    specs = [layer("a"), layer("b", rows=32), layer("c")]
    own = store(tmp_path)
    search(specs, own, meter, setting(Copy(TILES)), 9, watched)
    assert [told[1:] for told in watched.told] == [(0, 5), (1, 5), (2, 5), (3, 5), (3, 5), (4, 5), (5, 5)]
    lines = [told[0] for told in watched.told]
    best = [min(r.best_ns for r in own.own(layer().workload)[:count]) for count in (1, 2, 3)]
    assert lines[0] == "search: layer 1 of 2, copy, trial 0/3"
    assert lines[1:4] == [
        f"search: layer 1 of 2, copy, trial {i}/3, best {ns / 1000:.1f} us" for i, ns in enumerate(best, 1)
    ]
    assert lines[4] == "search: layer 2 of 2, copy, trial 1/3, best 1000.0 us"
    assert lines[6].startswith("search: layer 2 of 2, copy, trial 3/3, best ")


def test_progress_tells_where_the_first_points_are_from(tmp_path: Path, meter: Meter) -> None:
    known = written(store(tmp_path), layer(rows=48), WIDE[:4])
    written(known, layer(rows=16), WIDE[:1], cpu="another")
    watched = Watched()
    search([layer(rows=64), layer(rows=16)], known, meter, setting(Copy(WIDE)), 0, watched)
    assert watched.told[0] == (r"search: layer 1 of 2, copy, trial 0/4, points of [48,8] to [48,8] first", 0, 5)
    told = ["first" in line for line, *_ in watched.told[:5]]
    assert told == [True, True, True, False, False]  # as long as they are not measured
    assert watched.told[5] == ("search: layer 2 of 2, copy, trial 0/1, points of another CPU or TVM first", 4, 5)
    assert watched.told[-1][1:] == (5, 5)

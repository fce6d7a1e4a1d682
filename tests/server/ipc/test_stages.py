"""The stages of a query's way add up to it, and follow each other."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from veltair.server.ipc.stages import ANSWER, EXECUTE, STAGES, EngineStamps, stage_times

TIMES = st.integers(-(2**62), 2**62)


@given(TIMES, st.lists(st.integers(0, 2**40), min_size=6, max_size=6), st.floats(0, 1))
def test_stages_add_up_to_the_way_and_none_is_negative(arrival_ns: int, steps: list[int], share: float) -> None:
    submitted_ns, *stamps, answered_ns = accumulate(steps[1:], initial=arrival_ns + steps[0])
    execute_ns = int(share * (stamps[2] - stamps[1]))
    taken = stage_times(arrival_ns, submitted_ns, EngineStamps(*stamps), execute_ns, answered_ns)
    assert sum(taken) == answered_ns - arrival_ns
    assert min(taken) >= 0
    by_name = dict(zip((stage.name for stage in STAGES), taken, strict=True))
    assert by_name["execute"] == execute_ns
    assert by_name["execute"] + by_name["gap"] == steps[3]
    around = [by_name[name] for name in ("read", "handoff", "wait", "report", "answer")]
    assert around == [*steps[:3], *steps[4:]]


def test_stages_have_names_of_their_own_and_begin_where_others_end() -> None:
    by_name = {stage.name: stage for stage in STAGES}
    assert len(by_name) == len(STAGES)
    assert (STAGES[EXECUTE].name, STAGES[ANSWER].name) == ("execute", "answer")
    for before, after in (("read", "handoff"), ("handoff", "wait"), ("report", "answer")):
        assert by_name[before].ends == by_name[after].begins

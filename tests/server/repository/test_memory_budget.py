"""Which models leave memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from veltair.server.repository.memory_budget import (
    MemoryBudget,
    MemoryNeed,
    ResidentModel,
    bytes_of,
    first_residents,
)

BUDGET = 100
NOW = 1000
NEEDS = st.builds(MemoryNeed, st.sampled_from("abcd"), st.just(30), st.integers(0, 40))
MODELS = st.builds(ResidentModel, NEEDS, st.integers(1, 50), st.integers(0, NOW), st.booleans())


def budget_of(models: list[ResidentModel], most: int = BUDGET) -> MemoryBudget[int]:
    budget = MemoryBudget[int](most)
    for key, model in enumerate(models):
        budget.loaded(key, model)
    return budget


def alone(size: int, load_ns: int = 1, used_ns: int = 0, name: str = "", *, pinned: bool = False) -> ResidentModel:
    return ResidentModel(MemoryNeed(name or f"{size}.{load_ns}.{used_ns}", size, 0), load_ns, used_ns, pinned)


@given(st.lists(MODELS, max_size=6), NEEDS, st.sets(st.integers(0, 5)))
def test_the_budget_holds_whenever_it_can(models: list[ResidentModel], need: MemoryNeed, busy: set[int]) -> None:
    budget = budget_of(models)
    leaving = budget.leaving_for(need, busy, NOW)
    bound = [model.need for key, model in enumerate(models) if model.pinned or key in busy]
    possible = bytes_of([need, *bound]) <= BUDGET
    assert (leaving is not None) == possible
    if not budget.ever_fits(need):
        assert leaving is None
    if leaving is None:
        return
    assert not any(models[key].pinned or key in busy for key in leaving)
    staying = [model.need for key, model in enumerate(models) if key not in leaving]
    assert bytes_of([need, *staying]) <= BUDGET
    for key in leaving:  # each of them has to
        assert bytes_of([need, models[key].need, *staying]) > BUDGET
    for key in leaving:
        budget.left(key)
    assert budget.leaving_for(need, busy, NOW) == []


@given(st.lists(st.integers(0, NOW), min_size=1, max_size=8, unique=True), st.integers(1, 8), st.data())
def test_of_equal_models_those_idle_longest_leave_in_their_order(
    used: list[int], fit: int, data: st.DataObject
) -> None:
    budget = budget_of([alone(10, name=str(key)) for key in range(len(used))], most=10 * max(fit, len(used)))
    for key, time_ns in enumerate(used):
        budget.used(key, time_ns)
    coming = data.draw(st.integers(0, len(used)))
    leaving = budget.leaving_for(MemoryNeed("new", 10 * coming, 0), (), NOW + 1)
    oldest_first = sorted(range(len(used)), key=used.__getitem__)
    count = max(0, coming + len(used) - max(fit, len(used)))
    assert leaving == oldest_first[:count]


@given(st.lists(MODELS, max_size=6), NEEDS)
def test_it_decides_the_same_again(models: list[ResidentModel], need: MemoryNeed) -> None:
    first, second = (budget_of(models).leaving_for(need, (), NOW) for _ in range(2))
    assert first == second


def test_who_leaves_is_weighed_by_what_it_costs() -> None:
    need = MemoryNeed("new", 30, 0)
    # idle for 100 and 200: the first one takes three times as long to come back, and stays in any case
    assert budget_of([alone(50, 3, NOW - 200), alone(50, 1, NOW - 100)]).leaving_for(need, (), NOW) == [1]
    # of two that are idle equally long the one that gives more back
    assert budget_of([alone(30, 1, 0), alone(70, 1, 0)]).leaving_for(need, (), NOW) == [1]
    # the small one would have gone first, and then is not needed
    assert budget_of([alone(20, 1, 0), alone(80, 9, NOW - 300)]).leaving_for(need, (), NOW) == [1]


def test_models_with_one_artifact_count_once() -> None:
    shared = [ResidentModel(MemoryNeed("a", 60, 10), 1, used) for used in (0, 900)]
    budget = budget_of(shared)
    assert budget.bytes == 80
    assert budget.leaving_for(MemoryNeed("a", 60, 20), (), NOW) == []
    assert budget.leaving_for(MemoryNeed("b", 30, 0), (), NOW) == [0]
    assert budget.leaving_for(MemoryNeed("b", 40, 0), (), NOW) == [0, 1]


def test_events() -> None:
    budget = budget_of([alone(50, 1, 5, "a"), alone(50, 1, 6, "b")])
    budget.used(0, 7)
    budget.used(0, 3)  # told late
    budget.used(9, 3)  # not there
    assert [model.used_ns for model in budget.models.values()] == [7, 6]
    budget.grown(1, 25)
    assert budget.bytes == 125
    budget.left(1)
    budget.left(1)
    assert budget.bytes == 50


def test_a_start_takes_what_fits_in_turn() -> None:
    needs = [("pinned", MemoryNeed("p", 70, 0)), ("a", MemoryNeed("a", 40, 0)), ("b", MemoryNeed("p", 70, 30))]
    assert first_residents(needs, BUDGET) == {"pinned", "b"}

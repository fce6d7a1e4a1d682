"""Groups of independent patterns, by bits alone."""

from hypothesis import given
from hypothesis import strategies as st

from veltair.compiler.stitch.remote_fusion import LARGEST, Group, group_patterns


@st.composite
def stretches(draw: st.DrawFn) -> tuple[list[int], list[bool]]:
    """What each pattern depends on, by any way, and whether it is small."""
    needs: list[int] = []
    for i in range(draw(st.integers(0, 32))):
        direct = draw(st.sets(st.integers(0, i - 1), max_size=2)) if i else set()
        found = 0
        for p in direct:
            found |= needs[p] | 1 << p
        needs.append(found)
    return needs, draw(st.lists(st.booleans(), min_size=len(needs), max_size=len(needs)))


def saved_launches(group: Group) -> float:
    return len(group) - 1


@given(stretches())
def test_groups_hold_every_pattern_once_and_can_run(stretch: tuple[list[int], list[bool]]) -> None:
    needs, is_small = stretch
    groups = group_patterns(needs, is_small, saved_launches)
    assert sorted(i for group in groups for i in group) == list(range(len(needs)))
    done = 0
    for group in groups:
        assert len(group) == 1 or (len(group) <= LARGEST and all(is_small[i] for i in group))
        assert all(not needs[i] & ~done for i in group)  # all before any of the group has run
        done |= sum(1 << i for i in group)


def test_patterns_far_from_each_other_share_a_kernel() -> None:
    """Two chains side by side, in an order in which none of their links are neighbours of an equal."""
    chain = [0b0, 0b1, 0b11, 0b0, 0b1000, 0b11000]
    assert group_patterns(chain, [True] * 6, saved_launches) == [(0, 3), (1, 4), (2, 5)]


def test_groups_do_not_wait_for_each_other() -> None:
    """0 -> 1 and 2 -> 3: with (0, 3) in a kernel, (1, 2) cannot be in one."""
    groups = group_patterns([0, 0b1, 0, 0b100], [True] * 4, lambda group: 5.0 if group == (0, 3) else len(group) - 1)
    assert groups[1] == (0, 3) or (0, 3) not in groups
    assert (1, 2) not in groups or (0, 3) not in groups


def test_what_gains_nothing_stays_apart() -> None:
    assert group_patterns([0, 0, 0], [True] * 3, lambda group: 0.0 if len(group) == 1 else -1.0) == [(0,), (1,), (2,)]

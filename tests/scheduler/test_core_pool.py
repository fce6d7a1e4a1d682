from hypothesis import given
from hypothesis import strategies as st
from scheduler_builders import make_machine

from veltair.scheduler.core_pool import CorePool


def test_whole_domains_go_first():
    pool = CorePool(make_machine(4, 4, 4))
    assert pool.take(1) == (0,)
    assert pool.take(4) == (4, 5, 6, 7)  # not the three that are left beside core 0
    assert pool.take(2) == (1, 2)  # the tightest fit
    assert pool.take(5) == (3, 8, 9, 10, 11)
    assert pool.free == 0


def test_the_rest_goes_where_it_fits_tightest():
    pool = CorePool(make_machine(4, 2, 3))
    assert pool.take(2) == (4, 5)
    assert pool.take(3) == (6, 7, 8)
    assert pool.take(3) == (0, 1, 2)


def test_what_fits_nowhere_is_spread_over_few_domains():
    pool = CorePool(make_machine(3, 3, 3))
    first, second, third = pool.take(2), pool.take(1), pool.take(2)
    assert (first, second, third) == ((0, 1), (2,), (3, 4))
    pool.give_back((0,))
    assert pool.take(4) == (0, 6, 7, 8)


def test_growth_stays_beside_the_block():
    pool = CorePool(make_machine(4, 4))
    held = pool.take(2)
    assert held == (0, 1)
    assert pool.take(4, neighbours=held) == (2, 3, 4, 5)


def test_cores_to_avoid_come_last_within_their_domain():
    pool = CorePool(make_machine(3, 1))
    assert pool.take(1, avoid=(0, 3)) == (3,)  # the tightest fit, as ever
    assert pool.take(1, avoid=(0,)) == (1,)
    assert pool.take(2, avoid=(0,)) == (0, 2)
    pool.give_back((0, 2))
    assert pool.take(1, neighbours=(1,), avoid=(0,)) == (2,)
    pool.give_back((2,))
    assert pool.take(1) == (0,)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.lists(st.integers(0, 40), max_size=40))
def test_every_core_is_free_or_held_once(sizes, choices):
    pool, held = CorePool(make_machine(*sizes)), []
    for choice in choices:
        if choice % 3 == 0 and held:
            pool.give_back(held.pop(choice % len(held)))
        elif pool.free:
            count = choice % pool.free + 1
            beside = held[-1] if choice % 2 and held else ()
            held.append(pool.take(count, beside))
            assert len(held[-1]) == count and list(held[-1]) == sorted(held[-1])
        taken = [core for core_set in held for core in core_set]
        assert sorted([*taken, *pool.free_cores()]) == list(range(sum(sizes)))
        assert pool.free == len(pool.free_cores())

"""Cores, L3 domains and caches of machines that we do not have, and of this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kernel_tree import v1_machine, v2_machine

from veltair.machine import topology
from veltair.machine.topology import group_by_l3, parse_cpu_list, pick_cores, usable_domains

CPU_LISTS = {
    "0-3,64-67\n": (0, 1, 2, 3, 64, 65, 66, 67),
    "5": (5,),
    "": (),
    "2,0-1": (0, 1, 2),
    "\n": (),
}


@pytest.mark.parametrize(("text", "cores"), CPU_LISTS.items())
def test_cpu_lists(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cores


def threadripper() -> tuple[dict[int, str], dict[int, str]]:
    """3990X: 64 cores, core c and c + 64 are threads of one, four cores share an L3."""
    l3 = {
        c: f"{c % 64 // 4 * 4}-{c % 64 // 4 * 4 + 3},{c % 64 // 4 * 4 + 64}-{c % 64 // 4 * 4 + 67}" for c in range(128)
    }
    return l3, {c: f"{c % 64},{c % 64 + 64}" for c in range(128)}


def test_domains_of_a_threadripper() -> None:
    l3, siblings = threadripper()
    domains = group_by_l3(range(128), l3)
    assert len(domains) == 16 and domains[1] == (4, 5, 6, 7, 68, 69, 70, 71)
    assert pick_cores(domains, None, siblings) == domains == pick_cores(domains, 500.0, siblings)
    assert pick_cores(domains, 6.9, siblings) == ((0, 1, 2, 3), (4, 5))  # floor; no second threads yet
    assert pick_cores(domains, 0.4, siblings) == ((0,),)
    assert pick_cores(domains, 66, siblings)[0] == (0, 1, 2, 3, 64, 65)
    assert group_by_l3({2, 3, 70}, l3) == ((2, 3), (70,))  # an affinity mask within two caches
    only_second = group_by_l3({68, 69}, l3)
    assert pick_cores(only_second, 1, siblings) == ((68,),)


def test_cores_without_a_known_cache_share_a_domain() -> None:
    assert group_by_l3([3, 1, 2], {}) == ((1, 2, 3),)
    assert group_by_l3([0, 1, 2], {0: "0-1\n", 1: "0-1\n"}) == ((0, 1), (2,))


def test_readers_of_a_v2_machine(tmp_path: Path) -> None:
    root = v2_machine(tmp_path)
    assert usable_domains([0, 1], root) == ((0,),)
    assert topology.cache_bytes(root) == {"L1": 48 << 10, "L2": 2 << 20, "L3": 32 << 20}


def test_readers_of_a_v1_machine(tmp_path: Path) -> None:
    assert usable_domains([0, 1], v1_machine(tmp_path, quota_us=-1)) == ((0, 1),)
    assert usable_domains([0, 1], v1_machine(tmp_path, quota_us=150_000)) == ((0,),)


def test_a_machine_that_shows_nothing(tmp_path: Path) -> None:
    assert topology.cache_bytes(tmp_path) == {} and usable_domains([4, 7], tmp_path) == ((4, 7),)


def test_this_machine() -> None:
    usable = topology.usable_machine().cores
    assert usable and set(usable) <= os.sched_getaffinity(0)

"""The policies by name. A new one is a class with `next_step` in a file of its own, and a line here."""

from __future__ import annotations

from collections.abc import Callable

from veltair.errors import ConfigError
from veltair.scheduler.fcfs import Fcfs
from veltair.scheduler.state import Policy
from veltair.scheduler.veltair_full import VeltairFull

POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": Fcfs,
    "veltair-full": VeltairFull,
}


def make_policy(name: str) -> Policy:
    if name not in POLICIES:
        raise ConfigError(f"unknown policy {name!r}: expected one of {', '.join(sorted(POLICIES))}")
    return POLICIES[name]()

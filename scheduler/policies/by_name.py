"""The policies by name. A new one is a class with `next_step` in a file of its own, and a line here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from veltair.errors import ConfigError
from veltair.scheduler.policies.baselines.ai_mt import AiMt
from veltair.scheduler.policies.baselines.clockwork import Clockwork
from veltair.scheduler.policies.baselines.fcfs import Fcfs
from veltair.scheduler.policies.baselines.fixed_blocks import FixedBlocks
from veltair.scheduler.policies.baselines.packrat import Packrat
from veltair.scheduler.policies.baselines.parties import Parties
from veltair.scheduler.policies.baselines.planaria import Planaria
from veltair.scheduler.policies.baselines.prema import Prema
from veltair.scheduler.policies.paper import VeltairFull
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.policies.veltair.policy import Veltair

POLICIES: dict[str, Callable[[], Policy]] = {
    "veltair": Veltair,
    "veltair-full": VeltairFull,
    "veltair-as": partial(VeltairFull, adapt_versions=False),
    "veltair-ac": partial(FixedBlocks, 1, adapt_versions=True),
    "fcfs": Fcfs,
    "layerwise": partial(FixedBlocks, 1),
    "block-6": partial(FixedBlocks, 6),
    "block-11": partial(FixedBlocks, 11),
    "planaria": Planaria,
    "prema": Prema,
    "parties": Parties,
    "ai-mt": AiMt,
    "clockwork": Clockwork,
    "packrat": Packrat,
}


def make_policy(name: str) -> Policy:
    if name not in POLICIES:
        raise ConfigError(f"unknown policy {name!r}: expected one of {', '.join(sorted(POLICIES))}")
    return POLICIES[name]()

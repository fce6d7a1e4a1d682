"""What of the paper can be read in more than one way, and the policies of a reading.

The defaults of `Readings` follow the paper's text. `EARLIER` is how this project read it before; `ABLATIONS` changes
one thing at a time. A policy is named with what varies after an `@`: `planaria@keeps-late`, `layerwise@sheds-late`,
`veltair-full@passing`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec

from veltair.scheduler.policies.baselines.fixed_blocks import FixedBlocks
from veltair.scheduler.policies.baselines.planaria import Planaria
from veltair.scheduler.policies.by_name import POLICIES
from veltair.scheduler.policies.paper import VeltairFull
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.policies.serving_order import ServingOrder
from veltair.simulation.machine_model.machine_model import MachineModel

ADAPTIVE_VERSIONS = {"veltair", "veltair-full", "veltair-ac"}  # Table 1; the others have one version of each layer
_FIXED = {"layerwise": 1, "block-6": 6, "block-11": 11, "veltair-ac": 1}  # layers of a block


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """How the paper is read; one field for each sentence that decides a figure.

    >>> Readings().layers
    'products'
    """

    # FULL and AS: a layer's share of the whole target (Alg. 1 l. 3), or of the time left among the layers left.
    layer_targets: Literal["once", "time-left"] = "once"
    # FULL and AS: who of those in flight is served first. Fixed blocks always serve who asked first.
    workers: Literal["asked", "oldest"] = "asked"
    # When a query starts (section 4.3); see `ServingOrder`.
    dispatch: Literal["first-block", "passing", "any-core"] = "first-block"
    # On how many cores a pressure is turned into an interference level: those that models need, or the mean over all.
    levels_on: Literal["need", "all"] = "need"
    # Static compilation (Table 1): one version, tuned for the whole machine, or the best of five for each core count.
    static_versions: Literal["whole-machine", "every-count"] = "whole-machine"
    # A layer in conflict pays for its threads once (figure 5b), or each time that it gets more cores.
    conflict_cost: Literal["layer", "growth"] = "layer"
    # Layers as the paper counts them (section 3.2: 53 convolutions and 2 products), or every operator by itself.
    layers: Literal["products", "operators"] = "products"
    # Not the paper's words, but the machine's: a block starts at once, or once its threads are awake (`WAKE_NS`).
    block_start: Literal["at-once", "awake"] = "at-once"
    # The machine's, too: kernels reach one share of their bound, or each layer's that which its shape was measured at.
    kernel_times: Literal["one-share", "by-shape"] = "one-share"
    # The machine's, too: blocks in one L3 domain have its link each, or share it.
    links: Literal["each", "shared"] = "each"
    # The machine's, too: computing and moving overlap entirely, or as far as measured (`EXPOSED_SHARE`).
    overlap: Literal["whole", "measured"] = "whole"


TEXT = Readings()
EARLIER = Readings(
    layer_targets="time-left",
    workers="oldest",
    dispatch="any-core",
    levels_on="all",
    static_versions="every-count",
    conflict_cost="growth",
    layers="operators",
)
_change = partial(msgspec.structs.replace, EARLIER)
ABLATIONS: dict[str, Readings] = {
    "as read before": EARLIER,
    "1a layers' targets set once": _change(layer_targets="once"),
    "1b a query starts on the need of its first block": _change(dispatch="first-block"),
    "1b' the same, others may pass": _change(dispatch="passing"),
    "1c workers served as they asked": _change(workers="asked"),
    "1 all three": _change(layer_targets="once", dispatch="first-block", workers="asked"),
    "2 layers as the paper counts them": _change(layers="products"),
    "3 a conflict costs once a layer": _change(conflict_cost="layer"),
    "8 static policies have one version": _change(static_versions="whole-machine"),
    "9 levels on the cores that blocks hold": _change(levels_on="need"),
    "all together": TEXT,
    "all together, others may pass": msgspec.structs.replace(TEXT, dispatch="passing"),
    "all together, and 5 kernels' times by shape": msgspec.structs.replace(TEXT, kernel_times="by-shape"),
    "all together, and 6a links of domains are shared": msgspec.structs.replace(TEXT, links="shared"),
    "all together, and 6b computing and moving overlap as measured": msgspec.structs.replace(TEXT, overlap="measured"),
    "all together, and 7 threads wake at a block's start": msgspec.structs.replace(TEXT, block_start="awake"),
    "all together, and 5, 6a, 6b and 7": msgspec.structs.replace(
        TEXT, kernel_times="by-shape", links="shared", overlap="measured", block_start="awake"
    ),
}
# From the end of a block to the first layer of the next one, measured by bench/serving/front_end.py on two cores of an
# EPYC, the nearest to the paper's machine (bench/results/epyc/front.json); 192 us on a Xeon.
WAKE_NS = 77_769.0
# What a query takes longer than its layers one by one, each timed hot, over the time in which a core reads from memory
# all that its layers read and write: ResNet-50 9 ms of 217 MB (0.64), GoogLeNet 2.3 of 77 (0.47), SSD-MobileNet 2.6 of
# 110 (0.37), at 15.5 GB/s on one core of a Xeon (docs/results.md, xeon-2.toml); the median. Taken from L3 the same
# bytes would take less time, and a greater share of it would be exposed.
EXPOSED_SHARE = 0.47


def machine_for(readings: Readings, model: MachineModel) -> MachineModel:
    """Returns the machine model with what the readings say of the machine."""
    changes: dict[str, Any] = {}
    if readings.block_start == "awake":
        changes["wake_ns"] = WAKE_NS
    if readings.kernel_times == "by-shape":
        changes["kernels"] = "avx2"
    if readings.links == "shared":
        changes["shared_links"] = True
    if readings.overlap == "measured":
        changes["exposed_share"] = EXPOSED_SHARE
    return replace(model, **changes)


def relevant(policy: str, readings: Readings) -> Readings:
    """Returns the readings with what does not concern the policy as in `TEXT`, so that equal runs are run once."""
    name = policy.partition("@")[0]
    irrelevant: set[str] = set()
    if name in ADAPTIVE_VERSIONS:
        irrelevant.add("static_versions")
    else:
        irrelevant.add("levels_on")
    if name not in ("veltair-full", "veltair-as"):
        irrelevant |= {"layer_targets", "workers"}
        if name not in _FIXED:
            irrelevant |= {"dispatch", *(() if name == "veltair" else ("conflict_cost",))}
    return msgspec.structs.replace(readings, **{field: getattr(TEXT, field) for field in irrelevant})


def versions_for(policy: str, readings: Readings, most: int) -> int:
    """Returns how many code versions of a layer the policy may choose from, at most."""
    name = policy.partition("@")[0]
    return 1 if name not in ADAPTIVE_VERSIONS and readings.static_versions == "whole-machine" else most


def policy_name(policy: str, readings: Readings) -> str:
    """Returns the name by which a simulation finds the policy in this reading; it is registered by the first call."""
    name = f"{policy} {msgspec.json.encode(readings).decode()}"
    if name not in POLICIES:
        POLICIES[name] = _factory(policy, readings)
    return name


def _factory(policy: str, readings: Readings) -> Callable[[], Policy]:
    name, _, variant = policy.partition("@")
    dispatch = "passing" if variant == "passing" else readings.dispatch
    order = ServingOrder(readings.workers, dispatch, variant == "sheds-late")
    if name in ("veltair-full", "veltair-as"):
        against_slack = readings.layer_targets == "time-left"
        adapt = name == "veltair-full"
        return partial(VeltairFull, adapt_versions=adapt, against_slack=against_slack, order=order)
    if name in _FIXED:
        asked = ServingOrder("asked", dispatch, variant == "sheds-late")
        return partial(FixedBlocks, _FIXED[name], adapt_versions=name == "veltair-ac", order=asked)
    if name == "planaria":
        return partial(Planaria, sheds_late=variant != "keeps-late")
    return POLICIES[name]

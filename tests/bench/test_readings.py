"""The readings of the paper, and the policies that they make."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from scheduler_builders import arrives, make_machine, make_tenant, simple_profile, started

from bench.paper import ablations
from bench.paper.experiments import bracket_scale
from bench.paper.readings import ABLATIONS, EARLIER, TEXT, policy_name, relevant, versions_for
from bench.policies.planned_share import SHARES, best_share
from veltair.scheduler.events import BlockFinished
from veltair.scheduler.policies.by_name import POLICIES
from veltair.scheduler.scheduler import Scheduler


@pytest.fixture(autouse=True)
def _policies_of_readings_end_with_the_test() -> Iterator[None]:
    """They are registered in the process, whose other tests compare what lists every policy (the man page)."""
    registered = dict(POLICIES)
    yield
    POLICIES.clear()
    POLICIES.update(registered)


def test_every_ablation_changes_what_its_name_says() -> None:
    changed = {
        row: {field for field, value in msgspec.structs.asdict(read).items() if value != getattr(EARLIER, field)}
        for row, read in ABLATIONS.items()
    }
    alone = [fields for row, fields in changed.items() if row[0] in "123456789" and " all " not in row]
    assert all(len(fields) == 1 for fields in alone)
    machines = {"block_start", "kernel_times", "links", "overlap"}  # tried with the text
    assert set.union(*alone) == set(TEXT.__struct_fields__) - machines
    with_text = {
        field
        for read in ABLATIONS.values()
        for field in machines
        if msgspec.structs.replace(TEXT, **{field: getattr(read, field)}) == read != TEXT
    }
    assert with_text == machines  # each alone
    assert changed["1 all three"] == {"layer_targets", "dispatch", "workers"}
    assert changed["as read before"] == set()
    assert ABLATIONS["all together"] == TEXT


@pytest.mark.parametrize("policy", ["planaria", "prema", "fcfs"])
def test_what_does_not_concern_a_policy_names_no_other_run(policy: str) -> None:
    rows = {msgspec.json.encode(relevant(policy, read)) for read in ABLATIONS.values()}
    assert len(rows) == 9  # layers, the versions of static policies, and what is the machine's alone and together


def test_static_policies_have_one_version() -> None:
    assert [versions_for(p, TEXT, 5) for p in ("planaria", "layerwise@sheds-late", "veltair-as", "fcfs")] == [1] * 4
    assert [versions_for(p, TEXT, 5) for p in ("veltair", "veltair-full@passing", "veltair-ac")] == [5] * 3
    assert versions_for("planaria", EARLIER, 5) == 5


@pytest.mark.parametrize(
    ("policy", "starts"),
    [
        ("layerwise", [[1], [], [], [2, 3]]),  # the wide query waits for its need, and the slim one behind it
        ("veltair-full", [[1], [], [], [2, 3]]),
        ("veltair-full@passing", [[1], [], [3], [2]]),
    ],
)
def test_policies_of_the_text(policy: str, starts: list[list[int]]) -> None:
    tenants = [make_tenant(14, "wide", "w"), make_tenant(40, "slim", "s")]
    profiles = {name: [simple_profile((40, 20, 14, 10), model=name)] for name in ("w", "s")}
    scheduler = Scheduler(make_machine(4), tenants, profiles, policy_name(policy, TEXT), 8)
    seen = [arrives(scheduler, 1, 0, "wide"), arrives(scheduler, 2, 1, "wide"), arrives(scheduler, 3, 2, "slim")]
    seen.append(scheduler.handle(BlockFinished(14, 1, 1, 14)))
    assert [started(decisions) for decisions in seen] == starts


def test_the_share_is_searched_towards_the_better_side() -> None:
    for peaks in ((4.0, 3.0, 2.0, 1.0), (1.0, 2.0, 4.0, 3.0), (1.0, 2.0, 3.0, 4.0), (0.0, 0.0, 0.0, 0.0)):
        by_share = dict(zip(SHARES, peaks, strict=True))
        share, peak = best_share(by_share.__getitem__)
        assert peak == by_share[share] == max(peaks)


@pytest.mark.parametrize("true", [0.5, 0.93, 1.0, 1.3])
def test_a_peak_is_bracketed_from_a_guess(true: float) -> None:
    steps = bracket_scale(1.0)
    scale, held = next(steps), [0.0]
    while True:
        if scale <= true:
            held.append(scale)
        try:
            scale = steps.send(scale <= true)
        except StopIteration:
            break
    assert true / 1.021 <= max(held) <= true


def test_the_tables_have_gains_over_both_planarias() -> None:
    qps = {"planaria": 100.0, "layerwise": 50.0, "veltair-full": 120.0}
    peaks = [{"workload": "mix", "policy": p, "qps": q, "planned_share": 0.8} for p, q in qps.items()]
    data = {"text": peaks, "peaks": [{**peak, "reading": "all together"} for peak in peaks]}
    assert ablations.text_table(data).splitlines()[2:] == [
        "| Planaria (MICRO'20) | 100 (0.8) |",
        "| layer-wise (3.2's Planaria) | 50 (0.8) |",
        "| FULL | 120 (0.8) |",
        "| FULL over Planaria (MICRO'20) | +20 % |",
        "| FULL over layer-wise (3.2's Planaria) | +140 % |",
        "| the paper's FULL over Planaria | +68 % |",
    ]
    assert ablations.readings_table(data).splitlines()[2:] == ["| all together | 100 | 50 | 120 | +20 % / +140 % |"]

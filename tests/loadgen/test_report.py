from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from veltair.loadgen.open_loop import RunCounts
from veltair.loadgen.report import print_failures, progress_bar, results_table
from veltair.loadgen.scenario import TenantLoad
from veltair.loadgen.tenant_results import TenantResult

RED = "\x1b[31m"


def row(**changed) -> TenantResult:
    fields = {"name": "resnet50", "offered_qps": 20.0, "qps": 19.5, "p50_ms": 40.0, "p95_ms": 90.0, "p99_ms": 140.0}
    fields |= {"target_ms": 100.0, "qos_rate": 0.96, "refused": 3, "errors": 1}
    return TenantResult(**(fields | changed))


def drawn(result: TenantResult, percentile: float = 0.95, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
    tenants = [TenantLoad(result.name, 20.0, 100.0, percentile)]
    results_table([result], tenants, "http://[::1]:80").print(console)
    text: str = console.file.getvalue()
    return text


@pytest.mark.parametrize("width", [80, 120])
def test_every_number_is_there(width):
    text = drawn(row(name="mobilenet_v2 int8"), width=width)
    for part in ("http://[::1]:80", "mobilenet_v2 int8", "20.0", "19.5", "40.00", "90.00", "140", "96.0", "100 p95"):
        assert part in text
    assert "…" not in text


@pytest.mark.parametrize(
    ("changed", "percentile", "reds"),
    [
        ({}, 0.95, 0),  # p99 is beyond the target, but p95 is what was promised
        ({}, 0.99, 2),  # here p99 counts, and 96 % is too little
        ({"qos_rate": 0.9}, 0.95, 1),
        ({"qos_rate": 0.9, "p95_ms": 101.0}, 0.95, 2),
        ({"refused": 500, "errors": 500}, 0.95, 0),
        ({"p50_ms": None, "p95_ms": None, "p99_ms": None, "qos_rate": None}, 0.95, 0),
    ],
)
def test_red_is_a_breach_and_nothing_else(changed, percentile, reds):
    assert drawn(row(**changed), percentile).count(RED) == reds


def test_the_commonest_reasons_per_tenant():
    console = Console(file=io.StringIO(), width=80, markup=False)
    reasons = {f"[reason] {i}": i for i in range(1, 6)}
    print_failures(console, [row(name="a", failures=reasons), row(name="b", failures={"full": 2}), row(name="c")])
    assert console.file.getvalue().splitlines() == [
        "a: 5 x [reason] 5",
        "a: 4 x [reason] 4",
        "a: 3 x [reason] 3",
        "b: 2 x full",
    ]


@pytest.mark.parametrize(
    ("total_s", "counts", "text"),
    [
        (60.0, RunCounts(sent=12, done=5), "60 s left, 12 sent, 7 in flight"),
        (0.0, RunCounts(sent=5, done=5), "waiting for the last answers, 5 sent, 0 in flight"),
        (60.0, None, "60 s left"),
    ],
)
def test_the_bar_shows_the_time_left_and_what_is_in_flight(total_s, counts, text):
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)

    async def draw() -> None:
        async with progress_bar(console, "load", total_s, counts):
            await asyncio.sleep(0)

    asyncio.run(draw())
    drawn = console.file.getvalue()
    assert text in drawn
    assert ("in flight" in drawn) == (counts is not None)

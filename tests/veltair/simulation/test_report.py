"""The table of a simulation in a terminal."""

import io
from types import SimpleNamespace

from rich.console import Console

from veltair.simulation.report import PolicySummary, TenantSummary, print_results


def test_a_terminal_of_80_columns_cuts_no_number() -> None:
    tenants = [SimpleNamespace(name=name, percentile=0.95) for name in ("light_resnet50", "light_inception_v1")]
    rows = [TenantSummary(tenant.name, 1226.1, 0.977, 122.12, 134.17, 1141.13, 3.0, 100, 1) for tenant in tenants]
    out = io.StringIO()
    console = Console(file=out, width=80)
    print_results(console, [PolicySummary("veltair-full", 1106.1, 1106.1, 0.0123, 0.0077, rows)], tenants, "this", 2)
    lines = out.getvalue().splitlines()
    for number in ("1106.1", "1.2", "7.7", "1226.1", "97.7", "122.12", "134.17", "1141.13"):
        assert any(number in line.split() for line in lines), number

"""Medians over the rounds as one table, for the terminal and for `docs/measurements.md`.

A figure that needs two measurements, such as a round trip and the model's own time, takes both from the same round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.part_tables import markdown_table
from bench.serving.way.plan import CPU, DEMO_MIX, DEMO_SHARE, LONE, MIX, PEAK, PROTOCOLS, RAW, SHARED, SUBJECTS, Subject

Entry = Mapping[str, Any]  # a measurement of the file
ENGINES = {  # engine and precision in `veltair bench`, by a part of the stack's name; None: whatever the artifact has
    "veltair": ("veltair", None),
    "ONNX Runtime": ("onnxruntime", "fp32"),
    "OpenVINO": ("openvino", "default"),
}
HEADER = "gRPC / HTTP"
NEAR_MODEL = ("workers", "stubs", "launcher")  # roles of processes that are not on the way to the model


class EngineTimes(NamedTuple):
    """Milliseconds of a model in the engine of one stack, without a server."""

    one_core_ms: float
    all_cores_ms: float


Value = Callable[[Entry, EngineTimes | None], float | None]


class Line(NamedTuple):
    """A line of the table: where its figure comes from, and how it is written."""

    title: str
    row: str
    value: Value
    form: str = "{:.2f}"


def share_of_raw(peak_qps: float, cores: int, one_core_ms: float, client_cpu_ms: float) -> float:
    """Queries served over those that the cores could serve with nothing but the model and the client.

    >>> share_of_raw(30.0, cores=2, one_core_ms=45.0, client_cpu_ms=5.0)
    0.75
    """
    return peak_qps * (one_core_ms + client_cpu_ms) / (cores * 1e3)


def over_own_times(tenants: Mapping[str, Entry], own_ms: Mapping[str, float]) -> float:
    """The mean latency of all queries over their models' mean own time.

    >>> over_own_times({"a": {"answered": 1, "mean_ms": 6.0}, "b": {"answered": 2, "mean_ms": 3.0}}, {"a": 4, "b": 1})
    2.0
    """
    taken = sum(seen["answered"] * seen["mean_ms"] for seen in tenants.values())
    return taken / sum(seen["answered"] * own_ms[name] for name, seen in tenants.items())


def _cpu(role: str | None) -> Value:
    """CPU time of one role, or of all."""

    def value(entry: Entry, _: EngineTimes | None) -> float | None:
        at = entry["at_peak"] if entry["row"] == PEAK else entry
        if at is None:
            return None
        seen: Mapping[str, float] = at["server_cpu_ms"]
        return sum(seen.values()) if role is None else seen.get(role)

    return value


def _way_cpu(entry: Entry, _: EngineTimes | None) -> float:
    return sum(ms for role, ms in entry["server_cpu_ms"].items() if role not in NEAR_MODEL)


def _client_cpu(entry: Entry, _: EngineTimes | None) -> float | None:
    return entry["at_peak"] and entry["at_peak"]["client_cpu_ms"]


def _over_execution(entry: Entry, _: EngineTimes | None) -> float:
    return float(entry["mean_ms"] - entry["executed_ms"])


def _over_model(entry: Entry, own: EngineTimes | None) -> float | None:
    return own and entry["p50_ms"] - own.all_cores_ms


def _field(name: str) -> Value:
    return lambda entry, _: entry[name]


def _share(cores: int) -> Value:
    def value(entry: Entry, own: EngineTimes | None) -> float | None:
        at = entry["at_peak"]
        return own and at and share_of_raw(entry["peak_qps"], cores, own.one_core_ms, at["client_cpu_ms"])

    return value


def _lines(subject: Subject, cores: int) -> list[Line]:
    peak = f"peak QPS with {subject.percentile:.0%} within {subject.target_ms:g} ms"
    over_execution = "mean less what the server counts as the model, ms"
    lone = [
        Line("lone client, p50 ms", LONE, _field("p50_ms")),
        Line("lone client, p95 ms", LONE, _field("p95_ms")),
        Line(f"lone client, {over_execution}", LONE, _over_execution),
        Line("shared memory, lone client, p50 ms", SHARED, _field("p50_ms")),
        Line(f"shared memory, lone client, {over_execution}", SHARED, _over_execution),
    ]
    of_client = Line("CPU of the load generator a query at the peak, ms", PEAK, _client_cpu)
    if subject.name == "dlrm":
        rates = ((CPU, f"at {subject.moderate_qps:g} QPS"), (PEAK, "at the peak"))
        parts = ((None, ""), *((role, f", {role}") for role in ("front", "engine", "workers", "stubs")))
        used = [
            Line(f"CPU of the server a query {at}{of}, ms", row, _cpu(role)) for row, at in rates for role, of in parts
        ]
        return [*lone, *used, Line(peak, PEAK, _field("peak_qps"), "{:.0f}"), of_client]
    return [
        *lone,
        Line("lone client, p50 less the model's time on all cores, ms", LONE, _over_model),
        Line("shared memory, lone client, p50 less the model's time on all cores, ms", SHARED, _over_model),
        Line(f"CPU of front and engine a query at {subject.moderate_qps:g} QPS, ms", CPU, _way_cpu),
        Line(peak, PEAK, _field("peak_qps"), "{:.0f}"),
        of_client,
        Line("served over raw", PEAK, _share(cores)),
    ]


class Group(NamedTuple):
    """The lines of one model, each with its title and a cell for each stack."""

    title: str
    lines: list[list[str]]


def stacks(found: Entry) -> list[str]:
    """The stacks that were measured."""
    return list(dict.fromkeys(entry["stack"] for entry in found["measurements"] if entry["stack"]))


def medians(found: Entry, model: str, row: str, protocol: str, value: Callable[[Entry], float]) -> dict[str, float]:
    """The median over the rounds, by stack."""
    of_stack: dict[str, list[float]] = {}
    for entry in found["measurements"]:
        if (entry["model"], entry["row"], entry["protocol"]) == (model, row, protocol):
            of_stack.setdefault(entry["stack"], []).append(value(entry))
    return {stack: median(values) for stack, values in of_stack.items()}


def groups(found: Entry) -> list[Group]:
    """A cell has gRPC and HTTP, or gRPC alone, and is empty where nothing was measured."""
    entries = found["measurements"]
    mix = [
        Line("peak QPS", MIX, _field("peak_qps"), "{:.0f}"),
        Line(f"mean latency at {DEMO_SHARE:.0%} of it over the models' own times", MIX, _mix_ratio(entries)),
    ]
    kinds = [(name, subject.title, _lines(subject, found["cores"])) for name, subject in SUBJECTS.items()]
    made = []
    for model, title, lines in (*kinds, (DEMO_MIX, "The demo's mix of the three", mix)):
        rows = [[line.title, *(_cell(entries, model, stack, line) for stack in stacks(found))] for line in lines]
        made.append(Group(title, [row for row in rows if any(row[1:])]))
    return [group for group in made if group.lines]


def _cell(entries: Sequence[Entry], model: str, stack: str, line: Line) -> str:
    parts = []
    for protocol in PROTOCOLS:
        own = [
            e
            for e in entries
            if (e["model"], e["stack"], e["row"], e["protocol"]) == (model, stack, line.row, protocol)
        ]
        values = [line.value(entry, engine_times(entries, entry["round"], model, stack)) for entry in own]
        known = [value for value in values if value is not None]
        parts.append(line.form.format(median(known)) if known else "")
    return " / ".join(parts) if parts[1] else parts[0]


def engine_times(entries: Sequence[Entry], round_number: int, model: str, stack: str) -> EngineTimes | None:
    """The engine of a stack by itself, in this round; None where that was not measured."""
    engine, precision = next(kind for part, kind in ENGINES.items() if part in stack)
    times = {
        row["threads"]: row["median_ms"]
        for entry in entries
        if (entry["row"], entry["round"], entry["model"]) == (RAW, round_number, model)
        for row in entry["engines"]
        if row["engine"] == engine and precision in (None, row["precision"])
    }
    return EngineTimes(times[min(times)], times[max(times)]) if times else None


def _mix_ratio(entries: Sequence[Entry]) -> Value:
    def value(entry: Entry, _: EngineTimes | None) -> float | None:
        own = {name: engine_times(entries, entry["round"], name, entry["stack"]) for name in SUBJECTS}
        known = {name: times.all_cores_ms for name, times in own.items() if times is not None}
        if entry["at_share"] is None or len(known) < len(own):
            return None
        return over_own_times(entry["at_share"]["tenants"], known)

    return value


def rounds(found: Entry) -> int:
    """How many rounds the file has."""
    return max((entry["round"] for entry in found["measurements"]), default=0)


def markdown(found: Entry) -> str:
    """The table as Markdown."""
    names = stacks(found)
    lines = []
    for group in groups(found):
        lines += [[f"**{group.title}**", *[""] * len(names)], *group.lines]
    return markdown_table([HEADER, *names], lines)


def show(found: Entry, console: Console) -> None:
    """Prints the table."""
    grid = Table(title=f"medians of rounds: {rounds(found)}", title_justify="left")
    grid.add_column(HEADER)
    for name in stacks(found):
        grid.add_column(name, justify="right")
    for group in groups(found):
        grid.add_section()
        grid.add_row(group.title, style="bold")
        for line in group.lines:
            grid.add_row(*line)
    console.print(grid)

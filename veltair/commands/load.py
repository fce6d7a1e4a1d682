"""`veltair load`: drive a daemon with the load of a scenario file."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import resource
import signal
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import msgspec
import uvloop
from rich.console import Console

from veltair.ending_signals import handled_in
from veltair.error_line import print_error
from veltair.errors import ConfigError, UserError, VeltairError
from veltair.loadgen import mlperf
from veltair.loadgen.client import InferenceClient
from veltair.loadgen.open_loop import RunCounts, Trace, draw_schedule
from veltair.loadgen.peak import LoadRun, Probe, describe_cliff, find_peak
from veltair.loadgen.report import Report, print_failures, probe_result, progress_bar, results_table
from veltair.loadgen.run_schedule import run_schedule
from veltair.loadgen.scenario import MAX_CONNECTIONS, Scenario, read_scenario
from veltair.loadgen.tenant_results import SendLag, count_outcomes, measure_send_lag, summarize
from veltair.loadgen.tenant_streams import TenantStream, connect, measure_solo_ns, prepare_streams, wait_until_idle
from veltair.machine.environment import describe_environment
from veltair.machine.malloc import reuse_message_memory
from veltair.scenarios import find_scenario
from veltair.terminal import result_console

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a file, or the name of one of ours, such as demo: the daemon's address, the tenants, their rates"
    parser.add_argument("scenario", metavar="SCENARIO", help=what)
    parser.add_argument(
        "--find-peak", action="store_true", help="search the highest load at which every tenant's QoS holds"
    )
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="runs per probe of --find-peak, most must hold (default 3)"
    )
    parser.add_argument(
        "--connections", type=int, metavar="N", help="connections of each tenant, instead of the scenario's (default 4)"
    )
    parser.add_argument(
        "--engine",
        choices=("builtin", "mlperf"),
        default="builtin",
        help="mlperf: the Server scenario of mlcommons-loadgen, for one tenant",
    )
    parser.add_argument("--tenant", metavar="NAME", help="the tenant that --engine mlperf drives")
    parser.add_argument("--mlperf-logs", type=Path, metavar="DIR", help="keep MLPerf's own logs there")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.epilog = """\
examples:
  veltair load demo
  veltair load scenario.toml --find-peak --seeds 5
  veltair load scenario.toml --engine mlperf --tenant resnet50"""


def run(args: argparse.Namespace) -> int:
    """0: measured, whatever the numbers; 1: MLPerf's engine failed; 2: bad input; 128 and its number: a signal."""
    reuse_message_memory()
    command: LoadCommand | None = None
    try:
        _check(args)
        scenario = read_scenario(find_scenario(args.scenario))
        if args.connections is not None:
            load = msgspec.structs.replace(scenario.load, connections=args.connections)
            scenario = msgspec.structs.replace(scenario, load=load)
        _raise_file_limit()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            command = LoadCommand(args, scenario)
            return runner.run(command.run())
    except UserError as error:
        print_error("load", str(error))
        return 2
    except VeltairError as error:
        print_error("load", str(error))
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 128 + (signal.SIGINT if command is None else command.stopped_by)


def _check(args: argparse.Namespace) -> None:
    if args.seeds < 1:
        raise ConfigError(f"--seeds: expected at least 1, got {args.seeds}")
    if args.connections is not None and not 1 <= args.connections <= MAX_CONNECTIONS:
        raise ConfigError(f"--connections: expected 1 to {MAX_CONNECTIONS}, got {args.connections}")
    if args.engine == "mlperf" and args.find_peak:
        raise ConfigError("--find-peak: searched by the builtin engine only, not by --engine mlperf")


def _raise_file_limit() -> None:
    """An overloaded daemon leaves one HTTP connection open per query that waits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class StoppedError(Exception):
    """SIGINT or its like arrived: report what has been measured."""


class LoadCommand:
    """One invocation: its arguments, and what has been measured so far.

    ::

        status = await LoadCommand(args, read_scenario(args.scenario)).run()
    """

    def __init__(self, args: argparse.Namespace, scenario: Scenario) -> None:
        self._args, self._scenario = args, scenario
        self._stop, self.stopped_by = asyncio.Event(), int(signal.SIGINT)
        self._measures = False  # there is something to report
        self._notes = Console(stderr=True, markup=False, highlight=False)
        self._cpu_ns = self._sent = 0  # CPU time and queries of all runs

    async def run(self) -> int:
        """The exit code. The first signal ends a run early; a second one, and one before a run, ends everything."""
        task = asyncio.current_task()
        assert task is not None

        def interrupt(number: int) -> None:
            if self._stop.is_set() or not self._measures:
                task.cancel()
            self._stop.set()
            self.stopped_by = number

        with handled_in(asyncio.get_running_loop(), interrupt):
            report = await (self._run_mlperf() if self._args.engine == "mlperf" else self._run_builtin())
            if report is not None:
                self._print(report)
                print_failures(self._notes, report.tenants)
        return 128 + self.stopped_by if self._stop.is_set() else 0

    async def _run_builtin(self) -> Report:
        load = self._scenario.load
        client = await connect(load)
        try:
            streams = await prepare_streams(client, self._scenario.tenants, load.seed)
            self._measures = True
            if self._args.find_peak:
                return await self._search_peak(client, streams)
            return self._report_run(await self._run_load(client, streams, 1.0, load.seed, "load"), streams)
        finally:
            await client.close()

    async def _run_load(
        self, client: InferenceClient, streams: list[TenantStream], scale: float, seed: int, title: str
    ) -> Trace:
        load = self._scenario.load
        schedule = draw_schedule(streams, scale, seed, load.warmup_s, load.duration_s)
        counts = RunCounts()
        async with progress_bar(self._notes, title, load.warmup_s + load.duration_s, counts):
            trace = await run_schedule(client, streams, schedule, self._stop, counts)
        self._cpu_ns += trace.cpu_ns
        self._sent += counts.sent
        return trace

    def _report_run(self, trace: Trace, streams: list[TenantStream]) -> Report:
        lag = measure_send_lag(trace, streams)
        self._warn(lag)
        rows = [summarize(outcomes) for outcomes in count_outcomes(trace, streams)]
        return Report(rows, None, describe_environment(), lag.max_ns / 1e6, self._cpu_us_per_query)

    async def _search_peak(self, client: InferenceClient, streams: list[TenantStream]) -> Report:
        seed = self._scenario.load.seed
        partial = LoadRun([], SendLag())
        number = itertools.count(1)

        async def measure(scale: float, seed: int) -> LoadRun:
            nonlocal partial
            title = f"run {next(number)}: load x {scale:.3f}, seed {seed}"
            trace = await self._run_load(client, streams, scale, seed, title)
            partial = LoadRun(count_outcomes(trace, streams), measure_send_lag(trace, streams))
            if self._stop.is_set():
                raise StoppedError
            return partial

        async def settle() -> None:
            await self._unless_stopped(wait_until_idle(client, streams, solo_ns))

        solo_ns: list[int] = []
        probes: list[Probe] = []
        try:
            solo_ns = await self._unless_stopped(measure_solo_ns(client, streams))
            async for probe in find_peak(measure, settle, range(seed, seed + self._args.seeds)):
                probes.append(probe)
                self._print_probe(probe)
        except StoppedError:
            self._notes.print("stopped before the search had ended: the peak is the best so far")
        best = max((probe for probe in probes if probe.held), key=lambda probe: probe.scale, default=None)
        missed = min((probe for probe in probes if not probe.held), key=lambda probe: probe.scale, default=None)
        shown = best or missed
        rows, lag = (shown.tenants, shown.lag) if shown else partial  # partial: stopped in the first probe
        # A client that is too slow for the next higher load limits the peak just as a daemon does.
        self._warn(max(lag, missed.lag if missed else lag, key=lambda each: each.late_share))
        nothing_held = None if self._stop.is_set() else 0.0
        return Report(
            [summarize(outcomes) for outcomes in rows],
            round(best.qps, 4) if best else nothing_held,
            describe_environment(),
            lag.max_ns / 1e6,
            self._cpu_us_per_query,
            [probe_result(probe) for probe in probes],
            describe_cliff(best, missed),
        )

    def _print_probe(self, probe: Probe) -> None:
        if not self._args.json:
            rates = ", ".join(f"{t.name} {(t.qos_rate or 0) * 100:.1f} %" for t in probe.tenants)
            verdict = "held" if probe.held else "missed"
            self._notes.print(f"x {probe.scale:.3f}  {probe.qps:.1f} QPS  {verdict}  ({rates})")

    async def _run_mlperf(self) -> Report | None:
        tenants = self._scenario.tenants
        names = [tenant.name for tenant in tenants]
        name = self._args.tenant or (names[0] if len(names) == 1 else None)
        if name not in names:
            raise ConfigError(f"--tenant: expected one of {', '.join(names)}, got {name or 'none'}")
        load = self._scenario.load
        self._measures = True
        with mlperf.log_directory(self._args.mlperf_logs) as logs:
            job = mlperf.Job(load, tenants[names.index(name)], str(logs))
            async with progress_bar(self._notes, "MLPerf Server", load.warmup_s + load.duration_s):
                verdict = await mlperf.run(job, self._stop)
        if verdict is None:
            self._notes.print("stopped: MLPerf gives no result before the end of its test")
            return None
        self._notes.print(f"MLPerf calls the result {verdict.validity}")
        return Report([verdict.result], None, describe_environment(), None, None)

    @property
    def _cpu_us_per_query(self) -> float | None:
        return round(self._cpu_ns / 1e3 / self._sent, 2) if self._sent else None

    async def _unless_stopped(self, work: Awaitable[T]) -> T:
        """Raises StoppedError when a signal comes first."""
        working, stopping = asyncio.ensure_future(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise StoppedError
            return working.result()
        finally:
            working.cancel()
            stopping.cancel()

    def _warn(self, lag: SendLag) -> None:
        if lag.too_large:
            self._notes.print(
                f"the client fell behind: {lag.late_share * 100:.1f} % of the queries were sent late, by up "
                f"to {lag.max_ns / 1e6:.1f} ms; the latencies count that against the server",
                style="yellow",
            )

    def _print(self, report: Report) -> None:
        if self._args.json:
            text = msgspec.json.format(msgspec.json.encode(report), indent=2)
            print(text.decode())
            return
        title = self._scenario.load.target
        if report.peak_qps == 0:
            title += ": no load held every tenant's QoS; the lowest that was tried"
        elif report.peak_qps is not None:
            title += f": peak {report.peak_qps:.1f} QPS with every tenant's QoS held"
        results_table(report.tenants, self._scenario.tenants, title).print(result_console())
        if isinstance(report.unstable, str):
            self._notes.print(report.unstable, style="yellow")
        if report.max_lag_ms is not None:
            cpu = report.client_cpu_us_per_query
            note = "" if cpu is None else f", {cpu:.0f} us of the client's CPU time a query"
            self._notes.print(f"client lag at most {report.max_lag_ms:.2f} ms{note}", style="dim")


def main() -> int:
    parser = argparse.ArgumentParser("veltair load")
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())

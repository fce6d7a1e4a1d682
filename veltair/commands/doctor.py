"""`veltair doctor`: what this machine offers, and what the daemon uses of it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from veltair.access_config import TlsConfig
from veltair.config import read_config
from veltair.error_line import print_error
from veltair.errors import ConfigError
from veltair.machine.cgroups import quota_cpus
from veltair.machine.environment import describe_environment
from veltair.machine.hardware_counters import SOURCE, CountersMissingError, L3Counters
from veltair.machine.isa import CPU_FEATURES, tvm_target
from veltair.machine.memory import huge_page_mode
from veltair.machine.topology import cache_bytes, usable_machine
from veltair.profiles.runtime.huge_pages import has_huge_pages
from veltair.scheduler.interference import ObservedSlowdown
from veltair.server.access.certificates import check_files, valid_times
from veltair.server.ipc.status_records import SandboxStatus
from veltair.server.worker.landlock import RESTRICTIONS
from veltair.server.worker.system_calls import DENIED
from veltair.types import CoreSet

_TOUCHED_BYTES = 64 << 20  # written, so that counters that work must count something


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, nargs="?", metavar="CONFIG.toml", help="look at its certificates too")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    parser.epilog = """\
examples:
  veltair doctor
  veltair doctor serve.toml
  veltair doctor --json"""


def run(args: argparse.Namespace) -> int:
    found = report()
    if args.config is not None:
        try:
            tls = read_config(args.config).server.tls
            found["certificates"] = {} if tls is None else describe_certificates(tls)
        except ConfigError as error:
            print_error("doctor", str(error))
            return 2
    if args.json:
        print(json.dumps(found))
    else:
        show(found, Console())
    return 0


def report() -> dict[str, Any]:
    """Facts of the machine as this process may use it, ready for JSON. Sizes in bytes; no quota is None."""
    usable = usable_machine()
    environment = asdict(describe_environment())
    counters = probe_counters(usable.cores)
    return {
        "cpu": environment["cpu"],
        "instruction_sets": {name: name in environment["isa"] for name in CPU_FEATURES},
        "target": tvm_target(),
        "cores": {
            "usable": list(usable.cores),
            "affinity": psutil.Process().cpu_affinity(),
            "present": psutil.cpu_count(),
            "quota_cpus": quota_cpus(),
        },
        "l3_domains": [list(domain) for domain in usable.domains],
        "cache_bytes": cache_bytes(),
        "memory_bytes": environment["memory_bytes"],
        "huge_pages": huge_page_mode(),
        "huge_pages_of_weights": has_huge_pages(),
        "counters": counters,
        "interference": interference(counters),
        "sandbox": describe_sandbox(probe_sandbox()),
        "kernel": environment["kernel"],
        "python": environment["python"],
        "versions": environment["versions"],
    }


def probe_counters(cores: CoreSet) -> dict[str, Any]:
    """`{"available", "events", "reason"}` of the L3 counters, opened as the engine does, and tried."""
    try:
        counters = L3Counters(cores)
    except CountersMissingError as error:
        return {"available": False, "events": [], "reason": _explain(error)}
    try:
        counters.sample(time.monotonic_ns())
        bytearray(os.urandom(1)) * _TOUCHED_BYTES
        sample = counters.sample(time.monotonic_ns())
    finally:
        counters.close()
    if not sample.l3_accesses:
        return {"available": False, "events": [], "reason": "the events open but stay at zero"}
    return {"available": True, "events": [f"{SOURCE} accesses", f"{SOURCE} misses"], "reason": ""}


def interference(counters: dict[str, Any]) -> dict[str, str]:
    """The source of the interference level in the engine's scheduler, and the reason."""
    cause = (
        "the L3 counters work, but a level needs a model of them: veltair profile --fit-proxy, server.counter_model"
        if counters["available"]
        else "there are no usable hardware counters"
    )
    why = f"{cause}; finished blocks' times against their profile alone need none"
    return {"source": ObservedSlowdown.name, "why": why}


def probe_sandbox() -> SandboxStatus:
    """What confines a worker here: tried, by a process that confines itself as workers do."""
    command = [sys.executable, "-P", "-m", "veltair.server.worker.sandbox"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        return msgspec.json.decode(done.stdout, type=SandboxStatus)
    except msgspec.DecodeError:
        said = ": ".join([f"the trial ended with exit code {done.returncode}", *done.stderr.splitlines()[-1:]])
        return SandboxStatus(gaps=(said,))


def describe_certificates(tls: TlsConfig) -> dict[str, dict[str, Any]]:
    """`{"path", "days_left", "fault"}` of the files by their keys; `fault` is "" for nothing. Raises ConfigError."""
    check_files(tls)
    now_s = time.time()
    return {
        key: {"path": getattr(tls, key), "days_left": valid.days_left(now_s), "fault": valid.fault(now_s)}
        for key, valid in valid_times(tls).items()
    }


def describe_sandbox(status: SandboxStatus) -> dict[str, Any]:
    """The layers that confine a worker, what each denies, and why one does not."""
    rights = [restriction.what for restriction in RESTRICTIONS if restriction.abi <= status.landlock_abi]
    return {
        "landlock_abi": status.landlock_abi,
        "seccomp": status.seccomp,
        "denied": {"landlock": rights, "seccomp": list(DENIED) if status.seccomp else []},
        "gaps": list(status.gaps),
    }


def _explain(error: CountersMissingError) -> str:
    reasons = {
        "ENOENT": "this processor shows no L3 events (usual in a virtual machine)",
        "EACCES": "the kernel keeps them back: needs kernel.perf_event_paranoid <= 0 or CAP_PERFMON",
        "EPERM": "the system forbids perf_event_open (usual in a container): needs CAP_PERFMON",
    }
    text = error.strerror or str(error)
    return next((f"{reason}; {text}" for name, reason in reasons.items() if f"({name})" in text), text)


def show(found: dict[str, Any], console: Console) -> None:
    """Print the report for people."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    cores, quota = found["cores"], found["cores"]["quota_cpus"]
    sets = found["instruction_sets"]
    table.add_row("processor", found["cpu"])
    table.add_row(
        "instructions",
        "  ".join(f"[green]✔ {name}[/]" if has else f"[dim]✘ {name}[/]" for name, has in sets.items()),
    )
    mattr = " ".join(found["target"].get("mattr", ()))
    table.add_row("code for", f"{found['target']['mcpu']} {mattr}".rstrip())
    table.add_row(
        "cores",
        f"{len(cores['usable'])} usable of {cores['present']}: {_ranges(cores['usable'])}"
        f" (affinity {_ranges(cores['affinity'])}; quota {'none' if quota is None else f'{quota:g} CPUs'})",
    )
    domains = " | ".join(map(_ranges, found["l3_domains"]))
    table.add_row("L3 domains", f"{len(found['l3_domains'])}: {domains}")
    caches = ", ".join(f"{level} {_size(size)}" for level, size in found["cache_bytes"].items())
    table.add_row("caches", caches or "not shown by the kernel")
    table.add_row("memory", _size(found["memory_bytes"]))
    table.add_row("huge pages", _HUGE_PAGES.get(found["huge_pages"], found["huge_pages"]))
    if found["huge_pages_of_weights"]:
        table.add_row("", "[green]✔[/] weights of models")
    else:
        table.add_row("", "[yellow]✘ weights of models[/]: random rows of tables take up to three times as long")
    counters = found["counters"]
    table.add_row("counters", ", ".join(counters["events"]) or f"[yellow]none[/]: {counters['reason']}")
    table.add_row("interference", f"[bold]{found['interference']['source']}[/]: {found['interference']['why']}")
    _add_sandbox(table, found["sandbox"])
    for key, file in found.get("certificates", {}).items():
        days = f"[green]✔[/] {file['days_left']:.0f} days left"
        table.add_row(key.replace("_", " "), f"[yellow]✘ {file['fault']}[/]" if file["fault"] else days)
    table.add_row("software", f"Linux {found['kernel']}, Python {found['python']}")
    table.add_row("", ", ".join(f"{name} {version}" for name, version in found["versions"].items()))
    console.print(table, highlight=False)


def _add_sandbox(table: Table, sandbox: dict[str, Any]) -> None:
    """What workers, which run the code of artifacts, are kept from."""
    rows = [f"[yellow]✘[/] {gap}" for gap in sandbox["gaps"]]
    for name, has in (("Landlock", sandbox["landlock_abi"]), ("seccomp", sandbox["seccomp"])):
        if has:
            what = f"{name}, ABI {has}" if name == "Landlock" else name
            rows.append(f"[green]✔ {what}[/] against {'; '.join(sandbox['denied'][name.lower()])}")
    for index, row in enumerate(rows):
        table.add_row("" if index else "sandbox", row)


_HUGE_PAGES = {
    "always": "always",
    "madvise": "madvise (for memory that asks for them)",
    "never": "[yellow]never[/]: random lookups in large tables run slower",
    "absent": "[yellow]absent[/]: the kernel has none",
}


def _ranges(cores: list[int]) -> str:
    """`[0, 1, 2, 5]` -> `0-2,5`."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and parts[-1][-1] == core - 1:
            parts[-1][1:] = [core]
        else:
            parts.append([core])
    return ",".join("-".join(map(str, part)) for part in parts)


def _size(size: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >> shift:
            return f"{size / (1 << shift):.4g} {unit}"
    return f"{size} B"

"""Memory, processor time, threads and open descriptors of one process, for `/metrics` and the benches.

::

    for pid in (os.getpid(), engine_pid, *worker_pids):
        usage = read_process_usage(pid)
        if usage is not None:  # the process lives
            gauge.add_metric([str(pid)], usage.resident_bytes)

One reading takes about 0.1 ms: at every scrape, not at every query.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What one process uses now, without its children.

    >>> usage = read_process_usage()
    >>> usage.resident_bytes > 1 << 20, usage.threads >= 1
    (True, True)
    """

    resident_bytes: int  # pages in memory; those that processes share count in each of them
    cpu_seconds: float  # user and system time since the process started
    threads: int
    open_descriptors: int  # files, sockets, pipes


def read_process_usage(pid: int | None = None) -> ProcessUsage | None:
    """Usage of the process `pid`, by default of this one; None when it has ended or belongs to another user."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return ProcessUsage(
                resident_bytes=process.memory_info().rss,
                cpu_seconds=times.user + times.system,
                threads=process.num_threads(),
                open_descriptors=process.num_fds(),
            )
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None

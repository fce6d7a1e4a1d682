"""`Standstill`: for how long a process has done nothing at all.

One that was asked for something and stands still hangs, or somebody has stopped it (SIGSTOP). How much it has to do, or
how few cores it gets for that, makes no difference: it runs, or it waits for a core or a disk.
"""

from __future__ import annotations

import os
from pathlib import Path

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_AT_WORK = ("R", "D")  # runs or waits for a core; waits for a disk


class Standstill:
    """Watches one process, now and then::

    watch = Standstill(pid)
    if watch.lasted_ns(time.monotonic_ns()) > 5_000_000_000:
        …  # it hangs
    """

    def __init__(self, pid: int) -> None:
        self._threads = Path(f"/proc/{pid}/task")
        self._cpu_ticks = self._first_ticks = -1
        self._since_ns = 0

    def lasted_ns(self, now_ns: int) -> int:
        """The time since the look from which on no thread of it has been seen at work, nor has used a core; 0 at the
        first look, and where the process has ended.
        """
        at_work, cpu_ticks = self._look()
        if at_work or cpu_ticks != self._cpu_ticks:
            self._cpu_ticks, self._since_ns = cpu_ticks, now_ns
            self._first_ticks = cpu_ticks if self._first_ticks < 0 else self._first_ticks
        return now_ns - self._since_ns

    def hangs(self, now_ns: int, most_ns: int, cores: int = 1) -> bool:
        """Whether it has stood still for longer than `most_ns`, or used these cores for longer since the first look,
        though what it was asked for takes far less. A process that waits for a core does neither."""
        stood_ns = self.lasted_ns(now_ns)
        return max(stood_ns, (self._cpu_ticks - self._first_ticks) * TICK_NS // cores) > most_ns

    def _look(self) -> tuple[bool, int]:
        """Whether a thread is at work, and the time that all of them have used."""
        at_work, cpu_ticks = False, 0
        try:
            for thread in self._threads.iterdir():
                fields = _stat(thread)
                at_work |= fields[0] in _AT_WORK
                cpu_ticks += int(fields[11]) + int(fields[12])  # utime and stime of proc(5)
        except (FileNotFoundError, ProcessLookupError):  # a thread or the process has just ended
            return True, cpu_ticks
        return at_work, cpu_ticks


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped the process (SIGSTOP); False where it has ended.

    >>> import os
    >>> is_stopped(os.getpid())
    False
    """
    try:
        return _stat(Path(f"/proc/{pid}"))[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _stat(of: Path) -> list[str]:
    """The fields of proc(5)'s stat behind the name, the state first."""
    return (of / "stat").read_text().rpartition(")")[2].split()

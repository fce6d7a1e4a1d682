"""How the demo ends where a person watches."""

from __future__ import annotations

import subprocess
import sys

from veltair.commands.demo import stay


def test_it_stays_until_the_time_is_over_or_the_daemon_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as daemon:
        stay(daemon, 0.01)
        assert daemon.poll() is None
        assert daemon.stdin is not None
        daemon.stdin.write(b"\n")
        daemon.stdin.close()
        stay(daemon, 60)
        assert daemon.returncode == 0

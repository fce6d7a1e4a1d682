"""What processes use, read by psutil."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from veltair.machine.process_usage import read_process_usage


def test_this_process(tmp_path: Path) -> None:
    before = read_process_usage()
    assert before is not None and before.cpu_seconds > 0 and before.resident_bytes > 1 << 20
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with (tmp_path / "file").open("w"):
            during = read_process_usage()
    finally:
        stop.set()
        thread.join()
    assert during is not None
    assert during.threads == before.threads + 1 and during.open_descriptors == before.open_descriptors + 1


def test_a_process_that_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    usage = read_process_usage(process.pid)
    assert usage is not None and usage.threads == 1
    process.communicate(b"\n")
    assert read_process_usage(process.pid) is None

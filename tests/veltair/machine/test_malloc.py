"""The C library keeps the memory of messages, when it is told to."""

import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource, sys, threading
from veltair.machine.malloc import reuse_message_memory

if sys.argv[1] == "reuse":
    reuse_message_memory()

def take_messages():
    for _ in range(100):
        in_flight = [bytes([i]) * 600_000 for i in range(4)]
        in_flight.clear()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

take_messages()
before = faults()
take_messages()
other = threading.Thread(target=take_messages)
other.start()
other.join()
print(faults() - before)
"""


@pytest.mark.parametrize(("what", "faults"), [("reuse", range(2000)), ("leave", range(2000, 100_000))])
def test_messages_take_pages_from_the_system_once(what: str, faults: range) -> None:
    done = subprocess.run([sys.executable, "-c", COUNT_FAULTS, what], check=True, stdout=subprocess.PIPE, text=True)
    assert int(done.stdout) in faults

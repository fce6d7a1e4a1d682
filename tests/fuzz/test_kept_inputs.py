"""What the fuzzers found and kept is tried again and damaged: C under gcc's sanitizers, and the decoders."""

from __future__ import annotations

import random
import struct
import subprocess
from pathlib import Path

import pytest
from fuzz_driver import compile_driver

from bench.fuzz.__main__ import TARGETS
from bench.fuzz.corpus import KEPT, read_inputs
from bench.fuzz.decoders import examine
from bench.paths import ROOT

# Some 3 s each: `python -m bench.fuzz` tries what these do not.
ROUNDS = {"http2": 12, "http1": 40, "grpc": 120, "decoders": 10}
MOST_BYTES = 1 << 20  # of all kept inputs


def record(target: str, data: bytes) -> bytes:
    """An input as the driver's own main() reads it; whose end of a session it is stands apart."""
    if target == "http2":
        return struct.pack("<BI", data[0], len(data) - 1) + data[1:]
    data = data[1:] if target == "http1" else data
    return struct.pack("<I", len(data)) + data


@pytest.mark.parametrize("target", [name for name, target in TARGETS.items() if target])
def test_kept_inputs_of_the_targets_in_c(target: str, tmp_path: Path) -> None:
    driver = TARGETS[target]
    inputs = [data for data in read_inputs(target) if data]
    assert driver is not None and len(inputs) > 20
    program = compile_driver(ROOT / driver.driver, [ROOT / folder for folder in driver.folders], tmp_path)
    corpus = tmp_path / "inputs"
    corpus.write_bytes(b"".join(record(target, data) for data in inputs))
    found = subprocess.run([program, corpus, str(ROUNDS[target])], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-5000:]


def test_kept_inputs_of_the_decoders() -> None:
    inputs, chance = read_inputs("decoders"), random.Random(1)
    valid = sum(examine(data) for data in inputs)
    assert 10 < valid < len(inputs)
    for data in inputs * ROUNDS["decoders"]:
        damaged = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        examine(bytes(damaged))


def test_kept_inputs_are_few() -> None:
    assert sum(file.stat().st_size for file in KEPT.glob("*.corpus")) < MOST_BYTES

"""The readers of HTTP/1.1 in C under the address and undefined-behaviour sanitizers, on damaged messages."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from native_http import GET, infer
from odd_http import KNOWN, LINES, OTHERS

import veltair.grpc.native
import veltair.server.wire

FLAGS = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
ROUNDS = 200
RESPONSES = [
    b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
    b"HTTP/1.0 204 \r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nTransfer-Encoding: chunked\r\nUpgrade: x\r\n\r\n",
]


def compile_fuzzer(folder: Path) -> Path:
    """Build the driver; skips without a compiler that has the sanitizers."""
    probe, program = folder / "probe.c", folder / "http1_fuzz"
    probe.write_text("int main(void) { return 0; }\n")
    try:
        found = subprocess.run(["gcc", *FLAGS, str(probe), "-o", str(folder / "probe")], capture_output=True)
    except FileNotFoundError:
        pytest.skip("NOT TESTED: there is no gcc")
    if found.returncode != 0:
        pytest.skip(f"NOT TESTED: gcc has no sanitizers: {found.stderr.decode()}")
    folders = [Path(package.__path__[0]) for package in (veltair.server.wire, veltair.grpc.native)]
    sources = [Path(__file__).with_name("http1_fuzz.c"), *(file for f in folders for file in sorted(f.glob("*.c")))]
    command = ["gcc", *FLAGS, "-fno-sanitize-recover=all", "-pthread", f"-I{folders[0]}", *map(str, sources)]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def test_damaged_messages(tmp_path: Path) -> None:
    program, corpus = compile_fuzzer(tmp_path), tmp_path / "messages"
    messages = [*KNOWN, *OTHERS, *RESPONSES]
    messages += [infer(request_id="a", headers=line + "\r\n") for line in LINES] + [GET[:-2] + b"A: " + b"b" * 5000]
    corpus.write_bytes(b"".join(struct.pack("=I", len(message)) + message for message in messages))
    found = subprocess.run([program, corpus, str(ROUNDS)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-5000:]
    assert int(found.stdout) > ROUNDS * len(messages) // 4  # many are still messages

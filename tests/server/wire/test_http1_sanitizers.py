"""The readers of HTTP/1.1 in C under the address and undefined-behaviour sanitizers, on damaged messages."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from fuzz_driver import compile_driver
from native_http import GET, infer
from odd_http import KNOWN, LINES, OTHERS

import veltair.grpc.native
import veltair.server.wire

FOLDERS = [Path(package.__path__[0]) for package in (veltair.server.wire, veltair.grpc.native)]
ROUNDS = 80
RESPONSES = [
    b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
    b"HTTP/1.0 204 \r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nTransfer-Encoding: chunked\r\nUpgrade: x\r\n\r\n",
]


def test_damaged_messages(tmp_path: Path) -> None:
    program = compile_driver(Path(__file__).with_name("http1_fuzz.c"), FOLDERS, tmp_path)
    corpus = tmp_path / "messages"
    messages = [*KNOWN, *OTHERS, *RESPONSES]
    messages += [infer(request_id="a", headers=line + "\r\n") for line in LINES] + [GET[:-2] + b"A: " + b"b" * 5000]
    context = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
    messages += [infer(request_id="a", headers=context), infer(headers=context * 2)]
    messages += [infer(headers=context + f"Tracestate: a={'x' * size}\r\n" * 3) for size in (1, 168, 250, 600)]
    corpus.write_bytes(b"".join(struct.pack("=I", len(message)) + message for message in messages))
    found = subprocess.run([program, corpus, str(ROUNDS)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-5000:]
    assert int(found.stdout) > ROUNDS * len(messages) // 4  # many are still messages

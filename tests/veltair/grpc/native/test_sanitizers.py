"""The C code under the address and undefined-behaviour sanitizers, on damaged sessions."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from fuzz_driver import compile_driver
from http2_ends import PythonEnd
from http2_sessions import MAX_MESSAGE_BYTES, Session, react

import veltair.grpc.native

SOURCES = Path(veltair.grpc.native.__file__).parent
SESSIONS, ROUNDS = 100, 20


class RecordingEnd(PythonEnd):
    """Keeps what is fed to it, and takes all of it."""

    def feed(self, data: bytes, most: int = 1 << 30) -> None:
        self.fed = getattr(self, "fed", b"") + data
        super().feed(data, most)


def test_damaged_sessions(tmp_path: Path) -> None:
    program = compile_driver(Path(__file__).with_name("session_fuzz.c"), [SOURCES], tmp_path)
    corpus = tmp_path / "sessions"
    with corpus.open("wb") as file:
        for seed in range(SESSIONS):
            session = Session(seed)
            end = RecordingEnd(session.server, react, MAX_MESSAGE_BYTES)
            session.play(end)
            file.write(struct.pack("<BI", session.server, len(end.fed)) + end.fed)
    found = subprocess.run([program, corpus, str(ROUNDS)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-5000:]
    messages = int(found.stdout.split()[0])
    assert messages > SESSIONS * ROUNDS // 4  # most sessions get somewhere

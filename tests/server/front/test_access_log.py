"""The lines of the access log and of bursts of refusals, without a daemon."""

import fcntl
import json
import logging
import os
import threading
from typing import Any

import numpy as np
import pytest
from in_process_front import MS, Front, request, run

from veltair.errors import OverloadedError, RefusalReason
from veltair.server.front.logs.access_log import AccessLog
from veltair.server.front.logs.refusal_bursts import RefusalBursts
from veltair.server.front.request_counts import OUTCOMES
from veltair.server.ipc.logs import line_writer
from veltair.server.ipc.logs.line_writer import LineWriter
from veltair.server.wire import native


class Pipe:
    """A pipe, and what has come through it as lines of JSON."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()

    def lines(self) -> list[dict[str, Any]]:
        os.close(self.write)
        with os.fdopen(self.read, "rb") as end:
            return [json.loads(line) for line in end]


def tell_lost(lines: int) -> bytes:
    return b'{"lost": %d}\n' % lines


def ended(**how: Any) -> np.ndarray[Any, Any]:
    record = np.zeros(1, native.ENDED)
    for key, value in how.items():
        record[key] = value
    return record


def ids(text: bytes) -> np.ndarray[Any, Any]:
    return np.array([(len(text), text)], native.ENDED_ID)


def test_lines_of_requests_that_io_threads_have_answered() -> None:
    pipe = Pipe()
    with LineWriter(pipe.write, tell_lost) as writer:
        log = AccessLog(writer, ["a", None].__getitem__, lambda tenant: f"model of {tenant}")
        stages = (1 * MS, 0, 2 * MS, 4 * MS, 0, 0, 1 * MS)
        log.add_ended(ended(duration_ns=8 * MS, stage_ns=stages), ids(b"one"))
        deadline = {"outcome": OUTCOMES.index("deadline"), "reason": RefusalReason.DEADLINE.number}
        log.add_ended(ended(tenant=1, **deadline), ids(b"\xff" * 127))
        log.add_ended(ended(outcome=OUTCOMES.index("cancelled")), ids(b""))
    one, two, three = pipe.lines()
    assert one.pop("time").endswith("Z")
    assert one == {
        "level": "INFO",
        "logger": "veltair.access",
        "event": "request",
        "request_id": "one",
        "tenant": "a",
        "model": "model of a",
        "outcome": "ok",
        "status": 200,
        "duration_ms": 8.0,
        "queue_ms": 3.0,
        "execute_ms": 4.0,
    }
    assert (two["tenant"], two["reason"], two["status"]) == (None, "deadline", 504)
    assert two["request_id"] == "\N{REPLACEMENT CHARACTER}" * 127
    assert (three["outcome"], three["status"]) == ("cancelled", 499) and "reason" not in three


def test_a_request_of_python_is_logged_once_with_its_end() -> None:
    pipe = Pipe()

    async def test(front: Front) -> None:
        with LineWriter(pipe.write, tell_lost) as writer:
            log = AccessLog(writer, lambda number: None, lambda tenant: front.metrics.tenants[tenant].model)
            front.service.access_log = log
            await front.good()
            front.engine.failure = OverloadedError(RefusalReason.SLOTS)
            await front.http.post("/v2/models/sums/infer", json=request() | {"id": "x\ny" + "z" * 500})

    run(test)
    good, refused = pipe.lines()
    assert (good["outcome"], good["status"], good["execute_ms"]) == ("ok", 200, 2.0)
    assert (refused["outcome"], refused["status"], refused["reason"]) == ("overloaded", 503, "slots")
    assert refused["request_id"] == "x\ny" + "z" * 124


def test_a_reader_that_is_slow_loses_lines_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "MOST_PENDING", 2)
    pipe, go_on, begun = Pipe(), threading.Event(), threading.Event()

    def first() -> list[bytes]:
        begun.set()
        go_on.wait()
        return [b"1\n"]

    with LineWriter(pipe.write, tell_lost) as writer:
        writer.add(1, first)
        begun.wait()
        for number in (b"2\n", b"3\n", b"4\n"):
            writer.add(1, lambda number=number: [number])
        go_on.set()
    assert pipe.lines() == [1, {"lost": 2}, 2]


def test_a_full_disk_loses_lines_and_no_more() -> None:
    """A line that is there in part is ended before the next one, so that only it is no JSON."""
    pipe = Pipe()
    os.set_blocking(pipe.write, False)  # so a write beyond the pipe's size is cut, as one to a full disk is
    room = fcntl.fcntl(pipe.write, fcntl.F_SETPIPE_SZ, 4096)

    def second() -> list[bytes]:
        assert os.read(pipe.read, room) == b"x" * room
        return [b"2\n"]

    with LineWriter(pipe.write, tell_lost) as writer:
        writer.add(1, lambda: [b"x" * room + b"y\n"])
        writer.add(1, second)
        writer.add(1, lambda: [b"3\n"])
    os.close(pipe.write)
    with os.fdopen(pipe.read, "rb") as end:
        assert end.read() == b'\n{"lost": 1}\n2\n3\n'


def test_a_burst_of_refusals_is_one_line_a_tenant(caplog: pytest.LogCaptureFixture) -> None:
    front = Front()
    bursts = RefusalBursts(front.metrics)
    with caplog.at_level(logging.WARNING):
        bursts.look()
        assert caplog.records == []
        for reason in (RefusalReason.SLOTS, RefusalReason.OVERLOAD, RefusalReason.OVERLOAD):
            front.metrics.tenants["sums"].count_error(OverloadedError(reason), MS)
        front.metrics.refused_early[RefusalReason.MEMORY] += 1
        bursts.look()
        bursts.look()
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "3 requests of sums were refused within 10 s: overload 2, slots 1",
        "1 requests of no known tenant were refused within 10 s: memory 1",
    ]
    assert vars(caplog.records[0])["fields"]["reasons"] == {"overload": 2, "slots": 1}

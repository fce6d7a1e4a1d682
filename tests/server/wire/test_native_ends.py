"""How requests with a plan end: refused, failed, late, cancelled, without their engine; and how they are counted."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from native_front import SLOTS, Answer, Fronts, ask, encoded, run
from scripted_engine import EXECUTE_NS, GAP_NS, QUEUE_NS, REPORT_NS, SUMS

from veltair.errors import FailureReason, RefusalReason, WorkerDiedError
from veltair.server.ipc.stages import EXECUTE, READ, REPORT
from veltair.server.protocol.failed_queries import MOST_ID
from veltair.server.wire.ended_requests import TAKEN_AT_ONCE

Status = grpc.StatusCode
DATA = encoded()
LONG = "late: 99 % of 10 µs\n" + 21 * "Größe "  # all that a record has room for


def test_a_call_with_too_much_metadata_ends_alone() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        asked = asyncio.create_task(ask(channel, DATA))
        held = await fronts.scripted.next()
        assert await ask(channel, DATA, metadata=[("long", "a" * 20_000)]) == Answer(
            Status.RESOURCE_EXHAUSTED, RefusalReason.HEAD.text
        )
        fronts.scripted.end(held)
        assert (await asked).code is Status.OK

    run(body, automatic=False)


@pytest.mark.parametrize(
    ("request_id", "logged"),
    [
        ("", "''"),
        ("order 7", "'order 7'"),
        ("a\nERROR forged\x1b[31m", r"'a\nERROR forged\x1b[31m'"),
        ("x" * 5000, f"'{'x' * MOST_ID}'…"),
    ],
    ids=["none", "plain", "forged", "long"],
)
@pytest.mark.parametrize("planned", [True, False], ids=["plan", "python"])
def test_a_failure_is_logged_with_the_id_of_its_request(
    request_id: str, logged: str, planned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(fronts: Fronts) -> None:
        channel, numbers = fronts.channel(), []
        if planned:
            for each in ("any", ""):  # a head that has an id, and one that has none
                await fronts.learn(channel, encoded(id=each))
            asked = asyncio.create_task(ask(channel, encoded(id=request_id)))
            held = await fronts.scripted.next()
            fronts.scripted.end(held, "worker_died", "the worker\ndied")
            numbers.append(held.message.query)
        else:
            error = WorkerDiedError("the worker\ndied")
            error.query = 77
            fronts.engine.failure = error
            asked = asyncio.create_task(ask(channel, encoded(id=request_id)))
            numbers.append(77)
        assert (await asked).code is Status.INTERNAL
        expected = f"query {numbers[0]} of sums failed: the worker\\ndied; request id {logged}"
        while not caplog.records:  # an I/O thread answers first
            await asyncio.sleep(0)
        assert [record.message for record in caplog.records] == [expected]

    run(body, automatic=False)


def test_no_slot_is_free() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        asked = [asyncio.create_task(ask(channel, DATA)) for _ in range(SLOTS)]
        held = [await fronts.scripted.next() for _ in asked]
        assert sorted(query.message.slot for query in held) == list(range(SLOTS))
        assert await ask(channel, DATA) == Answer(Status.RESOURCE_EXHAUSTED, RefusalReason.SLOTS.text)
        fronts.scripted.end(held.pop())
        again = asyncio.create_task(ask(channel, DATA))
        held.append(await fronts.scripted.next())
        for query in held:
            fronts.scripted.end(query)
        assert {answer.code for answer in await asyncio.gather(*asked, again)} == {Status.OK}
        assert fronts.scripted.link.taken == 0
        assert fronts.outcomes() == {"ok": SLOTS + 2, "overloaded": 1}

    run(body, automatic=False)


@pytest.mark.parametrize(
    ("outcome", "reason", "expected", "counted"),
    [
        (
            "rejected",
            RefusalReason.OVERLOAD,
            Answer(Status.RESOURCE_EXHAUSTED, RefusalReason.OVERLOAD.text),
            "overloaded",
        ),
        ("failed", LONG, Answer(Status.INTERNAL, LONG), "failed"),
        ("failed", "", Answer(Status.INTERNAL, ""), "failed"),
        (
            "failed",
            'kernel "k" \\ ~ failed: 100 %41',
            Answer(Status.INTERNAL, 'kernel "k" \\ ~ failed: 100 %41'),
            "failed",
        ),
        ("worker_died", "worker 3 died", Answer(Status.INTERNAL, "worker 3 died"), "failed"),
        ("cancelled", "", Answer(Status.DEADLINE_EXCEEDED, RefusalReason.DEADLINE.text), "deadline"),
    ],
)
def test_outcomes_of_the_engine(outcome: Any, reason: str, expected: Answer, counted: str) -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        asked = asyncio.create_task(ask(channel, DATA))
        fronts.scripted.end(await fronts.scripted.next(), outcome, reason)
        assert await asked == expected
        assert fronts.scripted.link.taken == 0
        assert fronts.outcomes() == {"ok": 1, counted: 1}
        asked = asyncio.create_task(ask(channel, DATA))
        fronts.scripted.end(await fronts.scripted.next())
        assert (await asked).sums() == ([10.0], [104])

    run(body, automatic=False)


def test_a_cancelled_call_keeps_its_slot_until_the_engine_ends_it() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        await fronts.learn(channel, encoded(model="two"))
        engine = fronts.scripted
        held = []
        for leave in ("cancel", "disconnect", "deadline"):
            other = fronts.channel()
            call = other.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
                DATA, timeout=0.05 if leave == "deadline" else None
            )
            held.append(await engine.next())
            if leave == "cancel":
                call.cancel()
            elif leave == "disconnect":
                await other.close()
            await engine.until(lambda: len(engine.aborted) == len(held))
        assert engine.aborted == [query.message.query for query in held]
        assert engine.link.taken == len(held)
        for query, outcome in zip(held, ("cancelled", "done", "failed"), strict=True):
            engine.end(query, outcome)
        await fronts.settle()
        assert engine.link.taken == 0
        counts = fronts.outcomes()
        assert counts.pop("ok") == 1
        assert set(counts) <= {"cancelled", "deadline"} and counts["cancelled"] >= 2 and sum(counts.values()) == 3

    run(body, automatic=False)


def test_the_engine_leaves_and_another_comes() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        first = fronts.scripted
        asked = [asyncio.create_task(ask(channel, DATA)) for _ in range(3)]
        for _ in asked:
            await first.next()
        why = "the engine process ended (code -9) and took the query along: 100 %"
        first.leave(why)
        assert await asyncio.gather(*asked) == [Answer(Status.INTERNAL, why)] * 3
        assert fronts.outcomes() == {"ok": 1, "failed": 3}
        fronts.engine.ready, asked_python = False, fronts.asked_python
        assert (await ask(channel, DATA)).code is Status.OK and fronts.asked_python == asked_python + 1
        second = fronts.link(automatic=False)
        again = asyncio.create_task(ask(channel, encoded([[1, 1, 1, 1]])))
        held = await second.next()
        assert second.inputs(held)[0] == [[1, 1, 1, 1]] and held.message.slot == 0
        second.end(held)
        assert (await again).sums() == ([4.0], [104])

    run(body, automatic=False)


def test_what_a_dead_engine_says_reaches_nobody() -> None:
    async def body(fronts: Fronts) -> None:
        channel, first = fronts.channel(), fronts.scripted
        await fronts.learn(channel, DATA)
        other = asyncio.create_task(ask(channel, DATA))
        held = await first.next()
        first.leave("it ended")
        assert (await other).code is Status.INTERNAL
        second = fronts.link(automatic=False)
        again = asyncio.create_task(ask(channel, DATA))
        new = await second.next()
        stale = held._replace(message=new.message)
        second.end(held, "failed", "of another engine's query")  # an unknown number
        second.end(stale._replace(lane=new.lane))
        assert (await again).sums() == ([10.0], [104])

    run(body, automatic=False)


def test_while_closed_to_the_threads_python_answers() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        fronts.threads.set_open(False)
        await fronts.learn(channel, DATA)
        fronts.threads.set_open(True)
        assert (await ask(channel, DATA)).code is Status.OK and fronts.scripted.count == 1

    run(body)


@pytest.mark.parametrize("teller", ["engine", "worker"])
def test_counts_are_what_happened(teller: Any) -> None:
    async def body(fronts: Fronts) -> None:
        channel, engine = fronts.channel(), fronts.scripted
        engine.teller = teller
        found: list[Any] = []
        fronts.threads._counted = found.append
        for batch in (1, 3):
            await fronts.learn(channel, encoded([[1, 2, 3, 4]] * batch, [[1, 2]] * batch))
        for batch, outcome in ((1, "done"), (3, "rejected"), (3, "done"), (1, "failed"), (1, "worker_died")):
            asked = asyncio.create_task(ask(channel, encoded([[1, 2, 3, 4]] * batch, [[1, 2]] * batch)))
            reason = RefusalReason.OVERLOAD if outcome == "rejected" else ""
            engine.end(await engine.next(), outcome, reason)  # type: ignore[arg-type]
            await asked
        fronts.threads.drain_counts()
        (rows,) = found
        assert rows["batch"].tolist() == [1, 3, 3, 1, 1]
        assert rows["outcome"].tolist() == [0, 2, 0, 5, 5]  # ok, overloaded, failed
        failures = FailureReason.KERNEL.number, FailureReason.WORKER_DIED.number
        assert rows["reason"].tolist() == [0, RefusalReason.OVERLOAD.number, 0, *failures]
        assert set(rows["tenant"].tolist()) == {SUMS}
        answered = rows["outcome"] == 0
        stage_ns = rows["stage_ns"][answered]  # (queries, stages)
        assert (stage_ns[:, :EXECUTE].sum(axis=1) == QUEUE_NS).all() and (stage_ns[:, READ] > 0).all()
        assert (stage_ns[:, EXECUTE:REPORT] == (EXECUTE_NS, GAP_NS)).all()
        if teller == "engine":
            assert (stage_ns[:, REPORT] == REPORT_NS).all()
        else:  # by its clock
            assert (stage_ns[:, REPORT] > 0).all()
        assert (stage_ns.sum(axis=1) == rows["duration_ns"][answered]).all()
        assert not rows["stage_ns"][~answered].any()
        assert (rows["socket"] == -1).all()  # each answer was sent before the thread took the next request
        assert (rows["duration_ns"] > 0).all() and (rows["end_ns"][1:] > rows["end_ns"][:-1]).all()
        fronts.threads.drain_counts()
        assert len(found) == 1 and TAKEN_AT_ONCE > 5

    run(body, automatic=False)

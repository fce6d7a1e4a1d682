"""MLPerf's own load generator (mlcommons-loadgen, Server scenario) against the daemon, for one tenant.

It allows one test per process and waits without limit for a response that does not come. So it runs in a child process
that completes every query whatever happened to it, and that is killed when it takes too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from veltair.errors import ConfigError, UserError, VeltairError
from veltair.loadgen.client import InferenceClient, Outcome
from veltair.loadgen.scenario import LoadSettings, TenantLoad
from veltair.loadgen.tenant_results import TenantResult
from veltair.loadgen.tenant_streams import TenantStream, connect, prepare_streams
from veltair.machine.scratch import ScratchFolder

GRACE_S = 60.0  # to start, connect, draw payloads and write the logs
OVER_NS = 2_000_000  # a failed query is completed this long after its target


class Job(msgspec.Struct, frozen=True):
    """One test, as the child process gets it.

    >>> job = Job(LoadSettings("grpc://127.0.0.1:8001"), TenantLoad("resnet50", qps=40, target_ms=25), logs="/tmp/logs")
    >>> job.tenant.name
    'resnet50'
    """

    load: LoadSettings
    tenant: TenantLoad
    logs: str  # directory for mlperf_log_*


class Verdict(msgspec.Struct, frozen=True):
    """The result of one test.

    >>> result = TenantResult("m", 40.0, 39.5, 8.0, 14.0, 19.0, target_ms=25.0, qos_rate=0.99, refused=0, errors=0)
    >>> Verdict(result, "VALID").validity
    'VALID'
    """

    result: TenantResult
    validity: str  # MLPerf's word: VALID or INVALID


class _Reply(msgspec.Struct, frozen=True):
    """The child's answer: one of the two."""

    verdict: Verdict | None = None
    error: str = ""


async def run(job: Job, stop: asyncio.Event) -> Verdict | None:
    """Run one test in a child process; None when `stop` was set before its end (MLPerf has no partial results).

    Raises ConfigError when the extra is not installed, VeltairError when the child dies or hangs.
    """
    if importlib.util.find_spec("mlperf_loadgen") is None:
        raise ConfigError("--engine mlperf: mlcommons-loadgen is not installed: pip install veltair[mlperf]")
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "veltair.loadgen.mlperf"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    load = job.load
    # The schedule is drawn until it covers the duration: a few gaps more than that.
    limit_s = GRACE_S + load.warmup_s + 1.5 * load.duration_s + 50 / job.tenant.qps + 3 * load.timeout_s
    talking = asyncio.create_task(child.communicate(msgspec.json.encode(job)))
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait({talking, stopping}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if talking in done:
            output, _ = talking.result()
            return _verdict(output, child.returncode)
        if stopping in done:
            return None
        raise VeltairError(f"mlcommons-loadgen did not end within {limit_s:.0f} s and was stopped")
    finally:
        stopping.cancel()
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await asyncio.wait({talking})


def _verdict(output: bytes, status: int | None) -> Verdict:
    try:
        reply = msgspec.json.decode(output, type=_Reply)
    except msgspec.DecodeError:
        raise VeltairError(f"mlcommons-loadgen ended with status {status} and no result") from None
    if reply.verdict is None:
        raise UserError(reply.error)
    return reply.verdict


def read_detail(text: str) -> dict[str, Any]:
    """The last value of each key of an `mlperf_log_detail.txt`. Raises VeltairError for another text."""
    values: dict[str, Any] = {}
    for line in text.splitlines():
        _, mark, document = line.partition(":::MLLOG ")
        if mark:
            try:
                entry = json.loads(document)
                values[entry["key"]] = entry["value"]
            except (ValueError, KeyError, TypeError):
                raise VeltairError(f"mlperf_log_detail.txt: not an MLLOG line: {line[:200]}") from None
    return values


def tenant_result(detail: dict[str, Any], tenant: TenantLoad, refused: int, errors: int) -> TenantResult:
    """MLPerf's numbers as a row of the report. Its percentiles are over all queries; failed ones exceed the latency."""

    def milliseconds(percentile: str) -> float:
        return round(float(detail[f"result_{percentile}_percentile_latency_ns"]) / 1e6, 4)

    try:
        queries = int(detail["result_query_count"])
        return TenantResult(
            tenant.name,
            offered_qps=float(detail["result_scheduled_samples_per_sec"]),
            # It counts the failed ones as completed.
            qps=float(detail["result_completed_samples_per_sec"]) * (1 - (refused + errors) / queries),
            p50_ms=milliseconds("50.00"),
            p95_ms=milliseconds("95.00"),
            p99_ms=milliseconds("99.00"),
            target_ms=tenant.target_ms,
            qos_rate=1 - int(detail["result_overlatency_query_count"]) / queries,
            refused=refused,
            errors=errors,
        )
    except (KeyError, ZeroDivisionError) as error:
        raise VeltairError(f"mlperf_log_detail.txt holds no result ({error})") from None


class _SystemUnderTest:
    """Sends the queries that MLPerf issues, on an event loop in a thread of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: InferenceClient, stream: TenantStream) -> None:
        self._loop, self._client, self._stream = loop, client, stream
        self._pending: set[asyncio.Task[None]] = set()
        self.failures: Counter[str] = Counter()
        self.counts = dict.fromkeys(Outcome, 0)

    def issue(self, samples: list[Any]) -> None:
        """Called by MLPerf's thread: only enqueues, since it would delay the schedule."""
        for sample in samples:
            self._loop.call_soon_threadsafe(self._start, sample.id, sample.index, time.monotonic_ns())

    def _start(self, query: int, index: int, issued_ns: int) -> None:
        task = self._loop.create_task(self._query(query, index, issued_ns))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _query(self, query: int, index: int, issued_ns: int) -> None:
        import mlperf_loadgen

        try:
            response = await self._client.send(self._stream.requests[index])
            self.counts[response.outcome] += 1
            if response.outcome is not Outcome.OK:
                self.failures[response.detail] += 1
                # MLPerf knows no failures; completed at once, a refusal would be its fastest answer.
                over_ns = issued_ns + self._stream.target_ns + OVER_NS - time.monotonic_ns()
                await asyncio.sleep(max(0.0, over_ns / 1e9))
        finally:
            mlperf_loadgen.QuerySamplesComplete([mlperf_loadgen.QuerySampleResponse(query, 0, 0)])


def _test(job: Job, loop: asyncio.AbstractEventLoop) -> Verdict:
    import mlperf_loadgen as mlperf

    async def ready() -> tuple[InferenceClient, TenantStream]:
        client = await connect(job.load)
        (stream,) = await prepare_streams(client, [job.tenant], job.load.seed)
        warm = time.monotonic() + job.load.warmup_s
        while time.monotonic() < warm:
            for request in stream.requests:
                await client.send(request)
        return client, stream

    client, stream = asyncio.run_coroutine_threadsafe(ready(), loop).result()
    settings = mlperf.TestSettings()
    settings.scenario = mlperf.TestScenario.Server
    settings.mode = mlperf.TestMode.PerformanceOnly
    settings.server_target_qps = job.tenant.qps
    settings.server_target_latency_ns = stream.target_ns
    settings.server_target_latency_percentile = job.tenant.percentile
    settings.min_duration_ms = round(job.load.duration_s * 1000)  # 10 minutes by default
    settings.min_query_count = 1
    settings.schedule_rng_seed = settings.sample_index_rng_seed = settings.qsl_rng_seed = job.load.seed
    output = mlperf.LogOutputSettings()
    output.outdir, output.copy_summary_to_stdout = job.logs, False
    log = mlperf.LogSettings()
    log.log_output, log.enable_trace = output, False
    under_test = _SystemUnderTest(loop, client, stream)
    count = len(stream.requests)
    sut = mlperf.ConstructSUT(under_test.issue, lambda: None)
    qsl = mlperf.ConstructQSL(count, count, lambda samples: None, lambda samples: None)
    try:
        mlperf.StartTestWithLogSettings(sut, qsl, settings, log, "")
    finally:
        mlperf.DestroyQSL(qsl)
        mlperf.DestroySUT(sut)
        asyncio.run_coroutine_threadsafe(client.close(), loop).result()
    detail = read_detail((Path(job.logs) / "mlperf_log_detail.txt").read_text())
    counts = under_test.counts
    row = tenant_result(detail, job.tenant, counts[Outcome.REFUSED], counts[Outcome.ERROR])
    row = msgspec.structs.replace(row, failures=dict(under_test.failures.most_common()))
    return Verdict(row, str(detail.get("result_validity", "")))


def main() -> None:
    """The child: a Job as JSON on stdin, a _Reply as JSON on stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and decides
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    loop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    try:
        reply = _Reply(verdict=_test(job, loop))
    except VeltairError as error:
        reply = _Reply(error=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(reply))
    sys.stdout.flush()


def log_directory(wanted: Path | None) -> contextlib.AbstractContextManager[Path]:
    """The directory for MLPerf's logs: the wanted one, or a temporary one."""
    if wanted is None:
        return ScratchFolder("mlperf")
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--mlperf-logs: {wanted}: {error.strerror}") from None
    return contextlib.nullcontext(wanted)


if __name__ == "__main__":
    main()

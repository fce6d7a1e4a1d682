"""ONNX Runtime or OpenVINO behind the daemon's own gRPC front: what a user would run instead, served the same way.

    python -m bench.serving.peers SERVE.toml MODELS --engine openvino --hint latency --threads 2 --at-once 1

The tenants and their targets come from the daemon's configuration (the artifacts are read for tensor names and
shapes alone), the networks from MODELS/<tenant's model>.onnx. Queries run in order of arrival, `--at-once` of them at a
time, in one session per model. The process prints its address as a line of JSON and serves until SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from numpy.typing import NDArray

from veltair import config
from veltair.errors import DeadlineError, OverloadedError, RefusalReason
from veltair.machine.malloc import reuse_message_memory
from veltair.profiles.artifact.sealed_artifact import seal_artifact
from veltair.server.front.grpc_front import GrpcFront
from veltair.server.front.inference_service import InferenceService
from veltair.server.front.metrics import Metrics
from veltair.server.front.query_result import QueryResult
from veltair.server.front.snapshot import Snapshot
from veltair.server.ipc.stages import EngineStamps
from veltair.server.repository.live_models import LiveModels
from veltair.server.repository.served_tenant import ServedTenant
from veltair.types import DEFAULT_PRIORITY_LEVEL, QoSTarget

Feeds = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]
Infer = Callable[[Feeds], Outputs]


def onnxruntime(model: Path, threads: int) -> Infer:
    """One session, which is re-entrant."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    taken = {port.name for port in session.get_inputs()}  # inputs that nothing reads are dropped

    def infer(feeds: Feeds) -> Outputs:
        found = session.run(names, {name: feed for name, feed in feeds.items() if name in taken})
        return dict(zip(names, found, strict=True))

    return infer


def openvino(model: Path, threads: int, hint: str) -> Infer:
    """One infer request for each thread. Precision is OpenVINO's default: bfloat16 where there is AMX."""
    import openvino as ov

    compiled = ov.Core().compile_model(
        str(model), "CPU", {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": hint.upper()}
    )
    outputs = [(output.get_any_name(), output) for output in compiled.outputs]
    taken = {name for port in compiled.inputs for name in port.get_names()}
    requests = threading.local()

    def infer(feeds: Feeds) -> Outputs:
        if not hasattr(requests, "own"):
            requests.own = compiled.create_infer_request()
        found = requests.own.infer({name: feed for name, feed in feeds.items() if name in taken})
        return {name: found[output].copy() for name, output in outputs}

    return infer


@dataclass(frozen=True, slots=True)
class PeerEngine:
    """A peer as an `InferenceEngine` of the front end."""

    models: LiveModels
    sessions: Mapping[str, Infer]
    pool: ThreadPoolExecutor  # first come, first served
    ready: bool = True

    async def infer(
        self,
        tenant: ServedTenant,
        inputs: Feeds,
        *,
        deadline_ns: int | None = None,
        priority_level: int = DEFAULT_PRIORITY_LEVEL,
        traced: bool = False,
    ) -> QueryResult:
        arrival_ns = time.monotonic_ns()

        def work() -> QueryResult:
            begin_ns = time.monotonic_ns()
            if deadline_ns is not None and begin_ns > deadline_ns:
                raise DeadlineError(RefusalReason.LATE_ON_ARRIVAL)
            outputs = self.sessions[tenant.name](inputs)
            end_ns = time.monotonic_ns()
            stamps = EngineStamps(arrival_ns, begin_ns, end_ns, end_ns)
            return QueryResult(outputs, begin_ns - arrival_ns, end_ns - begin_ns, arrival_ns, stamps)

        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    async def snapshot(self, since: int | None = None) -> Snapshot:
        raise OverloadedError(RefusalReason.RESTARTING)


async def serve(args: argparse.Namespace) -> None:
    settings = config.read_config(args.config)
    tenants, sessions = {}, {}
    for entry in settings.tenants:
        found = seal_artifact(Path(entry.artifact))
        qos_ns = found.manifest.qos_ns if entry.qos_ms is None else round(entry.qos_ms * 1e6)
        qos = QoSTarget(qos_ns, entry.percentile)
        tenants[entry.name] = ServedTenant(entry.name, "1", found, qos, entry.priority, batching=False)
        model = args.models / f"{found.manifest.model}.onnx"
        if args.engine == "onnxruntime":
            sessions[entry.name] = onnxruntime(model, args.threads)
        else:
            sessions[entry.name] = openvino(model, args.threads, args.hint)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with ThreadPoolExecutor(args.at_once) as pool:
        engine = PeerEngine(LiveModels(tenants.values()), sessions, pool)
        metrics = Metrics({name: (info.manifest.model, info.qos) for name, info in tenants.items()})
        limit_bytes = settings.server.body_limit_mb << 20
        service = InferenceService(engine, metrics, limit_bytes, shared_memory=settings.server.shared_memory)
        front = await GrpcFront.start(service, "127.0.0.1:0")
        print(json.dumps({"ready": True, "grpc": front.address}), flush=True)
        await stop.wait()
        await front.stop(1.0)
        await service.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, metavar="SERVE.toml")
    parser.add_argument("models", type=Path, metavar="MODELS")
    parser.add_argument("--engine", choices=("onnxruntime", "openvino"), required=True)
    parser.add_argument("--hint", choices=("latency", "throughput"), default="latency", help="OpenVINO's")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--at-once", type=int, required=True)
    args = parser.parse_args()
    reuse_message_memory()  # as the daemon does
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(args))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What the daemon adds to a small query: round trip over gRPC minus execution, one query at a time.

    python -m bench.serving.overhead ARTIFACT [--queries 2000] [--out bench/results/overhead.json]

The client measures the round trip, so its own work is included: the result is an upper bound of what the daemon adds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import grpc
from rich.console import Console
from rich.progress import track
from tritonclient.grpc import InferenceServerClient, InferInput, service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype

from bench.serving.daemon import ServedModel, configuration, running, serve_command, write_toml
from bench.serving.way.lone_client import draw_inputs
from veltair.machine.environment import describe_environment
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact

BAR_MS = 1.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    artifact = load_artifact(args.artifact)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "serve.toml"
        write_toml(config, configuration([ServedModel("model", args.artifact.resolve())]))
        with running(serve_command(config)) as (_, at):
            rows = _measure(at["grpc"], artifact, args.queries)
    facts = {"model": artifact.manifest.model, "queries": args.queries, "bar_p50_ms": BAR_MS}
    result = {**facts, **_summary(rows), "environment": asdict(describe_environment())}
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", "utf-8")
    return 0


def _measure(address: str, artifact: Artifact, queries: int) -> list[tuple[float, float, float]]:
    """Round trip, queueing and execution of each query, in milliseconds."""
    request = service_pb2.ModelInferRequest(model_name="model")
    for name, values in draw_inputs(artifact.manifest).items():
        tensor = InferInput(name, values.shape, np_to_triton_dtype(values.dtype))
        tensor.set_data_from_numpy(values)
        request.inputs.append(tensor._get_tensor())
        request.raw_input_contents.append(tensor._get_content())
    request.parameters["veltair_trace"].bool_param = True
    rows = []
    with InferenceServerClient(address) as client, grpc.insecure_channel(address) as channel:
        assert client.is_server_ready()
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for index in track(range(queries + 100), description="queries", console=Console(stderr=True)):
            start = time.perf_counter()
            answer = stub.ModelInfer(request)
            taken = (time.perf_counter() - start) * 1e3
            timings = {key: value.int64_param for key, value in answer.parameters.items()}
            if index >= 100:  # the first 100 warm up both sides
                rows.append((taken, timings["queue_ns"] / 1e6, timings["execute_ns"] / 1e6))
    return rows


def _summary(rows: list[tuple[float, float, float]]) -> dict[str, float]:
    overhead = sorted(taken - execute for taken, _, execute in rows)
    return {
        "overhead_p50_ms": round(statistics.median(overhead), 4),
        "overhead_p99_ms": round(overhead[int(len(overhead) * 0.99)], 4),
        "round_trip_p50_ms": round(statistics.median(row[0] for row in rows), 4),
        "queue_p50_ms": round(statistics.median(row[1] for row in rows), 4),
        "execute_p50_ms": round(statistics.median(row[2] for row in rows), 4),
    }


if __name__ == "__main__":
    raise SystemExit(main())

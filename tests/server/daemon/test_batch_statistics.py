"""The statistics of batches, as stock clients read them over both protocols."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from example_models import LONG_TURNS, mlp_outputs
from running_daemon import X, configuration, running, spin, tensor, until
from running_engine import WAIT_S

pytestmark = pytest.mark.slow


def ask(module: Any, address: str, rows: int) -> None:
    with module.InferenceServerClient(address) as client:
        answer = client.infer("mlp", [tensor(module, "x", X[:rows], "FP32")])
        np.testing.assert_allclose(answer.as_numpy("y"), mlp_outputs(X[:rows]), rtol=1e-4, atol=1e-4)


def test_a_batch_of_several_requests_is_one_execution(bounded: Path, tmp_path: Path, fronts: int) -> None:
    text = configuration(bounded, "mlp", "spin", policy="veltair", workers=1, fronts=fronts)
    text = text.replace("qos_ms = 20.0", "qos_ms = 100000.0")
    with running(tmp_path, text) as daemon, ThreadPoolExecutor(3) as threads:
        ask(triton_grpc, daemon.grpc, rows=5)
        with triton_grpc.InferenceServerClient(daemon.grpc) as client:
            holder = client.async_infer("spin", spin(triton_grpc, LONG_TURNS, 1), lambda result, error: None)
            until("the only worker to be busy", lambda: daemon.metric("veltair_queries_running", tenant="spin") == 1)
            answers = []
            for count, rows in enumerate((1, 3, 2), 1):
                answers.append(threads.submit(ask, triton_grpc, daemon.grpc, rows))
                until("it to wait", lambda n=count: daemon.metric("veltair_queue_depth", tenant="mlp") == n)
            holder.cancel()
            for answer in answers:
                answer.result(WAIT_S)

            def by_size() -> dict[int, int]:
                (found,) = client.get_inference_statistics("mlp").model_stats
                return {each.batch_size: each.compute_infer.count for each in found.batch_stats}

            until("the batch to be counted", lambda: 6 in by_size())
            assert by_size() == {5: 1, 6: 1}
        with triton_http.InferenceServerClient(daemon.http) as http:
            (found,) = http.get_inference_statistics("mlp")["model_stats"]
            assert (found["execution_count"], found["inference_count"]) == (2, 11)
            assert found["inference_stats"]["success"]["count"] == 4
            assert [each["batch_size"] for each in found["batch_stats"]] == [5, 6]
            assert all(each["compute_infer"]["ns"] > 0 for each in found["batch_stats"])
            (spun,) = http.get_inference_statistics("spin")["model_stats"]
            assert (spun["execution_count"], spun["inference_count"], spun["batch_stats"]) == (0, 0, [])

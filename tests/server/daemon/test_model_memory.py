"""What the daemon says that models cost in memory, against what the system says."""

from __future__ import annotations

import re
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from large_models import HUGE_PAGE, WEIGHTS_BYTES, large_mlp, mapped_weights
from running_daemon import X, configuration, running, tensor

pytestmark = pytest.mark.slow


def page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        return str(answer.read().decode())


def memory(address: str) -> dict[tuple[str, str], float]:
    """By tenant and kind."""
    found = {}
    for line in page(address).splitlines():
        if line.startswith("veltair_model_memory_bytes{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            found[labels["tenant"], labels["kind"]] = float(line.rpartition(" ")[2])
    return found


def ask(client: Any, module: Any, model: str, rows: int = len(X)) -> None:
    client.infer(model, [tensor(module, "x", X[:rows], "FP32")])


def test_what_models_cost_is_what_the_system_says(artifacts: Path, tmp_path: Path) -> None:
    large_mlp(artifacts, tmp_path / "one")
    large_mlp(artifacts, tmp_path / "two", scale=2)
    shutil.copytree(tmp_path / "two", tmp_path / "same")  # as two
    with running(tmp_path, configuration(tmp_path, "one", "two", "same")) as daemon:
        said = memory(daemon.http)
        assert said["one", "weights"] == WEIGHTS_BYTES
        assert said["two", "weights"] == said["same", "weights"] == WEIGHTS_BYTES / 2
        weights = sum(size for (_, kind), size in said.items() if kind == "weights")
        found = mapped_weights(daemon.process.pid)
        assert weights == pytest.approx(found, abs=2 * HUGE_PAGE)  # each begins and ends with pages of its own
        libraries = [(tmp_path / name / "kernels.so").stat().st_size for name in ("one", "two")]
        assert said["one", "code"] >= libraries[0]
        assert said["one", "workers"] > 0
        assert {said[name, "slots"] for name in ("one", "two", "same")} == {0}
        with (
            triton_http.InferenceServerClient(daemon.http) as http,
            triton_grpc.InferenceServerClient(daemon.grpc) as rpc,
        ):
            for _ in range(3):
                ask(http, triton_http, "one")
                ask(rpc, triton_grpc, "one")
            after = memory(daemon.http)
            assert after["one", "slots"] > 0 == after["two", "slots"]
            total = sum(size for (tenant, _), size in after.items() if tenant == "one")
            [row] = http.get_inference_statistics("one")["model_stats"]
            [usage] = rpc.get_inference_statistics("one").model_stats[0].memory_usage
            assert row["memory_usage"] == [{"type": "CPU", "id": 0, "byte_size": total}]
            assert (usage.type, usage.byte_size) == ("CPU", total)
        assert daemon.metric("veltair_model_resident", tenant="one") == 1

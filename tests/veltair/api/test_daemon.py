"""`serve` and `load_test`: a daemon for as long as its block, and a load on it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from running_daemon import until

import veltair
from veltair.errors import ArtifactError, ConfigError
from veltair.loadgen.scenario import TenantLoad

pytestmark = pytest.mark.slow
X = np.zeros((1, 16), np.float32)

OWNER = """
import sys, time, veltair
daemon = veltair.serve(sys.argv[1], workers=1)
print(daemon._process.pid, flush=True)
sys.stdin.read()
"""


def test_a_daemon_ends_with_its_block(artifacts: Path) -> None:
    with veltair.serve([artifacts / "mlp"], workers=1) as daemon:
        processes = [psutil.Process(daemon._process.pid), *psutil.Process(daemon._process.pid).children(recursive=True)]
        assert daemon.client().infer("mlp", X).array.shape == (1, 8)
        assert daemon.dashboard == f"http://{daemon.http}/admin"
    assert daemon._process.returncode == 0
    assert not [process for process in processes if process.is_running()]


def test_a_daemon_ends_with_a_process_that_is_killed(artifacts: Path) -> None:
    command = [sys.executable, "-c", OWNER, artifacts / "mlp"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        daemon = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    until("the daemon to end", lambda: not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE)


def test_a_configuration_file_and_keys_before_it(artifacts: Path, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(
        f'[server]\nworkers = 1\npolicy = "fcfs"\n[[tenants]]\nname = "m"\nartifact = "{artifacts / "mlp"}"\n'
    )
    with veltair.serve(file, http="127.0.0.1:0", grpc="127.0.0.1:0", policy="veltair") as daemon:
        assert daemon.config.server.policy == "veltair"
        assert daemon.client(http=True).infer("m", X).array.shape == (1, 8)


def test_what_cannot_be_served(artifacts: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no-such\.toml: cannot be read: No such file"):
        veltair.serve(tmp_path / "no-such.toml")
    with pytest.raises(ArtifactError, match="no model artifact there"):
        veltair.serve([tmp_path])
    with pytest.raises(ConfigError, match="object contains unknown field `quue_slots`; did you mean `queue_slots`"):
        veltair.serve(artifacts / "mlp", quue_slots=3)
    with pytest.raises(ConfigError, match="policy"):
        veltair.serve(artifacts / "mlp", policy="magic")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_port_that_is_taken_is_one_line_however_the_log_is_written(artifacts: Path, log_format: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        expected = rf"server\.http: cannot listen on {address} \(Address already in use\)"
        with pytest.raises(ConfigError, match=f"^{expected}$"):
            veltair.serve(artifacts / "mlp", http=address, log_format=log_format)


def test_a_load_and_what_came_of_it(daemon: veltair.Daemon, tmp_path: Path) -> None:
    result = veltair.load_test(daemon, {"mlp": 100.0}, duration_s=1.0, warmup_s=0.2)
    row = result["mlp"]
    assert row.offered_qps > 0 and not row.errors
    assert len(result.latencies_ms["mlp"]) == round(row.offered_qps) - row.refused
    assert "mlp" in str(result) and f"{row.offered_qps:.1f}" in str(result)
    result.plot(tmp_path / "tails.png")
    assert (tmp_path / "tails.png").read_bytes().startswith(b"\x89PNG")
    more = veltair.load_test(f"http://{daemon.http}", [TenantLoad("mlp", 50.0, 500.0)], duration_s=0.5, warmup_s=0)
    assert more.scenario.tenants[0].target_ms == 500.0


def test_a_load_that_cannot_be(daemon: veltair.Daemon) -> None:
    with pytest.raises(ConfigError, match=r"tenants\[0\].qps"):
        veltair.load_test(daemon, {"mlp": -1.0})
    with pytest.raises(ConfigError, match=r"cannot reach grpc://127\.0\.0\.1:1"):
        veltair.load_test("grpc://127.0.0.1:1", [TenantLoad("mlp", 1.0, 5.0)])

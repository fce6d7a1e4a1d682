"""A daemon whose workers load hostile code, and one on a kernel that gives no sandbox."""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest
import running_daemon
import tritonclient.grpc as triton_grpc
from example_models import mlp_outputs
from running_daemon import X, configuration, running, serve, tensor
from running_engine import WAIT_S

from veltair.profiles.artifact.artifact_folder import KERNELS, MANIFEST
from veltair.server.worker import landlock

pytestmark = pytest.mark.slow

# It runs as the library is loaded, before anything of it is called, and says on stderr that it has.
HOSTILE = r"""
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void attack(void) {
  const int file = open("%(file)s", O_CREAT | O_WRONLY, 0600);
  const int file_error = file < 0 ? errno : 0;
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(%(port)d)};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int sock = socket(AF_INET, SOCK_STREAM, 0);
  const int connected = connect(sock, (struct sockaddr *)&to, sizeof to);
  dprintf(2, "hostile: file %%d, connection %%d\n", file_error, connected);
  if (file >= 0) close(file);
  if (sock >= 0) close(sock);
}
"""
# As a container may: the kernel has neither for whoever is inside.
WITHHELD = """
import errno, os
from veltair.server.worker import seccomp
from veltair.server.worker.sandbox import no_new_privileges
no_new_privileges()
seccomp.install([
    (0x20, 0, 0, 0),
    (0x15, 0, 1, 444), (0x06, 0, 0, 0x50000 | errno.ENOSYS),
    (0x15, 0, 1, {"x86_64": 317, "aarch64": 277}[os.uname().machine]), (0x06, 0, 0, 0x50000 | errno.EPERM),
    seccomp.ALLOW,
])
"""


@pytest.fixture
def needs_sandbox() -> None:
    try:
        landlock.abi_version()
    except OSError as error:
        pytest.skip(f"this kernel has no Landlock: {error.strerror}")


def hostile_mlp(artifacts: Path, target: Path, file: Path, port: int) -> None:
    """A version of mlp that serves, with a library that attacks when it is loaded."""
    shutil.copytree(artifacts / "mlp", target)
    source = file.with_suffix(".c")
    source.write_text(HOSTILE % {"file": file, "port": port})
    good = artifacts / "mlp" / KERNELS
    library = target / KERNELS
    library.unlink()
    command = ["gcc", "-shared", "-fPIC", "-Wl,--no-as-needed", "-o", library, source, good]
    subprocess.run(command, check=True)
    manifest = msgspec.json.decode((target / MANIFEST).read_bytes())
    manifest["kernels_digest"] = hashlib.sha256(library.read_bytes()).hexdigest()
    (target / MANIFEST).write_bytes(msgspec.json.encode(manifest))


def served(address: str) -> bool:
    with triton_grpc.InferenceServerClient(address) as client:
        found = client.infer("mlp", [tensor(triton_grpc, "x", X, "FP32")]).as_numpy("y")
    return bool(np.allclose(found, mlp_outputs(X), rtol=1e-4, atol=1e-4))


def reached(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("while_serving", [False, True], ids=["at-start", "while-serving"])
@pytest.mark.parametrize("sandbox", ["off", "require"])
def test_hostile_code_reaches_neither_files_nor_the_network(
    needs_sandbox: None, artifacts: Path, tmp_path: Path, sandbox: str, while_serving: bool
) -> None:
    repository, file = tmp_path / "models", tmp_path / "written"
    repository.mkdir()
    text = configuration(tmp_path, repository=str(repository), model_control=True, sandbox=sandbox)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        if not while_serving:
            hostile_mlp(artifacts, repository / "mlp", file, port)
        with running(tmp_path, text) as daemon:
            if while_serving:
                hostile_mlp(artifacts, repository / "mlp", file, port)
                with triton_grpc.InferenceServerClient(daemon.grpc) as client:
                    client.load_model("mlp")
            assert served(daemon.grpc)
            confined = float(sandbox == "require")
            assert daemon.metric("veltair_sandbox", by="landlock") == confined
            assert daemon.metric("veltair_sandbox", by="seccomp") == confined
            assert daemon.metric("veltair_worker_deaths_total") == 0
            attacks = [line for line in (tmp_path / "log").read_text().splitlines() if "hostile: " in line]
            assert attacks
            succeeds = "hostile: file 0, connection 0"
            assert all((line == succeeds) is (sandbox == "off") for line in attacks)
            assert file.exists() is (sandbox == "off")
            assert reached(listener) is (sandbox == "off")


def test_a_kernel_without_either_is_said_once_and_serves(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_daemon, "SERVE", WITHHELD + running_daemon.SERVE)
    with running(tmp_path, configuration(artifacts, "mlp")) as daemon:
        assert served(daemon.grpc)
        assert daemon.metric("veltair_sandbox", by="landlock") == 0
        assert daemon.metric("veltair_sandbox", by="seccomp") == 0
        assert daemon.metric("veltair_workers", state="idle") > 1
    warnings = [line for line in (tmp_path / "log").read_text().splitlines() if "not confined" in line]
    assert len(warnings) == 1
    assert "no Landlock: the kernel is built without it; no seccomp filter: the system forbids it" in warnings[0]


def test_a_daemon_that_requires_what_the_kernel_lacks_does_not_start(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_daemon, "SERVE", WITHHELD + running_daemon.SERVE)
    process = serve(tmp_path, configuration(artifacts, "mlp", sandbox="require"))
    output, log = process.communicate(timeout=WAIT_S)
    assert (process.returncode, output) == (2, "")
    assert 'veltair serve: server.sandbox is "require", but workers cannot be confined: no Landlock: ' in log

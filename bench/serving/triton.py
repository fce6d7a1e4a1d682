"""NVIDIA's Triton with ONNX Runtime or OpenVINO behind its own HTTP and gRPC front ends, on CPUs.

    python -m bench.serving.triton SERVE.toml MODELS --triton-python PATH --engine openvino --threads 2

The server is that of the wheel `nvidia-pytriton`, in a virtual environment of its own (CONTRIBUTING.md says how to make
it). The tenants come from the daemon's configuration (the artifacts are read for tensor names and shapes alone), the
networks from MODELS/<tenant's model>.onnx. Each model is an instance of Triton's Python backend, `triton_model`, which
hands the arrays of the queries to the engine; queries that wait are batched where the model allows it. The process
prints its addresses as a line of JSON and serves until SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from veltair import config
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.artifact.manifest import Manifest
from veltair.server.front.model_metadata import model_configuration
from veltair.types import QoSTarget

ENGINES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
MODEL_CODE = Path(__file__).with_name("triton_model.py")
LOAD_S = 300  # the largest models hold gigabytes of tables
POLL_S = 0.05
HOST = "127.0.0.1"
# Where packages are, where libpython is, which stub fits.
ASK_PYTHON = (
    "import json, sys, sysconfig; json.dump([sysconfig.get_path('purelib'), sysconfig.get_config_var('LIBDIR'),"
    " '%d.%d' % sys.version_info[:2]], sys.stdout)"
)


class TritonInstallation(NamedTuple):
    """A virtual environment that has the wheel, and what the server needs of its Python."""

    scripts: Path  # with `python3`
    packages: Path
    libraries: Path
    version: str

    @classmethod
    def of(cls, python: str) -> TritonInstallation:
        """Asks that Python. Raises SystemExit where the wheel is missing."""
        done = subprocess.run([python, "-c", ASK_PYTHON], check=True, stdout=subprocess.PIPE, text=True)
        packages, libraries, version = json.loads(done.stdout)
        found = cls(Path(python).absolute().parent, Path(packages), Path(libraries), version)
        if not found.server.is_file():
            raise SystemExit(f"{python} has no tritonserver; CONTRIBUTING.md says how to make its environment")
        return found

    @property
    def root(self) -> Path:
        return self.packages / "pytriton" / "tritonserver"

    @property
    def server(self) -> Path:
        return self.root / "bin" / "tritonserver"

    def copy_backends(self, folder: Path) -> None:
        """The Python backend with the stub of this Python's version."""
        shutil.copytree(self.root / "backends", folder)
        name = "triton_python_backend_stub"
        shutil.copy(self.root / "python_backend_stubs" / self.version / name, folder / "python" / name)

    def environment(self) -> dict[str, str]:
        """Variables of the server's process.

        The stub's embedded Python looks for `python3` in PATH and takes that one's packages. It ignores PYTHONPATH.
        """
        libraries = f"{self.packages / 'nvidia_pytriton.libs'}:{self.libraries}"
        return os.environ | {"PATH": f"{self.scripts}:{os.environ['PATH']}", "LD_LIBRARY_PATH": libraries}


def model_config_text(name: str, manifest: Manifest, qos: QoSTarget, settings: Mapping[str, str]) -> str:
    """The `config.pbtxt` of a model: the configuration that the daemon gives to clients, for the Python backend.

    Queries that wait are batched, and none waits for others. `settings` are parameters for `triton_model`.
    """
    document: dict[str, Any] = model_configuration(name, ("1",), manifest, qos)
    del document["platform"], document["version_policy"]
    document |= {"backend": "python", "instance_group": [{"kind": "KIND_CPU", "count": 1}]}
    if document["max_batch_size"]:
        document["dynamic_batching"] = {"max_queue_delay_microseconds": 0}
    document["parameters"] |= {key: {"string_value": value} for key, value in settings.items()}
    return text_format.MessageToString(json_format.ParseDict(document, model_config_pb2.ModelConfig()))


def write_repository(folder: Path, config_path: Path, models: Path, engine: str, threads: int) -> None:
    """A model repository with every tenant of the daemon's configuration."""
    for entry in config.read_config(config_path).tenants:
        manifest = load_artifact(Path(entry.artifact)).manifest
        qos_ns = manifest.qos_ns if entry.qos_ms is None else round(entry.qos_ms * 1e6)
        network = (models / f"{manifest.model}.onnx").resolve()
        settings = {"network": str(network), "engine": engine, "threads": str(threads)}
        code = folder / entry.name / "1" / "model.py"
        code.parent.mkdir(parents=True)
        shutil.copy(MODEL_CODE, code)
        text = model_config_text(entry.name, manifest, QoSTarget(qos_ns, entry.percentile), settings)
        (folder / entry.name / "config.pbtxt").write_text(text, "utf-8")


def free_ports(count: int) -> list[int]:
    """TCP ports that nobody listens at now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def wait_until_ready(process: subprocess.Popen[bytes], http: str, log: Path) -> None:
    """Returns once every model is loaded. Raises SystemExit with the log's errors where the server ends instead."""
    give_up = time.monotonic() + LOAD_S
    while process.poll() is None and time.monotonic() < give_up:
        try:
            with urllib.request.urlopen(f"http://{http}/v2/health/ready", timeout=5.0):
                return
        except (urllib.error.URLError, OSError):  # not listening, or models are still loading
            time.sleep(POLL_S)
    errors = [line for line in log.read_text("utf-8", "replace").splitlines() if line[:1] == "E"]
    raise SystemExit("\n".join(["tritonserver did not become ready", *errors]))


def serve(args: argparse.Namespace) -> None:
    """Serves until SIGTERM or SIGINT, or until the server ends by itself."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # from here on, so that no server is left behind
    installation = TritonInstallation.of(args.triton_python)
    with tempfile.TemporaryDirectory(prefix="veltair-triton-") as scratch:
        folder = Path(scratch)
        write_repository(folder / "models", args.config, args.models, args.engine, args.threads)
        installation.copy_backends(folder / "backends")
        grpc_port, http_port = free_ports(2)
        command = [str(installation.server), "--model-repository", str(folder / "models")]
        command += ["--backend-directory", str(folder / "backends"), "--allow-metrics", "false"]
        command += ["--backend-config", f"python,stub-timeout-seconds={LOAD_S}", "--exit-timeout-secs", "5"]
        command += ["--http-address", HOST, "--http-port", str(http_port)]
        command += ["--grpc-address", HOST, "--grpc-port", str(grpc_port)]
        log = folder / "triton.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=installation.environment(), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            wait_until_ready(process, f"{HOST}:{http_port}", log)
            at = {"ready": True, "grpc": f"{HOST}:{grpc_port}", "http": f"{HOST}:{http_port}"}
            print(json.dumps(at), flush=True)
            process.wait()
        finally:
            process.terminate()
            process.wait()


def command(config_path: Path, models: Path, python: str, engine: str, threads: int) -> list[str]:
    """The command that starts Triton with an engine, for `daemon.running`."""
    given = ["--triton-python", python, "--engine", engine, "--threads", str(threads)]
    return [sys.executable, "-m", "bench.serving.triton", str(config_path), str(models), *given]


def versions(python: str) -> dict[str, str]:
    """The versions of the server and of its engines."""
    code = "import json, sys, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run(
        [python, "-c", code, "nvidia-pytriton", *ENGINES], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def add_argument(parser: argparse.ArgumentParser) -> None:
    """`--triton-python` of a bench that has Triton among its peers."""
    text = "a Python with nvidia-pytriton, ONNX Runtime and OpenVINO; default: measure without Triton"
    parser.add_argument("--triton-python", metavar="PATH", help=text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, metavar="SERVE.toml")
    parser.add_argument("models", type=Path, metavar="MODELS")
    parser.add_argument("--triton-python", metavar="PATH", required=True, help="a Python with nvidia-pytriton")
    parser.add_argument("--engine", choices=tuple(ENGINES), required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    with suppress(KeyboardInterrupt):
        serve(args)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

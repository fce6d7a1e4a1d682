"""Starts the whole daemon as a process of its own, and asks it as the stock tritonclient does."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from daemon_logs import log_of_daemon
from running_engine import WAIT_S

SERVE = """
import argparse, sys
from veltair.commands import serve as command
parser = argparse.ArgumentParser()
command.add_arguments(parser)
sys.exit(command.run(parser.parse_args()))
"""

X = np.random.default_rng(3).standard_normal((5, 16), dtype=np.float32)
X_AS_JSON = json.dumps({"inputs": [{"name": "x", "shape": X.shape, "datatype": "FP32", "data": X.tolist()}]}).encode()


@dataclass
class Daemon:
    process: subprocess.Popen[str]
    http: str
    grpc: str
    admin: str = ""

    def metric(self, name: str, **labels: str) -> float:
        with urllib.request.urlopen(f"http://{self.http}/metrics") as page:
            for line in page.read().decode().splitlines():
                series, _, value = line.rpartition(" ")
                if series.startswith(name) and all(f'{k}="{v}"' in series for k, v in labels.items()):
                    return float(value)
        raise AssertionError(f"no {name} with {labels}")

    def status(self, path: str = "/v2/health/ready") -> int:
        """The status of a GET."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=WAIT_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


def serve(folder: Path, text: str, log: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    path = folder / "serve.toml"
    path.write_text(text)
    command = [sys.executable, "-c", SERVE, str(path), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)


@contextmanager
def running(folder: Path, text: str) -> Iterator[Daemon]:
    with log_of_daemon(folder / "log"):
        with (folder / "log").open("w") as log:
            process = serve(folder, text, log)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the daemon has ended before it was ready"
        told = json.loads(line)
        assert told["ready"] is True
        where = {key: told[key] for key in ("http", "grpc", "admin") if key in told}
        try:
            yield Daemon(process, **where)
        finally:
            ended = process.poll()
            if ended is not None:
                print(f"the daemon ended by itself ({ended})", file=sys.stderr)
            else:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(WAIT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            process.stdout.close()


def configuration(artifacts: Path, *names: str, **server: Any) -> str:
    options = "\n".join(
        f"{key} = {json.dumps(value)}" for key, value in ({"workers": 2, "policy": "veltair-full"} | server).items()
    )
    tenants = "\n".join(f'[[tenants]]\nname = "{n}"\nartifact = "{artifacts / n}"\nqos_ms = 20.0' for n in names)
    return f'[server]\nhttp = "127.0.0.1:0"\ngrpc = "127.0.0.1:0"\n{options}\n{tenants}\n'


def reload(daemon: Daemon) -> tuple[int, Any]:
    """The status and the document."""
    try:
        with urllib.request.urlopen(f"http://{daemon.http}/admin/reload", data=b"") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def tensor(module: Any, name: str, values: Any, datatype: str, **how: Any) -> Any:
    entry = module.InferInput(name, list(values.shape), datatype)
    entry.set_data_from_numpy(values, **how)
    return entry


def spin(module: Any, turns: int, seed: int) -> list[Any]:
    one = [("turns", turns), ("seed", seed)]
    return [tensor(module, name, np.array([value], np.int32), "INT32") for name, value in one]


def until(what: str, condition: Callable[[], bool], seconds: float = WAIT_S) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"waited {seconds} s for: {what}"
        time.sleep(0.01)

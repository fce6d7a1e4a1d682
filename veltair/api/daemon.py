"""`serve`: a daemon for as long as a `with` block."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomli_w

from veltair.api.artifacts_config import Served, artifacts_config, configuration_values
from veltair.api.client import AsyncClient, Client
from veltair.config import ServeConfig, read_config
from veltair.errors import ConfigError, VeltairError
from veltair.machine.scratch import ScratchFolder
from veltair.profiles.artifact.artifact_folder import MANIFEST

ANY_PORT = "127.0.0.1:0"
LOG_CHARACTERS = 2000  # of a daemon that did not start, in the error
STOP_S = 60.0  # for a drain, beyond `drain_timeout_s`


def serve(models: Served | Sequence[Served] | Mapping[str, Served], **server: Any) -> Daemon:
    """Start a daemon that serves these models, and wait until it is ready.

    ::

        with veltair.serve({"resnet50": artifact, "dlrm": "artifacts/dlrm"}) as daemon:
            print(daemon.dashboard)
            daemon.client().infer("resnet50", image)

    Args:
        models: a configuration file; or artifacts, alone, in a list, or by the names that they are served under. A
            `TenantConfig` says more of one, such as its target.
        server: keys of the configuration's `[server]` table, before those of a file. Without a file the daemon takes
            any free ports.

    Raises ConfigError, ArtifactError, or VeltairError where the daemon does not start.
    """
    if isinstance(models, str | Path) and not (Path(models) / MANIFEST).exists():
        return Daemon(read_config(Path(models), server))
    return Daemon(artifacts_config(models, {"http": ANY_PORT, "grpc": ANY_PORT} | server, "veltair.serve"))


class Daemon:
    """A daemon in processes of its own, which serves until `stop` or the end of a `with` block.

    It also drains and ends when this process is gone, however it ended. ::

        with Daemon(read_config(Path("serve.toml"))) as daemon:
            daemon.http, daemon.grpc  # "127.0.0.1:8000", "127.0.0.1:8001"
    """

    def __init__(self, config: ServeConfig) -> None:
        """Returns once it is ready. Raises ConfigError, ArtifactError or VeltairError where it does not start."""
        self.config = config
        self._clients: list[Client] = []
        self._folder = ScratchFolder("serve")
        file, self.log = (self._folder.path / name for name in ("serve.toml", "daemon.log"))
        file.write_bytes(tomli_w.dumps(configuration_values(config)).encode())
        command = [sys.executable, "-m", "veltair.cli", "serve", str(file), "--json", "--attached"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        if not told:
            self._fail()
        where = json.loads(told)
        self.http: str = where["http"]
        self.grpc: str = where["grpc"]
        self.admin: str = where.get("admin", self.http)

    @property
    def running(self) -> bool:
        """Whether its front process is there; whether it is ready, `/v2/health/ready` says."""
        return self._process.poll() is None

    def _fail(self) -> None:
        code = self._process.wait()
        lines = self.log.read_text("utf-8", "replace")[-LOG_CHARACTERS:].splitlines()
        self.stop()
        text = next(filter(None, map(_last_words, reversed(lines))), "\n".join(lines))
        raise ConfigError(text) if code == 2 else VeltairError(f"the daemon ended with code {code}: {text}")

    @property
    def dashboard(self) -> str:
        """The dashboard's address, for a browser."""
        return f"{self._web}://{self.admin}/admin"

    @property
    def address(self) -> str:
        """The address of gRPC, with its scheme."""
        return f"grpc{'' if self.config.server.tls is None else 's'}://{self.grpc}"

    @property
    def _web(self) -> str:
        return "http" if self.config.server.tls is None else "https"

    def client(self, *, http: bool = False, **settings: Any) -> Client:
        """A client of this daemon, closed with it; over gRPC unless `http`. `settings`: see `Client`."""
        self._clients.append(Client(f"{self._web}://{self.http}" if http else self.address, **settings))
        return self._clients[-1]

    def async_client(self, *, http: bool = False, **settings: Any) -> AsyncClient:
        """The same for asyncio; the caller closes it."""
        return AsyncClient(f"{self._web}://{self.http}" if http else self.address, **settings)

    def stop(self) -> int:
        """Drain and end. Returns its exit code: 0 after a clean drain."""
        while self._clients:
            self._clients.pop().close()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()  # it is attached: this begins the drain
        server = self.config.server
        try:
            return self._process.wait(server.lame_duck_s + server.drain_timeout_s + STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._process.stdout.close()
            self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _last_words(line: str) -> str:
    """Why the daemon has ended, where this line of its log says so; else nothing."""
    with suppress(ValueError):
        if isinstance(said := json.loads(line), dict) and said.get("event") == "failed":
            return str(said.get("message", ""))
    begin = "veltair serve: "
    return line.removeprefix(begin) if line.startswith(begin) else ""

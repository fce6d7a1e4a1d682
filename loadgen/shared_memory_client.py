"""A client whose queries refer to shared memory instead of carrying their tensors over the connection."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from veltair.errors import ConfigError
from veltair.loadgen.client import Array, ModelMetadata, Payload, Response, SharedTensor
from veltair.loadgen.grpc_client import GrpcClient
from veltair.loadgen.http_client import HttpClient
from veltair.loadgen.payloads import encode_tensor

FOLDER = Path("/dev/shm")  # where POSIX shared memory lives on Linux
REGION_BYTES = 1 << 36  # pages exist only once they are written
ALIGNMENT = 64


@dataclass(slots=True)
class SharedMemoryClient:
    """Wraps a client: `encode` writes tensors into a region of this process, and the requests stay small.

    ::

        client = await SharedMemoryClient.register(http_client)
    """

    client: GrpcClient | HttpClient
    region: str
    file: int
    used_bytes: int = 0

    @classmethod
    async def register(cls, client: GrpcClient | HttpClient) -> SharedMemoryClient:
        """Make a region and register it. Raises ConfigError when the daemon cannot use memory of this process."""
        region = f"veltair-load-{os.getpid()}-{secrets.token_hex(4)}"
        path = FOLDER / region
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"load.shared_memory: {path}: {error.strerror}") from None
        try:
            os.ftruncate(file, REGION_BYTES)
            await client.register(region, f"/{region}", REGION_BYTES)
        except BaseException:
            os.close(file)
            raise
        finally:
            path.unlink()  # the daemon has it open; so nothing is left behind, however this process ends
        return cls(client, region, file)

    async def describe(self, model: str) -> ModelMetadata:
        return await self.client.describe(model)

    def encode(self, meta: ModelMetadata, payload: Payload) -> bytes:
        return self.client.encode(meta, {name: self._place(values) for name, values in payload.items()})

    def _place(self, values: Array | SharedTensor) -> SharedTensor:
        if isinstance(values, SharedTensor):
            return values
        data, at = encode_tensor(values), self.used_bytes
        try:
            if os.pwrite(self.file, data, at) < len(data):
                raise OSError(None, "no room left")
        except OSError as error:
            raise ConfigError(f"load.shared_memory: {FOLDER}: {error.strerror}") from None
        self.used_bytes += -(-len(data) // ALIGNMENT) * ALIGNMENT
        return SharedTensor(values.shape, self.region, at, len(data))

    async def send(self, request: bytes, tenant: int = 0) -> Response:
        return await self.client.send(request, tenant)

    async def close(self) -> None:
        await self.client.unregister(self.region)
        await self.client.close()
        os.close(self.file)

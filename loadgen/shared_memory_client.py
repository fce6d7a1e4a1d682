"""A client whose queries name memory that the daemon reads, in place of carrying their tensors over the connection."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from veltair.errors import ConfigError
from veltair.loadgen.client import Answer, Array, ModelMeta, Payload, PlacedTensor
from veltair.loadgen.grpc_client import GrpcClient
from veltair.loadgen.http_client import HttpClient
from veltair.loadgen.payloads import raw

FOLDER = Path("/dev/shm")  # where POSIX shared memory lives on Linux
ROOM_BYTES = 1 << 36  # of the region; its pages exist once they are written
ALIGNMENT = 64


@dataclass(slots=True)
class SharingClient:
    """Tensors that are encoded are put into a region of this process; what is sent is small."""

    client: GrpcClient | HttpClient
    region: str
    file: int
    used_bytes: int = 0

    @classmethod
    async def over(cls, client: GrpcClient | HttpClient) -> SharingClient:
        """Raises ConfigError when the daemon takes no shared memory of this process."""
        region = f"veltair-load-{os.getpid()}-{secrets.token_hex(4)}"
        path = FOLDER / region
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"load.shared_memory: {path}: {error.strerror}") from None
        try:
            os.ftruncate(file, ROOM_BYTES)
            await client.register(region, f"/{region}", ROOM_BYTES)
        except BaseException:
            os.close(file)
            raise
        finally:
            path.unlink()  # the daemon has it open; nothing is left behind however this process ends
        return cls(client, region, file)

    async def describe(self, model: str) -> ModelMeta:
        return await self.client.describe(model)

    def encode(self, meta: ModelMeta, payload: Payload) -> bytes:
        return self.client.encode(meta, {name: self._placed(values) for name, values in payload.items()})

    def _placed(self, values: Array | PlacedTensor) -> PlacedTensor:
        if isinstance(values, PlacedTensor):
            return values
        data, at = raw(values), self.used_bytes
        try:
            if os.pwrite(self.file, data, at) < len(data):
                raise OSError(None, "no room left")
        except OSError as error:
            raise ConfigError(f"load.shared_memory: {FOLDER}: {error.strerror}") from None
        self.used_bytes += -(-len(data) // ALIGNMENT) * ALIGNMENT
        return PlacedTensor(values.shape, self.region, at, len(data))

    async def send(self, request: bytes) -> Answer:
        return await self.client.send(request)

    async def close(self) -> None:
        await self.client.unregister(self.region)
        await self.client.close()
        os.close(self.file)

"""`ServingEngine`: what the repository asks of whoever runs the models."""

from __future__ import annotations

from typing import Protocol

from veltair.server.repository.engine_models import EngineModels
from veltair.server.repository.live_models import LiveModels
from veltair.server.repository.served_tenant import ServedTenant


class ServingEngine(Protocol):
    """What runs the models: `EngineClient`."""

    @property
    def models(self) -> LiveModels: ...

    @property
    def numbered(self) -> EngineModels | None: ...

    async def load(self, served: ServedTenant) -> None: ...

    async def unload(self, served: ServedTenant) -> None: ...

"""`ServingEngine`: what the repository asks of whoever runs the models."""

from __future__ import annotations

from typing import Protocol

from veltair.errors import OverloadedError, RefusalReason
from veltair.server.repository.engine_models import EngineModels
from veltair.server.repository.live_models import LiveModels
from veltair.server.repository.served_tenant import ServedTenant


class ServingEngine(Protocol):
    """What runs the models: `EngineClient`."""

    @property
    def models(self) -> LiveModels: ...

    @property
    def numbered(self) -> EngineModels | None: ...

    @property
    def draining(self) -> bool: ...

    async def load(self, served: ServedTenant) -> None: ...

    async def unload(self, served: ServedTenant) -> None: ...


def refuse_while_draining(engine: ServingEngine | None) -> None:
    """Nothing new is taken then, neither queries nor changes, by nobody's fault. Raises OverloadedError."""
    if engine is not None and engine.draining:
        raise OverloadedError(RefusalReason.DRAINING)

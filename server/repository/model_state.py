"""What the repository index says of a version of a model."""

from __future__ import annotations

from typing import NamedTuple


class ModelState(NamedTuple):
    """A version of a model in the repository index: `ModelState("UNAVAILABLE", "unloaded")`."""

    state: str  # READY, LOADING, UNLOADING, UNAVAILABLE
    reason: str = ""


READY, LOADING, UNLOADING = ModelState("READY"), ModelState("LOADING"), ModelState("UNLOADING")
UNLOADED, NOT_NOW = ModelState("UNAVAILABLE", "unloaded"), ModelState("UNAVAILABLE", "starting or shutting down")
AWAY = ModelState("READY", "not in memory; a query brings it back")

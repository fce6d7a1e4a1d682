"""What the repository index says of a version of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class ModelState(NamedTuple):
    """A version of a model in the repository index: `ModelState("UNAVAILABLE", "unloaded")`."""

    state: str  # READY, LOADING, UNLOADING, UNAVAILABLE
    reason: str = ""


READY, LOADING, UNLOADING = ModelState("READY"), ModelState("LOADING"), ModelState("UNLOADING")
UNLOADED, NOT_NOW = ModelState("UNAVAILABLE", "unloaded"), ModelState("UNAVAILABLE", "starting or shutting down")
AWAY = ModelState("READY", "not in memory; a query brings it back")


def index_rows(
    states: Mapping[tuple[str, str], ModelState], away: Callable[[str, str], ModelState | None], ready: bool
) -> list[dict[str, str]]:
    """The index: models in the order in which they came to be known, versions ascending.

    `away`: of a version that has left memory. `ready`: whether the engine takes queries.

    >>> index_rows({("mlp", "10"): READY, ("mlp", "9"): UNLOADED}, lambda name, version: None, ready=True)[0]
    {'name': 'mlp', 'version': '9', 'state': 'UNAVAILABLE', 'reason': 'unloaded'}
    """
    places = {name: place for place, name in enumerate(dict.fromkeys(name for name, _ in states))}
    rows = []
    for (name, version), state in sorted(states.items(), key=lambda item: (places[item[0][0]], int(item[0][1]))):
        shown = NOT_NOW if state.state == "READY" and not ready else away(name, version) or state
        rows.append({"name": name, "version": version, "state": shown.state, "reason": shown.reason})
    return rows

"""What the repository index says of the versions of models."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class ModelState(NamedTuple):
    """A version of a model in the repository index: `ModelState("UNAVAILABLE", "unloaded")`."""

    state: str  # READY, LOADING, UNLOADING, UNAVAILABLE
    reason: str = ""


READY, LOADING, UNLOADING = ModelState("READY"), ModelState("LOADING"), ModelState("UNLOADING")
UNLOADED, NOT_NOW = ModelState("UNAVAILABLE", "unloaded"), ModelState("UNAVAILABLE", "starting or shutting down")
AWAY = ModelState("READY", "not in memory; a query brings it back")


class ModelStates(dict[tuple[str, str], ModelState]):
    """States by model and version.

    >>> states = ModelStates({("mlp", "1"): READY})
    >>> states.tell_broken({"mlp": "no settings", "dlrm": "no manifest"})
    >>> states["mlp", "1"], states["dlrm", "1"]
    (ModelState(state='READY', reason='no settings'), ModelState(state='UNAVAILABLE', reason='no manifest'))
    """

    def of(self, name: str) -> list[str]:
        """The versions of a model."""
        return [version for each, version in self if each == name]

    def tell_broken(self, broken: Mapping[str, str]) -> None:
        """What is wrong with models whose versions nobody could look at. Those that are served go on."""
        for name, reason in broken.items():
            for version in self.of(name) or ["1"]:
                before = self.get((name, version))
                served = before is not None and before.state == READY.state
                self[name, version] = ModelState("READY" if served else "UNAVAILABLE", reason)

    def keep(self, name: str, versions: Collection[str]) -> None:
        """A model is as its folder says: of other versions nothing is left to say but that they were unloaded."""
        for version in self.of(name):
            if version not in versions and self[name, version] != UNLOADED:
                del self[name, version]

    def forget(self, name: str) -> None:
        """A model is gone."""
        for version in self.of(name):
            del self[name, version]


def index_rows(
    states: Mapping[tuple[str, str], ModelState], away: Mapping[tuple[str, str], ModelState], ready: bool
) -> list[dict[str, str]]:
    """The index: models in the order in which they came to be known, versions ascending.

    `away`: those of versions that have left memory. `ready`: whether the engine takes queries.

    >>> index_rows({("mlp", "10"): READY, ("mlp", "9"): UNLOADED}, {}, ready=True)[0]
    {'name': 'mlp', 'version': '9', 'state': 'UNAVAILABLE', 'reason': 'unloaded'}
    """
    places = {name: place for place, name in enumerate(dict.fromkeys(name for name, _ in states))}
    rows = []
    for (name, version), state in sorted(states.items(), key=lambda item: (places[item[0][0]], int(item[0][1]))):
        shown = NOT_NOW if state.state == "READY" and not ready else away.get((name, version), state)
        rows.append({"name": name, "version": version, "state": shown.state, "reason": shown.reason})
    return rows

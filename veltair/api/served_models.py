"""`ServedModel`: what a server says of a model, read from the protocol's metadata and configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from veltair.types import QoSTarget


@dataclass(frozen=True, slots=True)
class ModelPort:
    """An input or output of a served model.

    >>> ModelPort("x", "FP32", (-1, 3)).shape
    (-1, 3)
    """

    name: str
    datatype: str  # of the protocol: "FP32", "INT64", "BYTES", …
    shape: tuple[int, ...]  # -1: the batch


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server says of a model.

    >>> ServedModel("m", ("1",), (ModelPort("x", "FP32", (-1, 3)),), ()).inputs[0].name
    'x'
    """

    name: str
    versions: tuple[str, ...]
    inputs: tuple[ModelPort, ...]
    outputs: tuple[ModelPort, ...]
    target: QoSTarget | None = None  # None: the server states none


def served_model(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> ServedModel:
    """Read a model from the protocol's metadata and configuration of it, as JSON."""

    def ports(side: str) -> tuple[ModelPort, ...]:
        listed = metadata.get(side, ())
        return tuple(ModelPort(p["name"], p["datatype"], tuple(map(int, p.get("shape", ())))) for p in listed)

    told = config.get("config", config).get("parameters", {})
    qos = {key: float(told[key]["string_value"]) for key in ("qos_ms", "qos_percentile") if key in told}
    target = QoSTarget(round(qos["qos_ms"] * 1e6), qos["qos_percentile"]) if len(qos) == 2 else None
    return ServedModel(metadata["name"], tuple(metadata.get("versions", ())), ports("inputs"), ports("outputs"), target)

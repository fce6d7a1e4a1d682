"""A lowered model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from veltair.compiler.ir import Activation, LayerSpec
from veltair.profiles.artifact import Port


@dataclass(frozen=True, slots=True)
class Graph:
    """A lowered model: layers in order, and which names are views of another tensor's memory."""

    layers: tuple[LayerSpec, ...]
    views: Mapping[str, str]  # name -> name of the tensor that it shares memory with, transitively resolved
    activations: Mapping[str, Activation]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    max_batch: int

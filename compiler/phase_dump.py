"""The state of a compile after each phase as readable text: `veltair compile --dump DIR` writes one file a phase.

Up to the search for patterns a file lists the ONNX nodes; from then on the layers, each with its tensors (shape, type,
block, halo), parameters and weights, then the views and slices; after the search also the candidates and versions. A
dimension written `2b` is twice the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from onnx import NodeProto

from veltair.compiler.graph.layer_graph import Slice
from veltair.compiler.graph.layer_spec import Activation, Halo, LayerSpec
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters import LayerParameters
from veltair.compiler.pipeline import Compilation
from veltair.errors import ConfigError
from veltair.profiles.artifact.manifest import Port
from veltair.types import TensorSpec

BLOCK_TYPES = {"uint16": "bfloat16"}  # the bits of one lie in the other
MOST_CHARACTERS = 160  # of a parameter


class PhaseDump:
    """Writes numbered text files into a folder: `01-import-model.txt`, `02-join-features.txt`, …

    Raises ConfigError, when it is made, for a folder that cannot be made or written. ::

        PhaseDump(Path("dump")).write("import_model", compilation)
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._written = folder, 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".write-test"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"--dump {folder}: cannot write there ({error.strerror})") from None

    def write(self, phase: str, compilation: Compilation) -> None:
        """Write the state after the next phase, named `phase`. Raises ConfigError where the folder takes no more."""
        self._written += 1
        file = self._folder / f"{self._written:02}-{phase.replace('_', '-')}.txt"
        try:
            file.write_text("".join(f"{line}\n" for line in describe(compilation)), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--dump: {file}: {error.strerror}") from None


def describe(compilation: Compilation) -> Iterator[str]:
    """The lines of a dump, from what the phases so far have made."""
    c = compilation
    if not hasattr(c, "builder"):
        yield from describe_nodes(c.view if hasattr(c, "view") else ModelView(c.model, c.precision))
        yield from _features(c)
        return
    graph, builder = getattr(c, "graph", None), c.builder
    if graph is None:
        inputs = [_port(port) for port in c.view.inputs]
        yield from describe_layers(inputs, builder.layers, builder.views, builder.slices, builder.halos)
    else:
        yield from describe_layers(map(_port, graph.inputs), graph.layers, graph.views, graph.slices)
    for port in c.view.outputs:
        yield f"output {_port(port)}"
    yield from _tuning(c)


def describe_nodes(view: ModelView) -> Iterator[str]:
    """The ONNX nodes of a model, and which of them were found to belong to one layer."""
    yield f"model {view.model.name}: {len(view.nodes)} nodes, opset {view.model.opset}, batch up to {view.max_batch}"
    for port in view.inputs:
        yield f"input {_port(port)}"
    for node in view.nodes:
        yield ""
        yield f"{node.op_type} {node.name}{_match(node, view)}"
        for word, names in (("in", node.input), ("out", node.output)):
            for name in filter(None, names):
                constant = " constant" if name in view.constants else ""
                yield f"    {word:4}{_port(view.values[name]) if name in view.values else name}{constant}"
    yield ""
    for port in view.outputs:
        yield f"output {_port(port)}"


def describe_layers(
    inputs: Iterable[str],
    layers: Sequence[LayerSpec],
    views: Mapping[str, str],
    slices: Mapping[str, Slice],
    halos: Mapping[str, Halo] | None = None,
) -> Iterator[str]:
    """The layers of a graph in order, then its views and slices. halos: those that were asked for, while unsettled."""
    for text in inputs:
        yield f"input {text}"
    for number, spec in enumerate(layers):
        yield ""
        yield f"layer {number} {spec.op} {spec.name}: {spec.flops} flop"
        for word, tensors in (("in", spec.inputs), ("out", spec.outputs)):
            for tensor in tensors:
                yield f"    {word:4}{_tensor(tensor)}"
        for name, value in _parameters(spec.parameters):
            yield f"    with {name} = {value}"
        for name, array in spec.weights.items():
            yield f"    weight {name} {array.dtype}[{', '.join(map(str, array.shape))}]"
    yield ""
    for name, base in views.items():
        yield f"view {name} of {base}"
    for name, where in slices.items():
        yield f"slice {name} of {where.whole} from {where.start}"
    for name, halo in (halos or {}).items():
        yield f"halo {name} {_halo(halo)}"


def _features(c: Compilation) -> Iterator[str]:
    if c.features:
        yield ""
        yield "in front of the model:"
        ports = c.features.layout.inputs
        yield from describe_layers(map(_port, ports), c.features.layers, {}, {})


def _tuning(c: Compilation) -> Iterator[str]:
    if hasattr(c, "candidates"):
        yield ""
        for workload, found in c.candidates.items():
            best = min(found, key=lambda candidate: candidate.best_ns)
            yield f"workload {workload}"
            yield f"    {len(found)} candidates, the best {best.best_ns} ns at {best.point or 'its only point'}"
    for choice in getattr(c, "choices", ()):
        yield ""
        yield f"choice {choice.spec.name}: {choice.decision.way}, {'measured' if choice.measured else 'estimated'}"
        for way, ns in choice.decision.times_ns.items():
            yield f"    {way}: {ns:.0f} ns"
    if hasattr(c, "versions"):
        yield ""
        for symbol, versions in c.versions.items():
            for version in versions:
                alone = version.latency_ns[0][0]
                shape = f"block {version.block_size} bytes, parallelism {version.parallelism}"
                yield f"version {version.symbol} of {symbol}: {shape}, {min(alone)} ns alone, {version.origin}"
    if hasattr(c, "parts"):
        yield ""
        yield f"arena {c.parts.arena_bytes} bytes"
        for number, buffer in enumerate(c.parts.buffers):
            yield f"buffer {number} {buffer.kind} {buffer.dtype}{_shape(buffer.shape)} at {buffer.offset}"


def _match(node: NodeProto, view: ModelView) -> str:
    match = view.matches.at(node, object)
    if match is not None:
        return f"  <- {type(match).__name__}"
    return "  <- part of a match" if view.matches.is_inner(node) else ""


def _parameters(parameters: LayerParameters) -> Iterator[tuple[str, str]]:
    for field in fields(parameters):
        value = getattr(parameters, field.name)
        if field.repr:
            yield field.name, _value(value)


def _value(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def _tensor(tensor: Activation) -> str:
    block = f" in blocks of {tensor.block}" if tensor.block else ""
    halo = f" halo {_halo(tensor.halo)}" if tensor.halo != Halo() else ""
    return f"{tensor.name} {BLOCK_TYPES.get(tensor.dtype, tensor.dtype)}{_shape(tensor.shape)}{block}{halo}"


def _port(port: TensorSpec | Port) -> str:
    return f"{port.name} {port.dtype}{_shape(port.shape)}"


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(str(dim) if dim >= 0 else f'{-dim}b' if dim < -1 else 'b' for dim in shape)}]"


def _halo(halo: Halo) -> str:
    return f"top {halo.top} left {halo.left} bottom {halo.bottom} right {halo.right}"

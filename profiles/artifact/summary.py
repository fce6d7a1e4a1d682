"""What a model artifact is, in a few lines for people: ports, layers, time, target, size."""

from __future__ import annotations

from veltair.profiles.artifact.dynamic_dimension import DynamicDimension
from veltair.profiles.artifact.manifest import Manifest, Port
from veltair.profiles.artifact.ragged_inputs import RaggedInput


def fastest_alone_ns(manifest: Manifest) -> int:
    """The time of one sample alone on the machine, each layer in its best version on its best core count, ns."""
    return sum(min(min(v.latency_ns[0][0]) for v in layer.versions) for layer in manifest.layers)


def describe_port(port: Port, dimension: DynamicDimension | None = None) -> str:
    """Type and shape of an input or output. `dimension`: one that queries choose beside the batch.

    >>> describe_port(Port("x", "float32", (-1, 3, 224, 224)))
    'float32 (batch, 3, 224, 224)'
    >>> describe_port(Port("ids", "int64", (1, 8), low=0, high=99))
    'int64 (1, 8), 0 … 99'
    >>> describe_port(Port("boxes", "float32", (0, 4), room=65536))
    'float32 (any, 4), up to 65536 elements'
    >>> describe_port(Port("label", "string", (-1,), labels=("no", "yes")))
    'string (batch,), one of 2 labels'
    >>> describe_port(Port("ids", "int64", (-1, 64)), DynamicDimension("seq", 1, 64, (64,), {"ids": (1,)}))
    'int64 (batch, seq)'
    """
    own = dimension.axes.get(port.name, ()) if dimension else ()
    name = dimension.length_of(port.name) if dimension else ""
    dims = ", ".join(name if axis in own else _dimension(dim) for axis, dim in enumerate(port.shape))
    text = f"{port.dtype} ({dims}{',' if len(port.shape) == 1 else ''})"
    if port.labels:
        text += f", one of {len(port.labels)} labels"
    if port.room:
        text += f", up to {port.room} elements"
    if port.low is None and port.high is None:
        return text
    return f"{text}, {'' if port.low is None else port.low} … {'' if port.high is None else port.high}"


def _dimension(dim: int) -> str:
    if dim == 0:
        return "any"
    return str(dim) if dim > 0 else "batch" if dim == -1 else f"{-dim} x batch"


def describe_dimension(dimension: DynamicDimension) -> str:
    """The bounds of a dimension in words, and how queries within them are served.

    >>> describe_dimension(DynamicDimension("seq", 1, 64, (64, 32), {"ids": (1,)}))
    'seq 1 … 64 padded to 32, 64'
    """
    bounds = f"{dimension.name} {dimension.low} … {dimension.high}"
    if dimension.exact:
        return f"{bounds}, not padded, by ONNX Runtime: {dimension.reason}"
    return f"{bounds} padded to {', '.join(map(str, sorted(dimension.extents)))}"


def describe_bags(bags: RaggedInput) -> str:
    """What the inputs of bags hold.

    >>> describe_bags(RaggedInput("ids", "ids/lengths", "offsets", "int64", "offsets", room=64))
    'bags    ids, up to 64 in each; offsets says where each begins'
    """
    says = {"offsets": "where each begins", "ends": "where each begins, and the end", "lengths": "how many are in each"}
    text = f"bags    {', '.join(bags.flat)}, up to {bags.room} in each; {bags.bounds} says {says[bags.form]}"
    return text if bags.features == 1 else f"{text}, of {bags.features} features one after the other"


def summarize(manifest: Manifest) -> str:
    """Several lines: the model, then each input and output."""
    versions = sum(len(layer.versions) for layer in manifest.layers)
    batch = f", batches up to {manifest.max_batch}" if manifest.max_batch > 1 else ""
    if manifest.dimension is not None:
        batch += f", {describe_dimension(manifest.dimension)}"
    head = (
        f"{manifest.model} ({manifest.precision}): {len(manifest.layers)} layers, {versions} code versions{batch}\n"
        f"{fastest_alone_ns(manifest) / 1e6:.2f} ms alone, target {manifest.qos_ns / 1e6:g} ms"
    )
    ports = [("input", port) for port in manifest.client_inputs] + [("output", port) for port in manifest.outputs]
    width = max(len(port.name) for _, port in ports)
    lines = (f"{side:<6}  {port.name:<{width}}  {describe_port(port, manifest.dimension)}" for side, port in ports)
    return "\n".join([head, *lines, *(describe_bags(each) for each in manifest.ragged)])
